// cuda_lms.cpp - Large Model Support of the CUDA front without a card (fake_cuda_runtime.h): movable tensors and CUDA graphs.
//
// Ops are registered as PyTorch's are. Their kernels run on the calling thread, after what the engine has queued for their stream; those of a captured
// stream run when the graph is replayed, at the addresses that they had during the capture. There are two GPUs.
#include "fake_cuda_runtime.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <headroom_backend.h>

#include <cerrno>
#include <functional>

extern "C" {
int64_t headroom_torch_pinned_records(void);
void hr_fault_os_install(void); // tests/fault_os.h
void hr_fault_os_fail_nth(uint64_t n, bool forever, int error);
uint64_t hr_fault_os_calls(void);
}

// ---- ops ----

struct Graph {
	std::vector<std::function<void()>> kernels;
	void replay() const
	{
		for (const auto &kernel : kernels) kernel();
	}
};
static Graph *recorded; // by the capture that is under way

static hr_device device_of(c10::DeviceIndex index)
{
	hr_device device;
	MUST(hr_device_find(("GPU:" + std::to_string(int(index))).c_str(), &device) == HR_OK);
	return device;
}

static void launch(c10::Device on, std::function<void()> kernel)
{
	cudaStream_t stream = c10::cuda::getCurrentCUDAStream(on.index()).stream();
	hr_device device = device_of(on.index());
	if (capturing.count(stream)) {
		MUST(recorded && !numbers.count({device.id, reinterpret_cast<uint64_t>(stream)})); // the engine knows no captured stream
		recorded->kernels.push_back(std::move(kernel));
		return;
	}
	auto number = numbers.find({device.id, reinterpret_cast<uint64_t>(stream)});
	TORCH_CHECK(hr_stream_synchronize(device, number == numbers.end() ? HR_STREAM_DEFAULT : number->second) == HR_OK, hr_last_message());
	kernel();
}

static at::Tensor make_tensor(size_t bytes)
{
	c10::Storage storage(c10::Storage::use_byte_size_t(), bytes, allocator->allocate(bytes), allocator, false);
	auto tensor = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CUDA), caffe2::TypeMeta::Make<uint8_t>());
	tensor.unsafeGetTensorImpl()->set_sizes_contiguous({int64_t(bytes)});
	return tensor;
}

static unsigned char *bytes_of(const at::Tensor &tensor) { return static_cast<unsigned char *>(tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get()); }
// For kernels: throws if the op could not be given its inputs.
static unsigned char *data_of(const at::Tensor &tensor) { return static_cast<unsigned char *>(tensor.mutable_data_ptr()); }
static size_t size_of(const at::Tensor &tensor) { return static_cast<size_t>(tensor.unsafeGetTensorImpl()->numel()); }

static void kernel_fill(const at::Tensor &x, int64_t value)
{
	launch(x.device(), [at = data_of(x), size = size_of(x), value] { memset(at, int(value), size); });
}

static at::Tensor kernel_add(const at::Tensor &x, const at::Tensor &y)
{
	c10::cuda::CUDAGuard guard(x.device());
	at::Tensor sum = make_tensor(size_of(x));
	launch(x.device(), [a = data_of(x), b = data_of(y), to = data_of(sum), size = size_of(x)] {
		for (size_t i = 0; i < size; i += 512) memset(to + i, a[i] + b[i], 512);
	});
	return sum;
}

static int64_t kernel_read(const at::Tensor &x)
{
	int64_t value = -1;
	launch(x.device(), [&, at = data_of(x), size = size_of(x)] {
		for (size_t i = 1; i < size; i++) must(at[i] == at[0], "all bytes of a tensor are equal", __LINE__);
		value = at[0];
	});
	return value;
}

// As PyTorch copies between GPUs: on the stream of the source, before and after which that of the target waits.
static void kernel_copy(const at::Tensor &to, const at::Tensor &from)
{
	TORCH_CHECK(hr_stream_synchronize(device_of(to.device().index()), HR_STREAM_DEFAULT) == HR_OK, hr_last_message());
	launch(from.device(), [to = data_of(to), at = data_of(from), size = size_of(from)] { memcpy(to, at, size); });
}

TORCH_LIBRARY(check, library)
{
	library.def("copy(Tensor(a!) to, Tensor source) -> ()");
	library.def("fill(Tensor(a!) x, int value) -> ()");
	library.def("add(Tensor x, Tensor y) -> Tensor");
	library.def("read(Tensor x) -> int");
}

TORCH_LIBRARY_IMPL(check, CUDA, library)
{
	library.impl("copy", kernel_copy);
	library.impl("fill", kernel_fill);
	library.impl("add", kernel_add);
	library.impl("read", kernel_read);
}

template <typename Signature> static auto op(const char *name)
{
	return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}
static void fill(const at::Tensor &x, int64_t value) { op<void(const at::Tensor &, int64_t)>("check::fill").call(x, value); }
static void copy(const at::Tensor &to, const at::Tensor &from) { op<void(const at::Tensor &, const at::Tensor &)>("check::copy").call(to, from); }
static at::Tensor add(const at::Tensor &x, const at::Tensor &y) { return op<at::Tensor(const at::Tensor &, const at::Tensor &)>("check::add").call(x, y); }
static int64_t value_of(const at::Tensor &x) { return op<int64_t(const at::Tensor &)>("check::read").call(x); }

static at::Tensor filled(size_t bytes, int64_t value)
{
	at::Tensor tensor = make_tensor(bytes);
	fill(tensor, value);
	return tensor;
}

static hr_lms_stats lms_stats(c10::DeviceIndex device = 0)
{
	hr_lms_stats stats;
	hr_lms_stats_init(&stats);
	MUST(hr_lms_get_stats(hr_allocator{headroom_torch_allocator_of(device)}, &stats) == HR_OK);
	return stats;
}

static int64_t evictions(c10::DeviceIndex device = 0) { return lms_stats(device).num_evictions; }

static int64_t reserved() { return stat(allocator->getDeviceStats(0).reserved_bytes).current; }

constexpr size_t LIMIT = 96 * MIB, SIZE = 8 * MIB;

// More than fits, so that whatever can be evicted was evicted since.
static std::vector<at::Tensor> crowd()
{
	std::vector<at::Tensor> tensors;
	for (int i = 0; i < 16; i++) tensors.push_back(filled(SIZE, i));
	return tensors;
}

static std::vector<at::Tensor> crowd_on(c10::DeviceIndex device)
{
	c10::cuda::CUDAGuard guard(device);
	return crowd();
}

static void check_crowd(const std::vector<at::Tensor> &tensors)
{
	c10::DeviceIndex device = tensors[0].device().index();
	int64_t before = evictions(device);
	for (size_t i = 0; i < tensors.size(); i++) MUST(value_of(tensors[i]) == int64_t(i));
	MUST(evictions(device) > before);
}

// ---- the checks ----

// With Large Model Support: blocks of 1 MiB and more are tensors of the engine.
static void movable_tensors_are_counted_and_freed()
{
	int64_t base = allocated();
	c10::DataPtr a = allocator->allocate(4 * MIB), small = allocator->allocate(KIB);
	MUST(allocated() == base + int64_t(4 * MIB + KIB));
	a.clear();
	small.clear();
	MUST(allocated() == base);
	void *raw = allocator->raw_allocate(4 * MIB); // the deleter of a block and that of the allocator may differ
	MUST(allocated() == base + int64_t(4 * MIB));
	allocator->raw_deallocate(raw);
	MUST(allocated() == base);
	{
		c10::cuda::CUDAStreamGuard guard(c10::cuda::getStreamFromExternal(external_stream(), 0));
		c10::DataPtr b = allocator->allocate(4 * MIB);
		MUST(allocated() == base + int64_t(4 * MIB));
	}
	MUST(allocated() == base);
	allocator->setMemoryFraction(0.5, 0);
	allocator->setMemoryFraction(1, 0);
	MUST(message_of([] { allocator->allocate(1ull << 40); }).find("out of memory") != std::string::npos);
}

static void streams_recorded_for_a_movable_tensor_do_not_outlive_it()
{
	int64_t base = allocated();
	c10::DataPtr movable = allocator->allocate(4 * MIB);
	void *address = movable.get();
	allocator->recordStream(movable, c10::cuda::getStreamFromExternal(external_stream(), 0));
	movable.clear();
	MUST(allocated() == base);
	std::vector<c10::DataPtr> small; // blocks that do not move, until one has the address
	while (small.empty() || small.back().get() != address) {
		MUST(small.size() < 100);
		small.push_back(allocator->allocate(512 * KIB));
	}
	small.clear();
	MUST(allocated() == base); // a block that an external stream used is freed later
}


static void a_graph_keeps_what_its_ops_use()
{
	const MempoolId_t id{0, 20};
	int64_t base = allocated(), pinned = headroom_torch_pinned_records();
	Graph graph;
	{
		at::Tensor x = filled(SIZE, 3), y = filled(SIZE, 4), sum, small;
		std::vector<at::Tensor> others = crowd(); // x and y are evicted
		c10::cuda::CUDAStream stream = c10::cuda::getStreamFromPool();
		{
			c10::cuda::CUDAStreamGuard guard(stream);
			MUST(value_of(others[0]) == 0); // the engine knows the stream before it is captured
		}
		recorded = &graph;
		{
			Capture capture(id, stream);
			sum = add(x, y);
			at::Tensor more = add(sum, x);
			small = add(more, y);
		}
		recorded = nullptr;
		MUST(headroom_torch_pinned_records() == pinned + 2);
		unsigned char *at = bytes_of(x);
		for (int turn = 0; turn < 3; turn++) {
			check_crowd(others);
			fill(x, turn);
			check_crowd(others);
			graph.replay();
			MUST(bytes_of(x) == at && value_of(sum) == turn + 4 && value_of(small) == turn + 4 + turn + 4 && value_of(y) == 4);
			MUST(reserved() <= int64_t(LIMIT));
		}
		c10::cuda::CUDAStreamGuard guard(stream); // gets a number again
		fill(x, 9);
		MUST(value_of(x) == 9);
	}
	MUST(headroom_torch_pinned_records() == pinned);
	MUST(allocated() == base);
	allocator->releasePool(0, id);
	allocator->emptyCache({0, 0});
	MUST(pool_bytes(id) == 0);
}

static void a_graph_and_tensors_share_the_limit()
{
	const MempoolId_t id{0, 21};
	int64_t base = allocated();
	Graph graph;
	at::Tensor x = filled(SIZE, 1);
	std::vector<at::Tensor> others = crowd(), results;
	recorded = &graph;
	{
		Capture capture(id);
		for (int i = 0; i < 6; i++) results.push_back(add(i ? results.back() : x, x)); // 48 MiB, for which tensors are evicted
		MUST(pool_bytes(id) == 60 * MIB && reserved() <= int64_t(LIMIT));
		int64_t in_snapshot = 0;
		for (const auto &segment : allocator->snapshot().segments) in_snapshot += int64_t(segment.total_size);
		MUST(in_snapshot == reserved());
		std::string text = message_of([] { make_tensor(LIMIT); });
		MUST(text.find("out of memory") != std::string::npos);
	}
	recorded = nullptr;
	check_crowd(others);
	graph.replay();
	check_crowd(others);
	MUST(value_of(results.back()) == 7 && reserved() <= int64_t(LIMIT));
	MUST(allocated() - base >= int64_t(48 * MIB + SIZE) && allocated() <= int64_t(LIMIT));
	results.clear();
	others.clear();
	x.reset();
	allocator->releasePool(0, id);
	allocator->emptyCache({0, 0});
	MUST(allocated() == base && pool_bytes(id) == 0);
	check_crowd(crowd()); // all of the limit is there again
}

// torch.compile: kernels of a compiled graph are not ops, and its arguments are known from the section.
static void a_graph_keeps_the_arguments_of_a_section()
{
	const MempoolId_t id{0, 22};
	int64_t pinned = headroom_torch_pinned_records();
	auto begin = op<void(const std::vector<at::Tensor> &)>("headroom::section_begin"), end = op<void(const std::vector<at::Tensor> &)>("headroom::section_end");
	{
		at::Tensor x = filled(SIZE, 5), inside = filled(SIZE, 6);
		std::vector<at::Tensor> others = crowd();
		begin.call({x});
		{
			Capture capture(id);
		}
		end.call({});
		recorded = new Graph;
		{
			Capture capture(id);
			begin.call({inside});
			end.call({});
		}
		delete recorded;
		recorded = nullptr;
		unsigned char *at = bytes_of(x), *at_inside = bytes_of(inside);
		MUST(headroom_torch_pinned_records() == pinned + 2);
		check_crowd(others);
		MUST(bytes_of(x) == at && bytes_of(inside) == at_inside && value_of(x) == 5 && value_of(inside) == 6);
	}
	MUST(headroom_torch_pinned_records() == pinned);
	allocator->releasePool(0, id);
	allocator->releasePool(0, id);
}

static void tensors_are_freed_and_moved_during_a_capture()
{
	const MempoolId_t id{0, 23};
	int64_t base = allocated();
	Graph graph;
	{
		std::vector<at::Tensor> others = crowd();
		at::Tensor x = filled(SIZE, 2), gone = filled(SIZE, 3), after;
		recorded = &graph;
		{
			Capture capture(id);
			after = add(x, x);
			gone.reset();
			std::thread other([&] { // its stream is not captured
				c10::cuda::CUDAStreamGuard guard(c10::cuda::getStreamFromPool());
				check_crowd(others);
				at::Tensor made = filled(SIZE, 7);
				MUST(value_of(made) == 7);
			});
			other.join();
		}
		recorded = nullptr;
		check_crowd(others);
		graph.replay();
		MUST(value_of(after) == 4);
	}
	allocator->releasePool(0, id);
	allocator->emptyCache({0, 0});
	MUST(allocated() == base);
}

static void a_capture_that_finds_no_room_raises()
{
	const MempoolId_t id{0, 24};
	int64_t base = allocated(), pinned = headroom_torch_pinned_records();
	Graph graph;
	{
		std::vector<at::Tensor> kept, others = crowd();
		recorded = &graph;
		std::string text;
		{
			Capture capture(id);
			text = message_of([&] {
				for (const at::Tensor &tensor : others) kept.push_back(add(tensor, tensor)); // twice the bytes of others, none of which may move
			});
		}
		recorded = nullptr;
		MUST(text.find("out of memory") != std::string::npos);
		kept.clear();
		others.clear();
		check_crowd(crowd());
	}
	MUST(headroom_torch_pinned_records() == pinned);
	allocator->releasePool(0, id);
	allocator->emptyCache({0, 0});
	MUST(allocated() == base);
}

static void a_pool_of_one_thread_takes_nothing_of_others()
{
	const MempoolId_t id{0, 25};
	auto begin = std::this_thread::get_id();
	allocator->beginAllocateToPool(0, id, [begin](cudaStream_t) { return std::this_thread::get_id() == begin; });
	at::Tensor in_pool = filled(SIZE, 1);
	MUST(pool_bytes(id) == 20 * MIB);
	std::thread other([] { check_crowd(crowd()); });
	other.join();
	allocator->endAllocateToPool(0, id);
	MUST(value_of(in_pool) == 1 && pool_bytes(id) == 20 * MIB);
	in_pool.reset();
	allocator->releasePool(0, id);
	allocator->emptyCache({0, 0});
	MUST(pool_bytes(id) == 0);
}

// ---- several GPUs ----

static void every_gpu_evicts_to_its_own_limit()
{
	int64_t base = allocated(1), first = evictions(0), pinned = headroom_torch_pinned_records();
	{
		std::vector<at::Tensor> others = crowd_on(1);
		check_crowd(others); // the current device is 0
		MUST(evictions(0) == first && stat(allocator->getDeviceStats(1).reserved_bytes).current <= int64_t(LIMIT));
		at::Tensor sum = add(others[3], others[4]);
		MUST(sum.device().index() == 1 && value_of(sum) == 7);
		std::vector<at::Tensor> own = crowd();
		check_crowd(own);
		check_crowd(others);
	}
	MUST(allocated(1) == base && headroom_torch_pinned_records() == pinned);
	c10::cuda::CUDAGuard guard(1);
	void *raw = allocator->raw_allocate(4 * MIB);
	size_t size = 0;
	MUST(allocated(1) == base + int64_t(4 * MIB) && allocator->getBaseAllocation(raw, &size) == raw && size == 4 * MIB);
	allocator->raw_deallocate(raw);
	MUST(allocated(1) == base);
	int64_t ooms[] = {allocator->getDeviceStats(0).num_ooms, allocator->getDeviceStats(1).num_ooms};
	MUST(message_of([] { allocator->allocate(1ull << 40); }).find("out of memory") != std::string::npos);
	MUST(allocator->getDeviceStats(0).num_ooms == ooms[0] && allocator->getDeviceStats(1).num_ooms == ooms[1] + 1);
}

static void a_copy_between_gpus_restores_both_sides()
{
	int64_t pinned = headroom_torch_pinned_records();
	std::vector<at::Tensor> here = crowd(), there = crowd_on(1);
	int64_t before[] = {evictions(0), evictions(1)};
	for (size_t i = 0; i < here.size(); i++) copy(there[i], here[(i + 5) % here.size()]);
	for (size_t i = 0; i < here.size(); i++) MUST(value_of(there[i]) == int64_t((i + 5) % here.size()));
	for (size_t i = 0; i < here.size(); i++) copy(here[i], there[i]);
	for (size_t i = 0; i < here.size(); i++) MUST(value_of(here[i]) == int64_t((i + 5) % here.size()));
	MUST(evictions(0) > before[0] && evictions(1) > before[1]);
	MUST(headroom_torch_pinned_records() == pinned);
}

// The op gets the host copy of the source, and the target as it is.
static void a_copy_from_a_gpu_without_room_reads_the_host_copy()
{
	int64_t pinned = headroom_torch_pinned_records();
	auto keep = op<void(const std::vector<at::Tensor> &)>("headroom::keep");
	{
		std::vector<at::Tensor> there = crowd_on(1), kept;
		at::Tensor target = filled(SIZE, 99);
		{
			c10::cuda::CUDAGuard guard(1);
			std::string text = message_of([&] {
				for (int i = 0; i < 16; i++) {
					kept.push_back(filled(SIZE, 50));
					keep.call({kept.back()});
				}
			});
			MUST(text.find("out of memory") != std::string::npos);
		}
		for (size_t i = 0; i < there.size(); i++) {
			copy(target, there[i]);
			MUST(value_of(target) == int64_t(i));
		}
	}
	MUST(headroom_torch_pinned_records() == pinned);
	check_crowd(crowd_on(1));
}

static void a_graph_of_one_gpu_keeps_nothing_of_another()
{
	const MempoolId_t id{0, 26};
	int64_t pinned = headroom_torch_pinned_records(), base = allocated(1);
	Graph graph;
	{
		std::vector<at::Tensor> here = crowd(), there = crowd_on(1);
		at::Tensor x = there[2], y = there[3], sum;
		recorded = &graph;
		{
			Capture capture(id, c10::cuda::getStreamFromPool(false, 1));
			sum = add(x, y);
			check_crowd(here); // not captured
		}
		recorded = nullptr;
		MUST(headroom_torch_pinned_records() == pinned + 2);
		unsigned char *at = bytes_of(x);
		check_crowd(there);
		MUST(bytes_of(x) == at);
		graph.replay();
		MUST(value_of(sum) == 5);
	}
	allocator->releasePool(1, id);
	allocator->emptyCache({0, 0});
	MUST(allocated(1) == base && headroom_torch_pinned_records() == pinned);
}

static void sections_have_arguments_of_several_gpus()
{
	auto begin = op<void(const std::vector<at::Tensor> &)>("headroom::section_begin"), end = op<void(const std::vector<at::Tensor> &)>("headroom::section_end");
	int64_t pinned = headroom_torch_pinned_records();
	std::vector<at::Tensor> here = crowd(), there = crowd_on(1);
	begin.call({here[1], there[2]});
	unsigned char *first = bytes_of(here[1]), *second = bytes_of(there[2]);
	check_crowd(here);
	check_crowd(there);
	MUST(bytes_of(here[1]) == first && bytes_of(there[2]) == second && first[0] == 1 && second[0] == 2);
	end.call({});
	MUST(headroom_torch_pinned_records() == pinned);
}

static void peers_access_what_is_mapped()
{
	uint32_t first = device_of(0).id, second = device_of(1).id;
	MUST(accessible.empty() && peers.empty());
	for (int i = 0; i < 2; i++) allocator->enablePeerAccess(1, 0);
	MUST((accessible == std::set<std::pair<uint32_t, uint32_t>>{{first, second}}) && (peers == std::set<std::pair<int, int>>{{1, 0}}));
	allocator->enablePeerAccess(0, 1);
	MUST(accessible.count({second, first}) && accessible.size() == 2 && peers.size() == 2);
	MUST(message_of([] { allocator->enablePeerAccess(0, 5); }).find("GPU:5") != std::string::npos);
	std::vector<char> from(MIB, 7), to(MIB);
	int before = peer_copies;
	MUST(allocator->memcpyAsync(to.data(), 1, from.data(), 0, MIB, nullptr, true) == cudaSuccess && peer_copies == before && to == from);
	to[0] = 0;
	MUST(allocator->memcpyAsync(to.data(), 1, from.data(), 0, MIB, nullptr, false) == cudaSuccess && peer_copies == before + 1 && to == from);
	MUST(allocator->memcpyAsync(to.data(), 1, from.data(), 1, MIB, nullptr, false) == cudaSuccess && peer_copies == before + 1);
}

static void threads_use_gpus_of_their_own()
{
	std::vector<std::thread> threads;
	for (c10::DeviceIndex device : {0, 1, 1})
		threads.emplace_back([device] {
			c10::cuda::CUDAGuard guard(device);
			std::vector<at::Tensor> tensors;
			for (int turn = 0; turn < 3; turn++) {
				for (int i = 0; i < 10; i++) tensors.push_back(filled(SIZE, i));
				for (int i = 0; i < 10; i++) MUST(value_of(tensors[size_t(i)]) == i);
				tensors.clear();
			}
		});
	for (auto &thread : threads) thread.join();
}

static void a_step_is_one_of_all_gpus()
{
	MUST(headroom_torch_step() == HR_OK); // the first one begins
	int64_t steps[] = {lms_stats(0).num_steps, lms_stats(1).num_steps};
	for (int i = 0; i < 2; i++) MUST(headroom_torch_step() == HR_OK);
	MUST(lms_stats(0).num_steps == steps[0] + 2 && lms_stats(1).num_steps == steps[1] + 2);
	MUST(headroom_torch_allocator_of(2) == 0 && headroom_torch_allocator_of(-1) == 0);
}

// ---- faults ----

struct Faults {
	const char *name;
	void (*fail)(uint64_t nth);
	uint64_t (*calls)();
	uint64_t least; // calls of a step
};

constexpr Faults FAULTS[] = {
	{"device", [](uint64_t nth) { hr_backend_fail_nth(nth, false, HR_DEVICE_ERROR); }, hr_backend_calls, 100},
	{"device memory", [](uint64_t nth) { hr_backend_fail_nth(nth, false, HR_OUT_OF_MEMORY); }, hr_backend_calls, 100},
	{"system", [](uint64_t nth) { hr_fault_os_fail_nth(nth, false, ENOMEM); }, hr_fault_os_calls, 1},
	{"runtime", [](uint64_t nth) { runtime_calls = 0; fails_at = long(nth); }, [] { return uint64_t(runtime_calls.load()); }, 2},
};

// Every input is used, results of one GPU go to the other, and memory passes between streams. [here] is only read.
static void faulty_step(const std::vector<at::Tensor> &here, const std::vector<at::Tensor> &there)
{
	cudaStream_t raw = external_stream();
	c10::cuda::CUDAStream external = c10::cuda::getStreamFromExternal(raw, 0), pooled = c10::cuda::getStreamFromPool();
	c10::DataPtr small = allocator->allocate(64 * KIB), made;
	allocator->recordStream(small, external);
	allocator->recordStream(small, pooled);
	{
		c10::cuda::CUDAStreamGuard guard(external);
		made = allocator->allocate(3 * KIB);
	}
	for (size_t i = 0; i < here.size(); i++) {
		at::Tensor sum = add(here[i], here[(i + 3) % here.size()]);
		copy(there[i], sum);
	}
	for (size_t i = 0; i < there.size(); i++) MUST(value_of(there[i]) == int64_t(i + (i + 3) % here.size()));
}

// All tensors are evicted, and their memory is unmapped, so that the next step maps it again.
static void evict_all()
{
	for (int device = 0; device < 2; device++) {
		hr_allocator of{headroom_torch_allocator_of(device)};
		MUST(hr_lms_reclaim_inactive(of, 0, nullptr) == HR_OK && hr_allocator_trim(of, nullptr) == HR_OK);
	}
}

static void check_all()
{
	for (int device = 0; device < 2; device++) {
		hr_allocator of{headroom_torch_allocator_of(device)};
		if (hr_allocator_check(of) || hr_lms_check(of)) must(false, hr_last_message(), __LINE__);
	}
}

static void each_call_of_a_step_may_fail(const Faults &faults, bool every, const std::vector<at::Tensor> &here, const std::vector<at::Tensor> &there)
{
	uint64_t raised = 0, steps = 0, reached = 0, missed = 0, stride = every || faults.least < 100 ? 1 : 11;
	for (uint64_t nth = 1; missed < 3;) { // not each step makes as many calls
		steps++;
		evict_all();
		faults.fail(nth);
		try {
			faulty_step(here, there);
		} catch (const c10::Error &) {
			raised++;
		}
		uint64_t calls = faults.calls();
		faults.fail(0);
		if (calls >= nth) {
			reached = nth;
			nth += stride;
			missed = 0;
		} else {
			missed++;
		}
		check_all();
		faulty_step(here, there);
		for (size_t i = 0; i < here.size(); i++) MUST(value_of(here[i]) == int64_t(i));
	}
	fprintf(stderr, "  %s: %llu steps, %llu raised, up to call %llu\n", faults.name, (unsigned long long)steps, (unsigned long long)raised,
		(unsigned long long)reached);
	MUST(reached >= faults.least);
}

// Every Nth call fails once during a step: the step is right or raises, its inputs are intact, and the next step is right.
static void a_step_survives_each_call_that_fails()
{
	constexpr size_t SMALL = MIB, LIMIT_OF_FAULTS = 10 * MIB;
	const char *scale = getenv("HR_TEST_SCALE");
	int64_t pinned = headroom_torch_pinned_records(), base[] = {allocated(0), allocated(1)};
	double before = allocator->getMemoryFraction(0);
	for (c10::DeviceIndex device : {0, 1}) MUST(hr_lms_set_limit(hr_allocator{headroom_torch_allocator_of(device)}, LIMIT_OF_FAULTS) == HR_OK);
	{
		std::vector<at::Tensor> here, there;
		for (int i = 0; i < 12; i++) here.push_back(filled(SMALL, i));
		{
			c10::cuda::CUDAGuard guard(1);
			for (int i = 0; i < 12; i++) there.push_back(filled(SMALL, 0));
		}
		for (int i = 0; i < 3; i++) faulty_step(here, there);
		for (const Faults &faults : FAULTS) each_call_of_a_step_may_fail(faults, scale && atof(scale) >= 3, here, there);
		MUST(evictions(0) > 1000 && evictions(1) > 1000);
	}
	allocator->emptyCache({0, 0});
	for (c10::DeviceIndex device : {0, 1}) {
		MUST(hr_lms_set_limit(hr_allocator{headroom_torch_allocator_of(device)}, 0) == HR_OK);
		MUST(allocated(device) == base[device]);
	}
	MUST(headroom_torch_pinned_records() == pinned && allocator->getMemoryFraction(0) == before);
}

int main()
{
	hr_fault_os_install(); // before the first device
	Settings settings;
	settings.limit = LIMIT;
	settings.lms = 1;
	start(settings);
	static const struct { const char *name; void (*run)(); } checks[] = {
#define CASE(name) {#name, name}
		CASE(movable_tensors_are_counted_and_freed), CASE(streams_recorded_for_a_movable_tensor_do_not_outlive_it), CASE(a_graph_keeps_what_its_ops_use),
		CASE(a_graph_and_tensors_share_the_limit), CASE(a_graph_keeps_the_arguments_of_a_section), CASE(tensors_are_freed_and_moved_during_a_capture),
		CASE(a_capture_that_finds_no_room_raises), CASE(a_pool_of_one_thread_takes_nothing_of_others), CASE(every_gpu_evicts_to_its_own_limit),
		CASE(a_copy_between_gpus_restores_both_sides), CASE(a_copy_from_a_gpu_without_room_reads_the_host_copy), CASE(a_graph_of_one_gpu_keeps_nothing_of_another),
		CASE(sections_have_arguments_of_several_gpus), CASE(peers_access_what_is_mapped), CASE(threads_use_gpus_of_their_own), CASE(a_step_is_one_of_all_gpus),
		CASE(a_step_survives_each_call_that_fails),
#undef CASE
	};
	for (const auto &check : checks) {
		fprintf(stderr, "%s\n", check.name);
		check.run();
		MUST(capture_mode == cudaStreamCaptureModeGlobal);
	}
	printf("ok\n");
	return 0;
}
