// ops.cpp - callbacks of PyTorch's record function: which storages an op uses, and for how long they are pinned.
//
// PyTorch calls start_op before and end_op after every dispatched op, on every thread, autograd's included. Ops nest, and each level pins what the
// levels around it have not pinned: autocast keeps casted weights in a cache and uses them in an inner op whose outer call never had them as
// arguments. Everything is unpinned when the outermost op ends; to the engine, the outermost op is one op (hr_pin_group_begin).
//
// - A range without a schema is not an op: "autograd::engine::evaluate_function: ..." wraps all ops of a backward node.
// - An op whose returns all alias an input without writing is transparent. A view needs no contents; reshape, contiguous, to and flatten have the
//   same schema and may compute, in ops of their own, which are announced.
// - What an op allocates stays pinned until the outermost op ends: an inner empty() returns before the kernel that fills it runs. What empty()
//   itself returns to the program stays pinned until an op uses it, because code such as torch.tensor() fills it without an op.
// - An exception in a callback is logged and swallowed, and the op goes on. If the inputs cannot be pinned, they are replaced by storages that throw
//   on access until the op ends, and the op's first allocation throws. CUDA storages are left at their host copies instead: an op that allocates
//   nothing runs on those.
#include "plugin.h"

#include <ATen/SparseCsrTensorImpl.h>
#include <ATen/SparseTensorImpl.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>

#include <array>
#include <cstring>
#include <memory>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

namespace headroom {

// ---- what is known of an op ----

struct OpInfo {
	hr_name name = HR_NAME_NONE;
	bool transparent = false;
	bool uninitialized = false; // returns memory that the program may fill without an op
	bool collective = false;    // may return a Work
	bool message = false;       // a collective of one sender and one receiver
	bool only_calls_ops = false;
	bool has_autocast = false;  // autocast has a kernel for it, which casts the arguments and calls the op again
	const RepeatableOp *repeatable = nullptr;
	struct Argument {
		size_t index;
		hr_access access;
	};
	std::vector<Argument> arguments; // those that may have storages
	size_t argument_count = 0;       // of all
};

// Arguments that kernels write although their schema does not say so: running statistics of batch norm, the state of cuDNN's dropout, and what the
// backward passes of oneDNN's and cuDNN's RNNs reuse. A write that is not declared here is lost if the tensor has a valid host copy; settings.verify finds it.
static bool is_hidden_write(const std::string &argument)
{
	return argument == "running_mean" || argument == "running_var" || argument == "dropout_state" || argument == "workspace" || argument == "reserve";
}

static bool is_empty_op(const std::string &name)
{
	return name.rfind("aten::empty", 0) == 0 || name.rfind("aten::new_empty", 0) == 0;
}

// Ops that only call other ops, many times. Pinning their arguments and all that they allocate until they end would pin a whole network.
static bool is_loop(const std::string &name)
{
	return name == "aten::lstm" || name == "aten::gru" || name == "aten::rnn_tanh" || name == "aten::rnn_relu";
}

// Ops that only call other ops, and are common. With recipes they are treated as the ops inside them: the planner then knows the time of each, and what the
// first ones make can be dropped while the others run. Other ops of this kind may read a tensor's memory without an op.
static bool is_sequence(const std::string &name)
{
	static const auto *names = new std::unordered_set<std::string>{"aten::linear", "aten::matmul", "aten::dropout", "aten::layer_norm", "aten::group_norm", "aten::batch_norm",
		"aten::instance_norm", "aten::softmax", "aten::log_softmax", "aten::cross_entropy_loss", "aten::nll_loss_nd", "aten::nll_loss", "aten::conv1d", "aten::conv2d",
		"aten::conv3d", "aten::dropout_", "aten::conv_transpose1d", "aten::conv_transpose2d", "aten::conv_transpose3d", "aten::max_pool2d", "aten::scaled_dot_product_attention"};
	return names->count(name);
}

// Schemas of collectives do not say which arguments they write.
static bool is_collective(const std::string &name)
{
	return name.rfind("c10d::", 0) == 0;
}

static bool is_message(const std::string &name)
{
	return name.rfind("c10d::send", 0) == 0 || name.rfind("c10d::recv", 0) == 0;
}

// Whether an argument of the type may be a tensor or contain one.
static bool may_have_storage(const c10::Type &type)
{
	switch (type.kind()) {
	case c10::TypeKind::OptionalType:
	case c10::TypeKind::ListType: return type.containedTypeSize() != 1 || may_have_storage(*type.containedType(0));
	case c10::TypeKind::IntType:
	case c10::TypeKind::FloatType:
	case c10::TypeKind::BoolType:
	case c10::TypeKind::NumberType:
	case c10::TypeKind::StringType:
	case c10::TypeKind::DeviceObjType:
	case c10::TypeKind::SymIntType:
	case c10::TypeKind::SymFloatType:
	case c10::TypeKind::SymBoolType:
	case c10::TypeKind::ScalarTypeType:
	case c10::TypeKind::LayoutType:
	case c10::TypeKind::MemoryFormatType:
	case c10::TypeKind::GeneratorType:
	case c10::TypeKind::NoneType: return false;
	default: return true;
	}
}

static OpInfo describe(const c10::FunctionSchema &schema)
{
	OpInfo info;
	bool writes = false;
	info.name = hr_name_intern(schema.name().c_str());
	info.uninitialized = is_empty_op(schema.name());
	info.collective = is_collective(schema.name());
	info.message = is_message(schema.name());
	if (recompute_setting) {
		info.only_calls_ops = only_calls_ops(schema);
		info.has_autocast = has_autocast(schema);
		info.repeatable = repeatable_op(schema);
	}
	for (const c10::Argument &argument : schema.arguments()) {
		bool write = (argument.alias_info() && argument.alias_info()->isWrite()) || is_hidden_write(argument.name()) || info.collective;
		if (may_have_storage(*argument.type())) info.arguments.push_back({info.argument_count, write ? HR_WRITE : HR_READ});
		info.argument_count++;
		writes = writes || write;
	}
	info.transparent = !writes && !schema.returns().empty();
	for (const c10::Argument &result : schema.returns())
		if (!result.alias_info() || result.alias_info()->isWrite()) info.transparent = false;
	return info;
}

// ---- the ops that a thread is in ----

struct Replaced {
	c10::intrusive_ptr<c10::TensorImpl> tensor;
	c10::Storage storage;
};

struct Frame {
	bool is_op = false;
	bool is_named = false; // memory is named after it or an op inside it
	bool uninitialized = false;
	bool transparent = false;
	bool collective = false;
	bool message = false;
	size_t first_pinned = 0, first_fresh = 0; // of the thread's pinned and fresh records, those that this op added
	bool results_are_last = false; // its kernel does not write to results of ops inside it
	PendingRecipe recipe;
	Record *held = nullptr; // whose recipe this op in place may extend
	hr_name outer_name = HR_NAME_NONE;
	std::vector<Replaced> replaced;
	bool failed = false;
	bool on_host = false; // it runs with what fits of its inputs
	std::vector<Record *> host_copies; // those that do not fit
};

struct Thread {
	std::vector<Frame> frames; // [0, depth) are in use; the others keep their memory
	size_t depth = 0;          // frames
	size_t ops = 0;            // frames of ops, and sections
	size_t named = 0;          // frames of ops that are named
	size_t failures = 0;       // frames of ops whose inputs could not be pinned
	bool refused = false;      // such an op needed new memory
	hr_status failure = HR_OK;
	std::string failure_text;
	uint64_t op = 0;           // number of the current outermost op: unique in the process
	std::vector<Record *> pinned; // by the current outermost op
	std::vector<Record *> fresh; // records with an allocation pin that the current outermost op created or used
	std::vector<std::vector<Record *>> sections; // pinned arguments of each
	std::vector<Record *> records; // of the op that begins
	std::vector<hr_access> accesses;
	std::vector<c10::StorageImpl *> written; // storages without records that it writes
	std::vector<ThreadNames> nodes; // names before each of the backward nodes that the thread is in
	std::unordered_map<const char *, std::unique_ptr<OpInfo>> infos; // NULL for an op that is treated as those inside it
	struct Known {
		const char *name;
		const OpInfo *info;
	};
	static constexpr size_t KNOWN = 512;
	std::array<Known, KNOWN> known{}; // the latest of [infos], by a part of the name's address
	Thread() { frames.reserve(64); } // so that frames seldom move
};

// NULL before the thread's first op. A pointer, because each access to a thread_local with a constructor is a call.
static __thread Thread *own_thread;

static Thread &begin_thread()
{
	struct Owner {
		~Owner() { delete std::exchange(own_thread, nullptr); }
	};
	thread_local Owner owner;
	(void)owner;
	own_thread = new Thread;
	return *own_thread;
}

static inline Thread &this_thread()
{
	return own_thread ? *own_thread : begin_thread();
}

static const OpInfo *find_info(Thread &thread, const at::RecordFunction &function)
{
	auto found = thread.infos.find(function.name());
	if (found != thread.infos.end()) return found->second.get();
	auto schema = function.operator_schema();
	if (!schema) return nullptr;
	std::unique_ptr<OpInfo> info;
	if (!is_loop(schema->name()) && !(recompute_setting && is_sequence(schema->name()))) info = std::make_unique<OpInfo>(describe(*schema));
	return (thread.infos[function.name()] = std::move(info)).get();
}

// NULL for a range that is not an op. The text of an op's name belongs to its schema, which PyTorch keeps: its address identifies the op, and
// operator_schema(), which copies the schema, is called once for each op and thread.
static inline const OpInfo *op_info(Thread &thread, const at::RecordFunction &function)
{
	const char *name = function.name();
	auto address = reinterpret_cast<uintptr_t>(name);
	Thread::Known &known = thread.known[(address >> 4 ^ address >> 13) % Thread::KNOWN];
	if (known.name == name) return known.info;
	const OpInfo *info = find_info(thread, function);
	if (info) known = {name, info};
	return info;
}

// Fields of a record that only the thread of its op compares with its own op: no order with other memory is needed.
template <typename Field, typename Value>
static inline void set(std::atomic<Field> &field, Value value)
{
	field.store(value, std::memory_order_relaxed);
}

template <typename Field>
static inline Field get(const std::atomic<Field> &field)
{
	return field.load(std::memory_order_relaxed);
}

static void list_fresh(Thread &thread, Record *record)
{
	if (!record->allocation_pin || record->listed.exchange(true)) return;
	record->references++;
	thread.fresh.push_back(record);
}

static void note_used(Record *record)
{
	if (!get(record->used)) record->used = true;
}

void op_allocated(Record *record)
{
	Thread &thread = this_thread();
	if (thread.ops == 0 || is_repeating()) return;
	list_fresh(thread, record);
	set(record->op_writes, true);
	set(record->op, thread.op); // its allocation pin lasts at least as long
}

void op_check()
{
	if (!own_thread || own_thread->failures == 0) return;
	Thread &thread = *own_thread;
	thread.refused = true;
	throw_text(thread.failure, thread.failure_text);
}

// ---- the storages of arguments ----

static bool is_compressed(c10::Layout layout)
{
	return layout == c10::kSparseCsr || layout == c10::kSparseCsc || layout == c10::kSparseBsr || layout == c10::kSparseBsc;
}

// Calls visit(tensor) for each tensor with a storage in [value]; sparse tensors are visited as their parts.
template <typename Visit>
static void visit_tensor(const at::Tensor &tensor, Visit &visit)
{
	if (!tensor.defined()) return;
	if (tensor.layout() == c10::kSparse) {
		auto *sparse = static_cast<at::SparseTensorImpl *>(tensor.unsafeGetTensorImpl());
		visit_tensor(sparse->indices(), visit);
		visit_tensor(sparse->values(), visit);
	} else if (is_compressed(tensor.layout())) {
		auto *compressed = static_cast<at::SparseCsrTensorImpl *>(tensor.unsafeGetTensorImpl());
		visit_tensor(compressed->compressed_indices(), visit);
		visit_tensor(compressed->plain_indices(), visit);
		visit_tensor(compressed->values(), visit);
	} else if (tensor.unsafeGetTensorImpl()->has_storage()) {
		visit(tensor);
	}
}

template <typename Visit>
static void visit_value(const c10::IValue &value, Visit &visit)
{
	if (value.isTensor()) visit_tensor(value.toTensor(), visit);
	else if (value.isList())
		for (const c10::IValue &element : value.toListRef()) visit_value(element, visit);
	else if (value.isTuple())
		for (const c10::IValue &element : value.toTupleRef().elements()) visit_value(element, visit);
}

static void add_record(Thread &thread, Record *record, hr_access access)
{
	for (size_t i = 0; i < thread.records.size(); i++) {
		if (thread.records[i] != record) continue;
		if (access == HR_WRITE) thread.accesses[i] = HR_WRITE;
		return;
	}
	thread.records.push_back(record);
	thread.accesses.push_back(access);
}

static void collect(Thread &thread, const at::RecordFunction &function, const OpInfo &info)
{
	thread.records.clear();
	thread.accesses.clear();
	thread.written.clear();
	hr_access access = HR_READ;
	auto visit = [&](const at::Tensor &tensor) {
		c10::StorageImpl *storage = tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
		Record *record = record_of(storage);
		if (record) add_record(thread, record, access);
		else if (access == HR_WRITE && recompute_setting) thread.written.push_back(storage);
	};
	auto visit_input = [&](const c10::IValue &input) {
		visit_value(input, visit);
		if (!input.isStorage()) return;
		Record *record = record_of(input.toStorage().unsafeGetStorageImpl());
		if (record) add_record(thread, record, access);
	};
	auto inputs = function.inputs();
	if (inputs.size() == info.argument_count) {
		for (const OpInfo::Argument &argument : info.arguments) {
			access = argument.access;
			visit_input(inputs[argument.index]);
		}
		return;
	}
	for (size_t i = 0; i < inputs.size(); i++) { // the inputs of TorchScript's interpreter are its whole stack
		access = HR_READ;
		for (const OpInfo::Argument &argument : info.arguments)
			if (argument.index == i) access = argument.access;
		visit_input(inputs[i]);
	}
}

// ---- inputs that cannot be pinned ----

// A storage that throws when its contents are accessed.
static c10::Storage throwing_storage(const c10::Storage &original, const std::string &text)
{
	auto storage = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), original.nbytes(), c10::DataPtr(nullptr, original.device()),
		nullptr, false);
	storage->release_data_and_set_meta_custom_data_ptr_error_msg_(text);
	return c10::Storage(std::move(storage));
}

// set_storage_keep_dtype refuses tensors that detach() returned.
static void replace_storage(c10::TensorImpl *tensor, const c10::Storage &storage)
{
	const_cast<c10::Storage &>(tensor->unsafe_storage()) = storage;
}

// From now on the op's allocations throw.
static void begin_failure(Thread &thread, hr_status status)
{
	if (thread.failures++ > 0) return;
	thread.failure = status;
	thread.failure_text = failure_text(status);
}

static std::atomic<int64_t> host_ops{0};

int64_t ops_on_host()
{
	return host_ops;
}

// Pins those of [records] that fit, one by one. The others stay evicted, and the op uses their host copies, which the device can access: slowly. An op that
// needs new memory fails, because its allocation throws. False if the contents of one cannot be used where they are.
static bool run_on_host(Thread &thread, Frame &frame, const std::vector<Record *> &records, const std::vector<hr_access> &accesses, hr_status status)
{
	if (!front.rests_on_copy || status != HR_OUT_OF_MEMORY || verifies) return false;
	begin_failure(thread, status); // the message of the whole op
	frame.on_host = true;
	for (size_t i = 0; i < records.size(); i++) {
		Record *record = records[i];
		bool pinned = pin_records(&record, &accesses[i], 1) == HR_OK;
		// A plan may have restored it meanwhile.
		if (!pinned && !begin_on_host(record) && !(pinned = pin_records(&record, &accesses[i], 1) == HR_OK)) return false;
		(pinned ? thread.pinned : frame.host_copies).push_back(record);
		set(record->op_writes, !pinned || accesses[i] != HR_READ);
		set(record->op, thread.op); // ops inside this one do not pin it again
	}
	return true;
}

static void end_host_run(Thread &thread, Frame &frame)
{
	for (Record *record : frame.host_copies) {
		if (front.synchronize) front.synchronize(record->device); // a restore reads what the op may have written
		set(record->op, uint64_t(0));
		end_on_host(record);
	}
	frame.host_copies.clear();
	frame.on_host = false;
	if (--thread.failures > 0) return; // an op inside another
	if (!frame.failed && !thread.refused) host_ops++;
	thread.refused = false;
}

static void fail_op(Thread &thread, Frame &frame, const at::RecordFunction &function, hr_status status)
{
	begin_failure(thread, status);
	frame.failed = true;
	auto visit = [&](const at::Tensor &tensor) {
		c10::TensorImpl *impl = tensor.unsafeGetTensorImpl();
		c10::Storage storage = impl->unsafe_storage();
		if (!record_of(storage.unsafeGetStorageImpl())) return;
		frame.replaced.push_back({tensor.getIntrusivePtr(), storage});
		replace_storage(impl, throwing_storage(storage, thread.failure_text));
	};
	for (const c10::IValue &input : function.inputs()) visit_value(input, visit);
}

static void end_failure(Thread &thread, Frame &frame)
{
	for (auto last = frame.replaced.rbegin(); last != frame.replaced.rend(); ++last) replace_storage(last->tensor.get(), last->storage);
	frame.replaced.clear();
	frame.failed = false;
	thread.failures--;
}

// ---- the callbacks ----

// Leaves what the outermost op has not pinned yet, or not for writing.
static void skip_pinned(Thread &thread)
{
	size_t left = 0;
	for (size_t i = 0; i < thread.records.size(); i++) {
		Record *record = thread.records[i];
		bool write = thread.accesses[i] == HR_WRITE;
		// What an op around this one uses on the host cannot be pinned, and has no recipe any more.
		bool tells = get(record->in_recipe) && thread.failures == 0;
		if (get(record->op) == thread.op && (!write || (get(record->op_writes) && !tells))) continue;
		thread.records[left] = record;
		thread.accesses[left++] = thread.accesses[i];
	}
	thread.records.resize(left);
	thread.accesses.resize(left);
}

// Whether an op of the calling thread that uses [records] is captured into a graph.
static bool is_captured(const std::vector<Record *> &records)
{
	if (!front.captures || front.captures->load(std::memory_order_acquire) == 0) return false;
	c10::DeviceIndex last = -1;
	for (const Record *record : records) {
		if (record->device == last) continue;
		last = record->device;
		if (is_captured_on(last)) return true;
	}
	return false;
}

// Of an op that is captured into a graph, which uses them at their present address whenever it is replayed.
static void keep_inputs(Thread &thread, Frame &frame, const at::RecordFunction &function)
{
	std::vector<Record *> records = std::move(thread.records); // keeping them may run other ops on this thread
	hr_status status = keep_records(records.data(), records.size());
	if (status) fail_op(thread, frame, function, status);
}

static void pin_inputs(Thread &thread, Frame &frame, const at::RecordFunction &function, const OpInfo &info)
{
	collect(thread, function, info);
	for (Record *record : thread.records) {
		note_used(record);
		list_fresh(thread, record);
	}
	for (c10::StorageImpl *storage : thread.written) {
		hr_status status = end_recipes_of(storage);
		if (status) return fail_op(thread, frame, function, status);
	}
	if (is_captured(thread.records)) return keep_inputs(thread, frame, function);
	if (!info.collective) skip_pinned(thread); // a collective's pins are its own
	if (thread.records.empty()) return;
	// Waiting for a collective may run other ops on this thread, which use the lists.
	std::vector<Record *> records = std::move(thread.records);
	std::vector<hr_access> accesses = std::move(thread.accesses);
	hr_status status = pin_records(records.data(), accesses.data(), records.size());
	for (size_t i = 0; i < records.size() && !status; i++) {
		thread.pinned.push_back(records[i]);
		set(records[i]->op_writes, accesses[i] != HR_READ);
		set(records[i]->op, thread.op);
		if (accesses[i] == HR_WRITE) set(records[i]->written, thread.op);
	}
	if (status && !run_on_host(thread, frame, records, accesses, status)) fail_op(thread, frame, function, status);
	thread.records = std::move(records); // keeps their memory
	thread.accesses = std::move(accesses);
}

// Whether an op has written to the record that the calling thread's outermost op has pinned, so that its recipe does not compute it.
static bool loses_recipe(const Thread &thread, const Record *record)
{
	return get(record->in_recipe) && get(record->op) == thread.op && get(record->op_writes);
}

// Whether a result may lose its recipe.
static bool adopt_outputs(Thread &thread, const Frame &frame, const at::RecordFunction &function)
{
	bool any = false;
	auto visit = [&](const at::Tensor &tensor) {
		Record *record = record_of(tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl());
		if (!record) return;
		if (!frame.uninitialized && !frame.transparent) note_used(record);
		list_fresh(thread, record);
		any = any || loses_recipe(thread, record);
	};
	for (const c10::IValue &output : function.outputs()) visit_value(output, visit);
	return any;
}

// ---- recipes ----

// Results of the backward pass and of optimizers are used once, soon.
static bool may_be_repeated(const Thread &thread, const OpInfo &info, const Frame &frame)
{
	static const hr_name gradients = hr_name_intern("gradients"), optimizer = hr_name_intern("optimizer");
	if (!info.repeatable || frame.results_are_last || thread.failures) return false;
	hr_name tag = names().tag;
	return tag != gradients && tag != optimizer;
}

// Before the op is pinned, because the engine then knows whether it can be planned as a part of the op that made its argument.
static void hold(Thread &thread, Frame &frame, const OpInfo &info, const at::RecordFunction &function)
{
	if (info.repeatable->in_place) frame.held = hold_recipe(*info.repeatable, thread.ops ? thread.op : 0, function.inputs());
}

static void begin_recipes(Thread &thread, Frame &frame, const OpInfo &info, const at::RecordFunction &function)
{
	bool may = thread.failures == 0 && (!info.repeatable->in_place || frame.held || thread.ops == 1); // an op around this one may write more
	if (may) frame.recipe = begin_recipe(*info.repeatable, thread.op, function.inputs(), frame.held);
	if (!frame.recipe && frame.held) unhold_recipe(std::exchange(frame.held, nullptr));
}

// [loses]: what adopt_outputs returned.
static void end_recipes(Thread &thread, Frame &frame, const at::RecordFunction &function, bool loses)
{
	if (thread.failures) { // pins for writing have ended the recipes
		frame.recipe.reset();
		if (frame.held) unhold_recipe(std::exchange(frame.held, nullptr));
		return;
	}
	if (frame.held && function.outputs().empty()) { // it failed
		frame.recipe.reset();
		unhold_recipe(frame.held);
	}
	frame.held = nullptr;
	if (frame.recipe) {
		c10::ArrayRef<Record *> created(thread.fresh.data() + frame.first_fresh, thread.fresh.size() - frame.first_fresh);
		return end_recipe(std::move(frame.recipe), function.outputs(), created);
	}
	if (frame.results_are_last || !loses) return;
	auto visit = [&](const at::Tensor &tensor) {
		Record *record = record_of(tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl());
		if (record && loses_recipe(thread, record)) forget_recipe(record);
	};
	for (const c10::IValue &output : function.outputs()) visit_value(output, visit);
}

// The scope of a forward op, by its sequence number, which the backward node of the op has too. Old entries are overwritten.
struct ForwardScopes {
	static constexpr size_t SIZE = 1 << 16;
	std::array<std::atomic<uint64_t>, SIZE> entries; // sequence number << 32 | scope, of 32 bits each
	void set(int64_t sequence, hr_name scope)
	{
		entries[static_cast<size_t>(sequence) % SIZE].store(static_cast<uint64_t>(sequence) << 32 | scope, std::memory_order_relaxed);
	}
	hr_name get(int64_t sequence) const
	{
		uint64_t entry = entries[static_cast<size_t>(sequence) % SIZE].load(std::memory_order_relaxed);
		return entry >> 32 == (static_cast<uint64_t>(sequence) & 0xffffffff) ? static_cast<hr_name>(entry) : HR_NAME_NONE;
	}
};
static ForwardScopes &forward_scopes()
{
	static auto *scopes = new ForwardScopes();
	return *scopes;
}

static Frame &push_frame(Thread &thread)
{
	if (thread.depth == thread.frames.size()) thread.frames.emplace_back();
	Frame &frame = thread.frames[thread.depth++];
	frame.is_op = false;
	return frame;
}

static void begin_outermost(Thread &thread)
{
	static std::atomic<uint64_t> numbers{0};
	thread.op = ++numbers;
	hr_pin_group_begin();
}

static void end_outermost(Thread &thread)
{
	unpin_records(thread.pinned.data(), thread.pinned.size(), thread.fresh.data(), thread.fresh.size());
	thread.pinned.clear();
	thread.fresh.clear();
	hr_pin_group_end();
}

static std::unique_ptr<at::ObserverContext> start_op(const at::RecordFunction &function)
{
	if (pending_collectives.load(std::memory_order_relaxed)) collectives_release(); // may run other ops on this thread
	Thread &thread = this_thread();
	Frame &frame = push_frame(thread);
	const OpInfo *info = op_info(thread, function);
	if (!info || (info->has_autocast && is_autocast())) return nullptr;
	frame.is_op = true;
	frame.collective = info->collective;
	frame.message = info->message;
	frame.first_pinned = thread.pinned.size();
	frame.first_fresh = thread.fresh.size();
	frame.uninitialized = info->uninitialized;
	frame.transparent = info->transparent;
	// Memory is named after the innermost op that does more than allocate.
	frame.is_named = !info->uninitialized || thread.named == 0;
	if (frame.is_named) {
		thread.named++;
		frame.outer_name = hr_op_set(info->name);
		if (info->uninitialized && frame.outer_name != HR_NAME_NONE) hr_op_set(frame.outer_name);
	}
	frame.results_are_last = info->transparent || info->only_calls_ops;
	bool repeats = recompute_setting && may_be_repeated(thread, *info, frame);
	if (repeats) hold(thread, frame, *info, function);
	if (thread.ops++ == 0 && lms_enabled) begin_outermost(thread);
	if (function.seqNr() >= 0 && names().scope != HR_NAME_NONE) forward_scopes().set(function.seqNr(), names().scope);
	if (lms_enabled && !info->transparent) pin_inputs(thread, frame, function, *info);
	if (repeats) begin_recipes(thread, frame, *info, function);
	return nullptr;
}

// The pins of a collective end with its Work, not with the outermost op.
static void end_collective(Thread &thread, Frame &frame, const at::RecordFunction &function)
{
	std::vector<Record *> pinned(thread.pinned.begin() + static_cast<ptrdiff_t>(frame.first_pinned), thread.pinned.end());
	std::vector<Record *> created(thread.fresh.begin() + static_cast<ptrdiff_t>(frame.first_fresh), thread.fresh.end());
	for (Record *record : pinned) set(record->op, uint64_t(0));
	for (Record *record : created) set(record->op, uint64_t(0));
	if (is_captured(pinned) || is_captured(created)) return; // it is complete when the graph is replayed, and its records are kept
	if (!collective_begin(function.outputs(), frame.message, pinned, created)) return;
	thread.pinned.resize(frame.first_pinned);
	thread.fresh.resize(frame.first_fresh);
}

static void end_op(const at::RecordFunction &function, at::ObserverContext *)
{
	Thread &thread = this_thread();
	Frame &frame = thread.frames[--thread.depth];
	if (!frame.is_op) return;
	if (lms_enabled) {
		bool loses = adopt_outputs(thread, frame, function);
		if (recompute_setting) end_recipes(thread, frame, function, loses);
		if (frame.collective) end_collective(thread, frame, function);
		if (frame.on_host) end_host_run(thread, frame);
		if (frame.failed) end_failure(thread, frame);
	}
	if (frame.is_named) {
		hr_op_set(frame.outer_name);
		thread.named--;
	}
	if (--thread.ops == 0 && lms_enabled) end_outermost(thread);
}

// ---- sections ----

void section_begin(const std::vector<at::Tensor> &arguments)
{
	Thread &thread = this_thread();
	if (thread.ops++ == 0) begin_outermost(thread);
	thread.records.clear();
	thread.accesses.clear();
	auto visit = [&](const at::Tensor &tensor) {
		Record *record = record_of(tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl());
		if (record) add_record(thread, record, HR_WRITE);
	};
	for (const at::Tensor &tensor : arguments) visit_tensor(tensor, visit);
	hr_status status = thread.records.empty() ? HR_OK : pin_records(thread.records.data(), thread.accesses.data(), thread.records.size());
	std::vector<Record *> pinned = thread.records;
	if (!status && is_captured(pinned) && (status = keep_records(pinned.data(), pinned.size()))) unpin_records(pinned.data(), pinned.size());
	if (status) {
		std::string text = failure_text(status);
		if (--thread.ops == 0) end_outermost(thread);
		throw_text(status, text);
	}
	for (Record *record : pinned) {
		note_used(record);
		list_fresh(thread, record);
	}
	thread.sections.push_back(std::move(pinned));
}

void keep_in_use()
{
	Thread &thread = this_thread();
	std::vector<Record *> records = thread.pinned;
	records.insert(records.end(), thread.fresh.begin(), thread.fresh.end());
	for (const auto &section : thread.sections) records.insert(records.end(), section.begin(), section.end());
	hr_status status = keep_records(records.data(), records.size());
	if (status) throw_status(status);
}

void section_end()
{
	Thread &thread = this_thread();
	TORCH_CHECK(!thread.sections.empty(), "headroom: a section ends that this thread did not begin");
	std::vector<Record *> pinned = std::move(thread.sections.back());
	thread.sections.pop_back();
	bool outermost = --thread.ops == 0;
	if (outermost) thread.pinned.insert(thread.pinned.end(), pinned.begin(), pinned.end());
	else unpin_records(pinned.data(), pinned.size());
	if (outermost) end_outermost(thread);
}

// gloo runs a collective on a thread of its own, and copies tensors there with ops and without. The range that it opens for profilers encloses them.
static std::unique_ptr<at::ObserverContext> start_user_range(const at::RecordFunction &function)
{
	struct Section final : at::ObserverContext {};
	Thread &thread = this_thread();
	if (thread.ops || thread.depth || strncmp(function.name(), "gloo:", 5) != 0) return nullptr;
	section_begin({});
	return std::make_unique<Section>();
}

static void end_user_range(const at::RecordFunction &, at::ObserverContext *context)
{
	if (context && !this_thread().sections.empty()) section_end();
}

// ---- backward nodes: names only ----

static std::unique_ptr<at::ObserverContext> start_node(const at::RecordFunction &function)
{
	static const hr_name gradients = hr_name_intern("gradients");
	ThreadNames &now = names();
	this_thread().nodes.push_back(now);
	now.tag = gradients;
	if (function.seqNr() >= 0) {
		hr_name scope = forward_scopes().get(function.seqNr());
		if (scope != HR_NAME_NONE) now.scope = scope;
	}
	return nullptr;
}

static void end_node(const at::RecordFunction &, at::ObserverContext *)
{
	Thread &thread = this_thread();
	if (thread.nodes.empty()) return;
	names() = thread.nodes.back();
	thread.nodes.pop_back();
}

// Registered once, because PyTorch allows that only while a program starts.
static at::CallbackHandle op_callback, node_callback;

void watch_ops(bool on)
{
	auto set = on ? at::reenableCallback : at::disableCallback;
	if (lms_enabled) return; // it needs them always
	set(op_callback);
	// The backward pass of CPU tensors runs on the thread that calls it, so the tag of gradients is known from the nodes alone.
	if (front.type != c10::DeviceType::CPU) set(node_callback);
}

void register_callbacks()
{
	op_callback = at::addGlobalCallback(
		at::RecordFunctionCallback(start_op, end_op).needsInputs(lms_enabled).needsOutputs(lms_enabled).scopes({at::RecordScope::FUNCTION}));
	node_callback = at::addGlobalCallback(at::RecordFunctionCallback(start_node, end_node).scopes({at::RecordScope::BACKWARD_FUNCTION}));
	if (lms_enabled) at::addGlobalCallback(at::RecordFunctionCallback(start_user_range, end_user_range).scopes({at::RecordScope::USER_SCOPE}));
	watch_ops(false);
}

} // namespace headroom
