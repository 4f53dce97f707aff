// context.cpp - settings, names of the calling thread, out-of-memory messages, and the functions that Python calls through ctypes.
#include "plugin.h"

#include <ATen/core/Tensor.h>
#include <torch/library.h>
#include <algorithm>

#include <cstdio>
#include <cstring>
#include <mutex>
#include <unordered_map>
#include <vector>

#include <pthread.h>
#include <sys/sysinfo.h>

namespace headroom {

FrontTable front{};
hr_allocator allocator{};
bool lms_enabled = false;
bool verifies = false;
RecomputeSetting recompute_setting = RECOMPUTE_OFF;
size_t movable_bytes = DEFAULT_MOVABLE_BYTES;
__thread ThreadNames thread_names;
__thread hr_allocator failed_allocator;

// PyTorch names the threads of its backward pass. The threads that a program starts begin with the name of their parent, but are not made by them.
void begin_names()
{
	static const hr_name gradients = hr_name_intern("gradients");
	char name[16] = "";
	bool backward = pthread_getname_np(pthread_self(), name, sizeof name) == 0 && strncmp(name, "pt_autograd", 11) == 0;
	thread_names = {HR_NAME_NONE, backward ? gradients : HR_NAME_NONE, true};
}

EngineCall::EngineCall() : swapped(front.captures && front.captures->load(std::memory_order_relaxed) > 0)
{
	mode = 2; // cudaStreamCaptureModeRelaxed
	if (swapped) front.swap_capture_mode(&mode);
}

EngineCall::~EngineCall()
{
	if (swapped) front.swap_capture_mode(&mode);
}

// ---- modules ----

// Scopes of modules, by the address of the Python object. Python adds them when a module first runs, and removes them with the module.
struct Modules {
	std::mutex lock;
	std::unordered_map<uint64_t, hr_name> scopes;
};

static Modules &modules()
{
	static auto *instance = new Modules;
	return *instance;
}

struct Entered {
	uint64_t module;
	ThreadNames before;
};
static thread_local std::vector<Entered> entered; // the modules whose forward runs, outermost first

// ---- messages ----

// "12.5 MiB"
static std::string size_text(int64_t bytes)
{
	static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
	double value = static_cast<double>(bytes);
	int unit = 0;
	for (; value >= 1024 && unit < 4; unit++) value /= 1024;
	char text[32];
	snprintf(text, sizeof text, unit ? "%.1f %s" : "%.0f %s", value, units[unit]);
	return text;
}

// "addmm 40.0 MiB, relu 12.0 MiB": the largest holders of one kind; empty if none has a name.
static std::string holders_text(hr_holder_kind kind)
{
	hr_holder holders[4];
	size_t count = 0;
	std::string text;
	if (hr_allocator_get_holders(failed_allocator, kind, holders, 4, &count)) return text;
	bool named = false;
	for (size_t i = 0; i < count; i++) {
		const char *name = hr_name_text(holders[i].name);
		named = named || *name;
		text += (i ? ", " : "") + std::string(*name ? name : "(no name)") + " " + size_text(holders[i].bytes);
	}
	return named ? text : std::string();
}

// "\n  rank 0: 39.1 MiB in use of 64.0 MiB on GPU:0, ...", for each of the job's other ranks on this host.
static std::string ranks_text(hr_oom_report report)
{
	std::string lines(hr_oom_format_ranks(report, nullptr, 0) + 1, '\0'), text;
	lines.resize(std::min(hr_oom_format_ranks(report, &lines[0], lines.size()), lines.size() - 1));
	for (size_t at = 0, end; (end = lines.find('\n', at)) != std::string::npos; at = end + 1) text += "\n  " + lines.substr(at, end - at);
	return text;
}

// The first line is what PyTorch's own error begins with, because programs look for it.
static std::string out_of_memory_text()
{
	std::string text = "Headroom: out of memory. ";
	std::string message = hr_last_message();
	hr_oom_report report{};
	hr_verdict verdict;
	hr_stats stats;
	text += message;
	hr_stats_init(&stats);
	if (hr_allocator_get_stats(failed_allocator, &stats) == HR_OK)
		text += "\n  memory: " + size_text(stats.bytes_in_use) + " in use of " + size_text(stats.bytes_limit) + ", " + size_text(stats.bytes_inactive) +
			" of it evictable; largest free block " + size_text(stats.largest_free_block);
	static const struct { hr_holder_kind kind; const char *label; } kinds[] = {{HR_BY_OP, "ops"}, {HR_BY_SCOPE, "modules"}, {HR_BY_TAG, "tags"}};
	for (const auto &kind : kinds) {
		std::string held = holders_text(kind.kind);
		if (!held.empty()) text += std::string("\n  ") + kind.label + ": " + held;
	}
	if (hr_oom_get_last(&report) == HR_OK) {
		text += ranks_text(report);
		hr_verdict_init(&verdict);
		if (hr_oom_get_verdict(report, &verdict) == HR_OK) {
			text += std::string("\n  verdict: ") + verdict.text;
			if (*verdict.advice) text += std::string("\n  to do: ") + verdict.advice;
		}
		char number[64];
		snprintf(number, sizeof number, "\n  whole report: headroom.torch.oom_report(error) [report %llx]", static_cast<unsigned long long>(report.id));
		text += number;
	}
	return text;
}

std::string failure_text(hr_status status)
{
	std::string repeat = take_failed_repeat();
	if (status == HR_FORKED)
		return "Headroom: this process is a fork of the one that made the tensor, and the tensor may move there. Call headroom.torch.pin(tensor) before the fork, "
			"or start the process in another way, such as DataLoader(..., multiprocessing_context=\"spawn\")";
	if (status == HR_OUT_OF_MEMORY) return out_of_memory_text();
	return std::string("Headroom: ") + hr_last_message() + (repeat.empty() ? "" : ": " + repeat);
}

void throw_text(hr_status status, const std::string &text)
{
	TORCH_CHECK_WITH(OutOfMemoryError, status != HR_OUT_OF_MEMORY, text);
	TORCH_CHECK(false, text);
	__builtin_unreachable();
}

void throw_status(hr_status status)
{
	throw_text(status, failure_text(status));
}

// ---- settings ----

// Kept for devices that are opened later.
static Settings settings;
static std::string spill_dir, policy;

static void keep_settings(const Settings &given)
{
	settings = given;
	if (given.spill_dir) settings.spill_dir = (spill_dir = given.spill_dir).c_str();
	if (given.policy) settings.policy = (policy = given.policy).c_str();
}

// By default, the pinned memory of all devices together is at most half of the host's.
static uint64_t default_host_limit(c10::DeviceIndex devices)
{
	struct sysinfo host;
	return devices > 1 && sysinfo(&host) == 0 ? uint64_t(host.totalram) * host.mem_unit / 2 / static_cast<uint64_t>(devices) : 0;
}

static hr_status configure_lms(hr_allocator of, c10::DeviceIndex devices)
{
	hr_lms_options options;
	hr_status status = hr_lms_options_init(&options);
	if (status) return status;
	options.enabled = true;
	if (settings.host_limit) options.host_limit = settings.host_limit;
	if (!options.host_limit) options.host_limit = default_host_limit(devices);
	if (settings.spill_dir) options.spill_dir = settings.spill_dir;
	if (settings.policy) options.policy = settings.policy;
	if (settings.verify) options.verify = true;
	if (settings.recompute == RECOMPUTE_OFF) options.recompute = false;
	recompute_setting = options.recompute ? static_cast<RecomputeSetting>(settings.recompute) : RECOMPUTE_OFF;
	return hr_lms_configure(of, &options);
}

static hr_status create_allocator(hr_device device, c10::DeviceIndex devices, hr_allocator *out)
{
	hr_allocator_options options;
	hr_allocator_options_init(&options);
	options.name = "pytorch";
	options.limit_bytes = settings.limit;
	options.oom.report_allocations_on_oom = true;
	hr_allocator made;
	hr_status status = hr_allocator_create(device, &options, &made);
	if (status) return status;
	if (settings.lms && (status = configure_lms(made, devices))) {
		hr_allocator_destroy(made);
		return status;
	}
	*out = made;
	return HR_OK;
}

hr_status open_another(hr_device device, hr_allocator *out)
{
	return create_allocator(device, front.devices(), out);
}

hr_status open_allocator(hr_device device, const Settings &given, const FrontTable &table)
{
	if (!layout_is_known()) return HR_UNSUPPORTED; // a version of PyTorch whose DataPtr has another layout
	keep_settings(given);
	hr_status status = create_allocator(device, table.devices(), &allocator);
	if (status) return status;
	front = table;
	if (settings.movable) movable_bytes = settings.movable;
	lms_enabled = settings.lms != 0;
	verifies = settings.verify != 0;
	register_callbacks();
	return HR_OK;
}

} // namespace headroom

// ---- what Python calls ----

extern "C" {

HR_API uint64_t headroom_torch_allocator(void)
{
	return headroom::allocator.id;
}

// 0: nothing was allocated on the device.
HR_API uint64_t headroom_torch_allocator_of(int device)
{
	return device >= 0 && device < headroom::front.devices() ? headroom::front.allocator(static_cast<c10::DeviceIndex>(device)).id : 0;
}

// Ends the step of each device that is in use, and begins the next.
HR_API hr_status headroom_torch_step(void)
{
	static std::mutex lock;
	static std::vector<bool> begun;
	std::lock_guard<std::mutex> guard(lock);
	begun.resize(static_cast<size_t>(headroom::front.devices()));
	for (size_t i = 0; i < begun.size(); i++) {
		hr_allocator of = headroom::front.allocator(static_cast<c10::DeviceIndex>(i));
		hr_status status = of.id && begun[i] ? hr_step_end(of) : HR_OK;
		if (of.id && !status) status = hr_step_begin(of);
		if (status) return status;
		begun[i] = of.id != 0;
	}
	return HR_OK;
}

HR_API void headroom_torch_watch_ops(int on)
{
	headroom::watch_ops(on != 0);
}

// A scope of HR_NAME_NONE forgets the module.
HR_API void headroom_torch_set_module(uint64_t module, hr_name scope)
{
	auto &known = headroom::modules();
	std::lock_guard<std::mutex> guard(known.lock);
	if (scope == HR_NAME_NONE) known.scopes.erase(module);
	else known.scopes[module] = scope;
}

// The forward of a module begins. 0: done; 1: done, and it is the outermost one; 2: its scope is not known, and nothing was done.
HR_API int headroom_torch_enter(uint64_t module)
{
	using namespace headroom;
	static const hr_name activations = hr_name_intern("activations"), gradients = hr_name_intern("gradients");
	hr_name scope;
	{
		std::lock_guard<std::mutex> guard(modules().lock);
		auto found = modules().scopes.find(module);
		if (found == modules().scopes.end()) return 2;
		scope = found->second;
	}
	entered.push_back({module, names()});
	names().scope = scope;
	names().tag = activations;
	return entered.size() == 1 && entered.back().before.tag != gradients; // in a backward pass, modules run again for a checkpoint
}

// The forward of a module ends, and so do those inside it that raised an exception before their hook was called.
HR_API void headroom_torch_leave(uint64_t module)
{
	using namespace headroom;
	static const hr_name activations = hr_name_intern("activations"), inputs = hr_name_intern("inputs");
	for (bool found = false; !entered.empty() && !found; entered.pop_back()) {
		found = entered.back().module == module;
		names() = entered.back().before;
		if (names().tag == inputs) names().tag = activations; // what follows a forward, such as the loss, is part of it
	}
}

HR_API hr_name headroom_torch_set_tag(hr_name tag)
{
	hr_name before = headroom::names().tag;
	headroom::names().tag = tag;
	return before;
}

// Names the memory of a storage after its allocation. HR_NAME_NONE keeps a name; memory that is not Headroom's is left alone. Not an op, because
// an op would restore an evicted tensor.
HR_API void headroom_torch_name(c10::StorageImpl *storage, hr_name scope, hr_name tag)
{
	headroom::Record *record = headroom::record_of(storage);
	const c10::DataPtr &data = storage->_mutable_data_ptr_no_checks();
	hr_status ignored = HR_OK;
	if (record) ignored = hr_tensor_set_names(record->tensor, scope, tag);
	else if (data.get() && data.device().type() == headroom::front.type)
		ignored = hr_allocation_set_names(headroom::front.allocator(headroom::index_of(data.device())), data.get(), scope, tag);
	(void)ignored;
}

// The number of ops that wrote what they said they read; the message of the first one in [text], of [capacity] bytes.
HR_API int64_t headroom_torch_violations(char *text, size_t capacity)
{
	std::string first;
	int64_t count = headroom::unpin_failures(&first);
	snprintf(text, capacity, "%s", first.c_str());
	return count;
}

HR_API int64_t headroom_torch_ops_on_host(void)
{
	return headroom::ops_on_host();
}

HR_API int64_t headroom_torch_pinned_records(void)
{
	headroom::collectives_release();
	return headroom::pinned_records();
}

}

// Tensors reach C++ as arguments of these ops. They have no kernel for a device, because they do not compute.
static headroom::Record *record_of_tensor(const at::Tensor &tensor)
{
	if (!tensor.defined() || !tensor.has_storage()) return nullptr;
	return headroom::record_of(tensor.storage().unsafeGetStorageImpl());
}

static void keep(const std::vector<at::Tensor> &tensors)
{
	for (const at::Tensor &tensor : tensors) {
		headroom::Record *record = record_of_tensor(tensor);
		hr_status status = record ? headroom::keep_record(record) : HR_OK;
		if (status) headroom::throw_status(status);
	}
}

// For Python code that reads or writes a tensor's memory between the two calls. The result identifies the pin: meanwhile the storage may get other
// memory, as in resize_.
static int64_t hold(const at::Tensor &tensor)
{
	headroom::Record *record = record_of_tensor(tensor);
	hr_access access = HR_WRITE;
	hr_status status = record ? headroom::pin_records(&record, &access, 1) : HR_OK;
	if (status) headroom::throw_status(status);
	return reinterpret_cast<int64_t>(record);
}

static void let_go(int64_t held)
{
	auto *record = reinterpret_cast<headroom::Record *>(held);
	if (record) headroom::unpin_records(&record, 1);
}

// As arguments of an op, the results of a section become storages that can move.
static void end_section(const std::vector<at::Tensor> &)
{
	headroom::section_end();
}

// All tensors in a value of TorchScript, such as a module.
static std::vector<at::Tensor> tensors_of(const c10::IValue &value)
{
	std::vector<at::Tensor> tensors;
	value.visit([&](const c10::IValue &part) {
		if (part.isTensor() && part.toTensor().defined()) tensors.push_back(part.toTensor());
		return false;
	});
	return tensors;
}

// A number that tells its storage apart from all others that exist, wherever its contents are.
static int64_t identity(const at::Tensor &tensor)
{
	headroom::Record *record = record_of_tensor(tensor);
	if (record) return reinterpret_cast<int64_t>(headroom::record_identity(record));
	return tensor.has_storage() ? reinterpret_cast<int64_t>(tensor.storage().data()) : 0;
}

TORCH_LIBRARY(headroom, library)
{
	library.def("identity(Tensor tensor) -> int", identity);
	library.def("keep(Tensor[] tensors) -> ()", keep);
	library.def("hold(Tensor tensor) -> int", hold);
	library.def("let_go(int held) -> ()", let_go);
	library.def("tensors_of(Any value) -> Tensor[]", tensors_of);
	library.def("section_begin(Tensor[] arguments) -> ()", headroom::section_begin);
	library.def("section_end(Tensor[] results) -> ()", end_section);
}
