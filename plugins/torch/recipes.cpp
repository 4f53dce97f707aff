// recipes.cpp - recipes: how the engine computes the result of an op again, instead of moving it to the host.
//
// When an op of REPEATABLE_OPS begins, its arguments are kept; when it ends, the movable storages that it allocated for its results get a recipe
// (headroom_lms.h): the op and those arguments. The engine may then drop such a result, and calls repeat() when the program needs it again.
//
// - A movable argument is kept as its shape and its place among the recipe's inputs, not as a tensor: the program can free it, and the engine knows
//   whether its contents can still be had. It ends the recipe when the program writes to an argument.
// - Any other argument is kept as a tensor, and its storage is a source of the recipe. The engine is told before an op writes to it. Storages that are not movable and not small are not kept: the op gets no recipe.
// - Ops nest. An outer op's recipe replaces those of the ops inside it. Results of an outer op that is not repeatable have no recipe, unless the op only calls other
//   ops: its kernel may have written to them without an op. With autocast the outer call of an op only casts the arguments, and does not count as an op (ops.cpp).
// - A repeated op runs below autograd and autocast, on the device and stream of the run, without the callbacks of ops.cpp. Its results are new
//   storages, whose memory the dropped tensors take over (hr_tensor_take).
// - Dropout draws the same numbers again, because the state of the generator is kept with the arguments, and is set meanwhile. As with
//   torch.utils.checkpoint, another thread must not draw numbers at the same time.
// - An op in place extends the recipe of the storage that it changes (hr_tensor_extend_recipe): all its ops run again, one after the other, in the memory
//   of that storage. What it filled gets a recipe of its own, if it filled all of it.
// - Results of the backward pass and of optimizers get no recipe: they are used once, soon.
#include "plugin.h"
#include "repeatable_ops.h"

#include <ATen/Context.h>
#include <ATen/core/Generator.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

namespace headroom {

static c10::Device device_at(c10::DeviceIndex index)
{
	return front.type == c10::DeviceType::CPU ? c10::Device(front.type) : c10::Device(front.type, index);
}

static c10::DispatchKey autocast_key()
{
	return front.type == c10::DeviceType::CPU ? c10::DispatchKey::AutocastCPU : c10::DispatchKey::AutocastCUDA;
}

// ---- which ops ----

static const char *base_name(const std::string &name)
{
	size_t colons = name.rfind("::");
	return name.c_str() + (colons == std::string::npos ? 0 : colons + 2);
}

static bool returns_only_new_tensors(const c10::FunctionSchema &schema)
{
	for (const c10::Argument &argument : schema.arguments())
		if (argument.alias_info()) return false;
	for (const c10::Argument &result : schema.returns())
		if (result.alias_info()) return false;
	return !schema.returns().empty();
}

static int argument_index(const c10::FunctionSchema &schema, const char *name)
{
	std::optional<int> index = schema.argumentIndexWithName(name);
	return index ? *index : -1;
}

// Whether it changes its first argument, and nothing else, and returns it.
static bool is_in_place(const c10::FunctionSchema &schema)
{
	const auto &arguments = schema.arguments(), &results = schema.returns();
	auto is_written = [](const c10::Argument &argument) { return argument.alias_info() && argument.alias_info()->isWrite() && argument.type()->kind() == c10::TypeKind::TensorType; };
	if (arguments.empty() || results.size() != 1 || !is_written(arguments[0]) || !is_written(results[0])) return false;
	return std::none_of(arguments.begin() + 1, arguments.end(), [](const c10::Argument &argument) { return argument.alias_info() != nullptr; });
}

using Names = std::unordered_set<std::string>;

const RepeatableOp *repeatable_op(const c10::FunctionSchema &schema)
{
	static const auto *others = new Names(std::begin(REPEATABLE_OPS), std::end(REPEATABLE_OPS));
	static const auto *products = new Names(std::begin(REPEATABLE_PRODUCTS), std::end(REPEATABLE_PRODUCTS));
	static const auto *filling = new Names(std::begin(FILLING_OPS), std::end(FILLING_OPS));
	std::string name = base_name(schema.name());
	bool in_place = is_in_place(schema), fills = in_place && filling->count(name);
	if (in_place && !fills && name.back() == '_') name.pop_back();
	bool is_product = products->count(name), known = fills || is_product || others->count(name);
	if (schema.name().rfind("aten::", 0) != 0 || !known || !(in_place || returns_only_new_tensors(schema))) return nullptr;
	auto handle = c10::Dispatcher::singleton().findSchema(schema.operator_name());
	if (!handle) return nullptr;
	auto *op = new RepeatableOp{*handle}; // recipes of any thread refer to it
	op->in_place = in_place;
	op->fills = fills;
	op->is_random = name == "bernoulli_";
	op->is_product = is_product;
	op->is_convolution = name.find("conv") != std::string::npos;
	op->name = hr_name_intern(schema.name().c_str());
	for (const RandomOp &random : RANDOM_OPS)
		if (name == random.name) op->probability = argument_index(schema, random.probability);
	// Batch norm updates them although the schema does not say so. Its results in training do not depend on them.
	op->running[0] = argument_index(schema, "running_mean");
	op->running[1] = argument_index(schema, "running_var");
	op->training = argument_index(schema, "training");
	return op;
}

bool has_autocast(const c10::FunctionSchema &schema)
{
	auto handle = c10::Dispatcher::singleton().findSchema(schema.operator_name());
	return handle && schema.name().rfind("aten::", 0) == 0 && handle->hasKernelForDispatchKey(autocast_key());
}

bool is_autocast()
{
	return !c10::impl::tls_is_dispatch_key_excluded(autocast_key());
}

bool only_calls_ops(const c10::FunctionSchema &schema)
{
	auto handle = c10::Dispatcher::singleton().findSchema(schema.operator_name());
	return handle && handle->hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd);
}

// ---- arguments ----

constexpr int KEPT = -1, OWN = -2;

struct KeptTensor {
	int input = KEPT; // index of the recipe's input; KEPT: [tensor] is it; OWN: it is the output, which the op changes
	at::Tensor tensor; // without its part of the autograd graph
	c10::SmallVector<int64_t, 8> sizes_and_strides;
	int64_t offset = 0; // in elements
	caffe2::TypeMeta type;
	size_t storage_bytes = 0;
};

enum class Slot : uint8_t { VALUE, TENSOR, TENSORS, OPTIONAL_TENSORS };

struct KeptArgument {
	c10::IValue value;
	Slot slot = Slot::VALUE;
	uint32_t first = 0, count = 0; // of the recipe's tensors
};

// Each op that can be repeated makes one, so it seldom needs more memory than the object.
struct Recipe {
	explicit Recipe(const RepeatableOp &repeatable) : op(repeatable) {}
	~Recipe()
	{
		for (Record *record : records) record_release(record);
	}

	const RepeatableOp &op;
	c10::DeviceIndex device = -1; // of all its tensors; -1: not known yet
	c10::SmallVector<KeptArgument, 10> arguments;
	c10::SmallVector<KeptTensor, 3> tensors;
	c10::SmallVector<Record *, 4> records; // of the inputs, with a reference each
	c10::SmallVector<hr_tensor, 4> inputs;
	c10::SmallVector<uint64_t, 6> sources; // addresses of the storages of kept tensors
	at::Tensor generator_state; // undefined: the op draws no numbers
	c10::SmallVector<size_t, 4> results; // the op's results that are the recipe's outputs
	c10::SmallVector<hr_tensor, 4> outputs;
	Record *own = nullptr; // of the storage that an op in place changes; only while it runs the first time
	bool extends = false;  // the recipe of that storage
};

// Whether the tensor can be made again from its shape and its memory.
static bool is_plain(const at::Tensor &tensor)
{
	c10::DispatchKeySet keys = tensor.key_set();
	return tensor.layout() == c10::kStrided && tensor.has_storage() && !tensor.is_quantized() && !tensor.is_nested() && !tensor.is_conj() && !tensor.is_neg() &&
		!keys.has_any(c10::python_ks) && !keys.has_any(c10::functorch_transforms_ks) && !tensor._is_zerotensor();
}

// Whether the tensor has every byte of the storage.
static bool fills_storage(const at::Tensor &tensor)
{
	return is_plain(tensor) && tensor.storage_offset() == 0 && tensor.is_non_overlapping_and_dense() && tensor.nbytes() == tensor.storage().nbytes();
}

static int add_input(Recipe &recipe, Record *record)
{
	auto found = std::find(recipe.records.begin(), recipe.records.end(), record);
	if (found != recipe.records.end()) return static_cast<int>(found - recipe.records.begin());
	record->references++;
	recipe.records.push_back(record);
	recipe.inputs.push_back(record->tensor);
	return static_cast<int>(recipe.inputs.size() - 1);
}

// False if the op has tensors of several devices: the engine repeats an op on one.
static bool is_of_device(Recipe &recipe, const c10::Device &device)
{
	if (device.type() != front.type) return true;
	if (recipe.device < 0) recipe.device = index_of(device);
	return recipe.device == index_of(device);
}

static bool keep_tensor(Recipe &recipe, const at::Tensor &tensor, KeptTensor &kept)
{
	if (!tensor.defined()) return true;
	if (!is_plain(tensor) || !is_of_device(recipe, tensor.device())) return false;
	c10::TensorImpl *impl = tensor.unsafeGetTensorImpl();
	c10::StorageImpl *storage = impl->unsafe_storage().unsafeGetStorageImpl();
	Record *record = record_of(storage);
	if (!record) {
		if (storage->nbytes() >= movable_bytes) return false;
		kept.tensor = at::Tensor(impl->shallow_copy_and_detach(c10::VariableVersion(0), false));
		recipe.sources.push_back(reinterpret_cast<uint64_t>(storage));
		return true;
	}
	if (record->kept) return false; // its address has left PyTorch, so it may be written without an op
	kept.input = record == recipe.own ? OWN : add_input(recipe, record);
	kept.sizes_and_strides.append(tensor.sizes().begin(), tensor.sizes().end());
	kept.sizes_and_strides.append(tensor.strides().begin(), tensor.strides().end());
	kept.offset = tensor.storage_offset();
	kept.type = tensor.dtype();
	kept.storage_bytes = storage->nbytes();
	return true;
}

static bool keep_argument(Recipe &recipe, const c10::IValue &value, KeptArgument &kept)
{
	kept.first = static_cast<uint32_t>(recipe.tensors.size());
	auto add = [&](const at::Tensor &tensor) {
		kept.count++;
		return keep_tensor(recipe, tensor, recipe.tensors.emplace_back());
	};
	if (value.isTensor()) {
		kept.slot = Slot::TENSOR;
		return add(value.toTensor());
	}
	if (value.isList() && value.isTensorList()) {
		kept.slot = Slot::TENSORS;
		for (const c10::IValue &tensor : value.toListRef())
			if (!add(tensor.toTensor())) return false;
		return true;
	}
	if (value.isList() && value.isOptionalTensorList()) {
		kept.slot = Slot::OPTIONAL_TENSORS;
		for (const std::optional<at::Tensor> &tensor : value.toOptionalTensorVector())
			if (!add(tensor ? *tensor : at::Tensor())) return false;
		return true;
	}
	if (value.isGenerator() || value.isStorage()) return false;
	kept.value = value;
	return true;
}

// ---- repeating an op ----

static __thread bool repeating;
static thread_local std::string failed_repeat;

bool is_repeating()
{
	return repeating;
}

std::string take_failed_repeat()
{
	return std::exchange(failed_repeat, std::string());
}

static at::Tensor tensor_at(const KeptTensor &kept, void *address, c10::Device device)
{
	c10::Storage storage(c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), kept.storage_bytes, c10::DataPtr(address, device), nullptr, false));
	c10::DispatchKey key = front.type == c10::DeviceType::CPU ? c10::DispatchKey::CPU : c10::DispatchKey::CUDA;
	at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(key), kept.type);
	size_t dimensions = kept.sizes_and_strides.size() / 2;
	c10::ArrayRef<int64_t> both(kept.sizes_and_strides);
	tensor.unsafeGetTensorImpl()->set_sizes_and_strides(both.slice(0, dimensions), both.slice(dimensions), kept.offset);
	return tensor;
}

static at::Tensor tensor_of(const KeptTensor &kept, const std::vector<void *> &addresses, c10::Device device)
{
	if (kept.input == KEPT) return kept.tensor;
	return tensor_at(kept, kept.input == OWN ? addresses.back() : addresses[static_cast<size_t>(kept.input)], device);
}

static c10::IValue value_of(const Recipe &recipe, const KeptArgument &kept, const std::vector<void *> &addresses, c10::Device device)
{
	c10::ArrayRef<KeptTensor> tensors(recipe.tensors.data() + kept.first, kept.count);
	switch (kept.slot) {
	case Slot::VALUE: return kept.value;
	case Slot::TENSOR: return tensor_of(tensors[0], addresses, device);
	case Slot::TENSORS: {
		c10::List<at::Tensor> list;
		for (const KeptTensor &tensor : tensors) list.push_back(tensor_of(tensor, addresses, device));
		return list;
	}
	case Slot::OPTIONAL_TENSORS: break;
	}
	c10::List<std::optional<at::Tensor>> list;
	for (const KeptTensor &one : tensors) {
		at::Tensor tensor = tensor_of(one, addresses, device);
		list.push_back(tensor.defined() ? std::optional<at::Tensor>(tensor) : std::nullopt);
	}
	return list;
}

// The state of the generator as it was, for the life of the object; then what it is now.
struct GeneratorState {
	at::Generator generator;
	at::Tensor before;
	GeneratorState(const at::Tensor &state, c10::Device device)
	{
		if (!state.defined()) return;
		generator = at::globalContext().defaultGenerator(device);
		std::lock_guard<std::mutex> guard(generator.mutex());
		before = generator.get_state();
		generator.set_state(state);
	}
	~GeneratorState()
	{
		if (!before.defined()) return;
		std::lock_guard<std::mutex> guard(generator.mutex());
		generator.set_state(before);
	}
};

// As a kernel below autograd and autocast, on the calling thread.
static void run_op(const Recipe &recipe, c10::Stack &stack)
{
	at::RecordFunctionGuard without_callbacks(false);
	c10::AutoGradMode without_gradients(false);
	c10::impl::ForceDispatchKeyGuard below(c10::DispatchKeySet(c10::DispatchKey::BackendSelect),
		c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset | c10::python_ks | c10::functorch_transforms_ks);
	c10::DeviceGuard device(device_at(recipe.device));
	GeneratorState generator(recipe.generator_state, device_at(recipe.device));
	recipe.op.handle.callBoxed(stack);
}

// Makes the stream of the run current. It is that of the thread, or the default stream: where the thread's own has no number (HR_STREAM_HOST), and when a
// tensor is destroyed.
static void use_stream(hr_stream stream, c10::DeviceIndex device, c10::OptionalStreamGuard &guard)
{
	if (front.type == c10::DeviceType::CPU || stream == front.stream(device)) return;
	if (stream != HR_STREAM_DEFAULT) throw std::runtime_error("the stream of a recipe is neither the thread's nor the default one");
	guard.reset_stream(c10::Stream(c10::Stream::DEFAULT, device_at(device)));
}

// Hands the memory of a result to the tensor that was dropped.
static hr_status hand_over(hr_tensor output, const at::Tensor &result)
{
	Record *made = record_of(result.storage().unsafeGetStorageImpl());
	if (!made) return HR_CORRUPT; // of another size than the first time
	give_up_pins(made);
	return hr_tensor_take(output, made->tensor);
}

// Those of the inputs and, at the end, of the output that an op in place changes.
static hr_status get_addresses(const Recipe &recipe, const hr_recompute &call, std::vector<void *> &addresses)
{
	hr_status status = HR_OK;
	addresses.resize(call.input_count + (recipe.op.in_place ? 1 : 0));
	for (size_t i = 0; i < call.input_count && !status; i++) status = hr_tensor_get_address(call.inputs[i], &addresses[i]);
	if (!status && recipe.op.in_place) status = hr_tensor_get_address(call.outputs[0], &addresses.back());
	return status;
}

static hr_status repeat_op(const Recipe &recipe, const hr_recompute &call)
{
	std::vector<void *> addresses;
	hr_status status = get_addresses(recipe, call, addresses);
	if (status) return status;
	if (front.wait_for_inputs && (status = front.wait_for_inputs(call.stream))) return status;
	c10::OptionalStreamGuard stream;
	use_stream(call.stream, recipe.device, stream);
	c10::Stack stack;
	for (const KeptArgument &argument : recipe.arguments) stack.push_back(value_of(recipe, argument, addresses, device_at(recipe.device)));
	run_op(recipe, stack);
	for (size_t i = 0; i < call.output_count && !status && !recipe.op.in_place; i++)
		if (call.outputs[i].id) status = hand_over(call.outputs[i], stack[recipe.results[i]].toTensor());
	return status;
}

static hr_status recompute(void *user, const hr_recompute *call)
{
	bool before = repeating;
	hr_status status;
	repeating = true;
	try {
		status = repeat_op(*static_cast<Recipe *>(user), *call);
	} catch (const c10::OutOfMemoryError &) {
		status = HR_OUT_OF_MEMORY;
	} catch (const c10::Error &error) {
		status = HR_DEVICE_ERROR;
		failed_repeat = error.what_without_backtrace();
	} catch (const std::exception &error) {
		status = HR_DEVICE_ERROR;
		failed_repeat = error.what();
	}
	repeating = before;
	return status;
}

static void release(void *user)
{
	delete static_cast<Recipe *>(user);
}

// ---- making and ending recipes ----

hr_status end_recipes_of(c10::StorageImpl *storage)
{
	for (c10::DeviceIndex i = 0; i < front.devices(); i++) {
		hr_allocator of = front.allocator(i);
		hr_status status = of.id ? hr_lms_end_recipes(of, reinterpret_cast<uint64_t>(storage), front.stream(i)) : HR_OK;
		if (status && status != HR_NOT_READY) return status; // not ready: no tensor yet
	}
	return HR_OK;
}

// A pin for writing ends it.
void forget_recipe(Record *record)
{
	if (!record->in_recipe) return;
	hr_access access = HR_WRITE;
	if (pin_records(&record, &access, 1) == HR_OK) unpin_records(&record, 1);
}

// Low estimates: a tensor that is moved although it would be cheaper to compute costs less than the reverse.
constexpr uint64_t LAUNCH_NS = 10000, CUDA_BYTES_PER_NS = 500, CPU_BYTES_PER_NS = 4;

void RecipeDeleter::operator()(Recipe *recipe) const
{
	delete recipe;
}

static bool draws_numbers(const RepeatableOp &op, c10::ArrayRef<const c10::IValue> arguments)
{
	if (op.is_random) return true;
	if (op.probability < 0 || static_cast<size_t>(op.probability) >= arguments.size()) return false;
	const c10::IValue &probability = arguments[static_cast<size_t>(op.probability)];
	return probability.isDouble() && probability.toDouble() > 0;
}

// Whether argument [i] is a running statistic that the op updates.
static bool is_updated(const RepeatableOp &op, c10::ArrayRef<const c10::IValue> arguments, size_t i)
{
	if (op.training < 0 || !arguments[static_cast<size_t>(op.training)].toBool()) return false;
	return static_cast<int>(i) == op.running[0] || static_cast<int>(i) == op.running[1];
}

// With torch.backends.cudnn.benchmark each thread measures which algorithm is the fastest, so the thread that repeats the op may get other bits.
static bool may_change_algorithm(const RepeatableOp &op)
{
	return op.is_convolution && front.type != c10::DeviceType::CPU && at::globalContext().benchmarkCuDNN();
}

static Record *changed_record(c10::ArrayRef<const c10::IValue> arguments)
{
	if (arguments.empty() || !arguments[0].isTensor() || !arguments[0].toTensor().defined() || !arguments[0].toTensor().has_storage()) return nullptr;
	return record_of(arguments[0].toTensor().storage().unsafeGetStorageImpl());
}

Record *hold_recipe(const RepeatableOp &op, uint64_t outermost_op, c10::ArrayRef<const c10::IValue> arguments)
{
	Record *record = changed_record(arguments);
	// An op around this one that writes it may do so later.
	if (!record || !record->in_recipe || record->kept || (outermost_op && record->written == outermost_op)) return nullptr;
	if (op.fills && fills_storage(arguments[0].toTensor())) return nullptr;
	EngineCall call;
	return hr_tensor_hold_recipe(record->tensor) == HR_OK ? record : nullptr;
}

void unhold_recipe(Record *record)
{
	hr_tensor_unhold_recipe(record->tensor);
}

// Whether the op in place is repeated on the contents that the op finds, or on memory without contents.
static bool keep_changed(Recipe &recipe, c10::ArrayRef<const c10::IValue> arguments, const Record *held)
{
	recipe.own = changed_record(arguments);
	recipe.extends = held != nullptr;
	if (!recipe.own || recipe.own->kept) return false;
	if (recipe.extends) return held == recipe.own;
	return recipe.op.fills && fills_storage(arguments[0].toTensor());
}

// What a copy from the host reads may be changed without an op.
static bool reads_host(const RepeatableOp &op, c10::ArrayRef<const c10::IValue> arguments)
{
	return op.in_place && std::any_of(arguments.begin(), arguments.end(), [](const c10::IValue &argument) {
		return argument.isTensor() && argument.toTensor().defined() && argument.toTensor().device().type() != front.type && argument.toTensor().dim() > 0;
	});
}

PendingRecipe begin_recipe(const RepeatableOp &op, uint64_t outermost_op, c10::ArrayRef<const c10::IValue> arguments, Record *held)
{
	if (may_change_algorithm(op) || reads_host(op, arguments)) return nullptr;
	PendingRecipe recipe(new Recipe(op));
	if (op.in_place && !keep_changed(*recipe, arguments, held)) return nullptr;
	recipe->arguments.resize(arguments.size());
	for (size_t i = 0; i < arguments.size(); i++)
		if (!is_updated(op, arguments, i) && !keep_argument(*recipe, arguments[i], recipe->arguments[i])) return nullptr;
	// An op around this one writes such an input, perhaps later and in its own kernel.
	for (const Record *record : recipe->records)
		if (record->written == outermost_op) return nullptr;
	if (recipe->device >= 0 && is_captured_on(recipe->device)) return nullptr; // the results are computed when the graph is replayed
	if (draws_numbers(op, arguments)) {
		if (recipe->device < 0) return nullptr;
		at::Generator generator = at::globalContext().defaultGenerator(device_at(recipe->device));
		std::lock_guard<std::mutex> guard(generator.mutex());
		recipe->generator_state = generator.get_state();
	}
	return recipe;
}

// Time of the op, for evictions that no plan has decided; 0 = not known. Plans use measured times.
static uint64_t cost_of(const Recipe &recipe, uint64_t result_bytes)
{
	if (recompute_setting == RECOMPUTE_ALWAYS) return 1;
	if (recipe.op.is_product) return 0;
	uint64_t bytes = result_bytes;
	for (const KeptTensor &tensor : recipe.tensors) bytes += tensor.storage_bytes;
	return LAUNCH_NS + bytes / (front.type == c10::DeviceType::CPU ? CPU_BYTES_PER_NS : CUDA_BYTES_PER_NS);
}

static void set_recipe(PendingRecipe recipe, c10::ArrayRef<Record *> records, uint64_t bytes)
{
	hr_recipe description;
	hr_recipe_init(&description);
	description.recompute = recompute;
	description.release = release;
	description.user = recipe.get();
	description.inputs = recipe->inputs.data();
	description.input_count = recipe->inputs.size();
	description.outputs = recipe->outputs.data();
	description.output_count = recipe->outputs.size();
	description.sources = recipe->sources.data();
	description.source_count = recipe->sources.size();
	description.cost_ns = cost_of(*recipe, bytes);
	description.op = recipe->op.name;
	for (Record *record : records) record->in_recipe = true;
	for (Record *record : recipe->records) record->in_recipe = true;
	hr_status status = recipe->extends ? hr_tensor_extend_recipe(&description) : hr_tensor_set_recipe(&description);
	if (status == HR_OK) (void)recipe.release();
	else for (Record *record : records) forget_recipe(record); // of an op inside this one
}

// The op has changed a storage in place.
static void end_in_place(PendingRecipe recipe)
{
	Record *own = std::exchange(recipe->own, nullptr);
	recipe->outputs.push_back(own->tensor);
	set_recipe(std::move(recipe), {own}, own->bytes);
}

void end_recipe(PendingRecipe recipe, const std::vector<c10::IValue> &results, c10::ArrayRef<Record *> created)
{
	c10::SmallVector<Record *, 4> records;
	uint64_t bytes = 0;
	if (recipe->op.in_place) return results.empty() ? void() : end_in_place(std::move(recipe));
	for (size_t i = 0; i < results.size(); i++) {
		if (!results[i].isTensor() || !results[i].toTensor().defined() || !results[i].toTensor().has_storage()) continue;
		Record *record = record_of(results[i].toTensor().storage().unsafeGetStorageImpl());
		if (!record || !fills_storage(results[i].toTensor()) || std::find(created.begin(), created.end(), record) == created.end()) continue;
		if (!is_of_device(*recipe, results[i].toTensor().device())) return;
		recipe->results.push_back(i);
		recipe->outputs.push_back(record->tensor);
		records.push_back(record);
		bytes += record->bytes;
	}
	if (!records.empty()) set_recipe(std::move(recipe), records, bytes);
}

} // namespace headroom
