// plugin.h - what the parts of the PyTorch plug-in share.
//
//     context.cpp    settings, names of the calling thread, out-of-memory messages, the functions that Python calls
//     records.cpp    records of storages: allocation, adoption, pins, addresses, frees
//     ops.cpp        callbacks of PyTorch's record function: which storages an op uses, and for how long
//     recipes.cpp    how dropped results of ops are computed again
//     collectives.cpp tensors of torch.distributed, which are used after their op has returned
//     guard.cpp      addresses for storages that are not pinned
//     fork.cpp       tensors in the child of a fork
//     front_cpu.cpp  CPU tensors on Headroom's emulated device
//     front_cuda.cpp CUDA tensors; compiled only if PyTorch has CUDA and its headers are found
//
// Everything but the fronts is independent of the device. A front supplies a FrontTable and calls allocate() below.
//
// Life of a storage that can move, in the order in which PyTorch lets us see it:
//
//     1. allocate() creates an hr_tensor, pins it (the ALLOCATION PIN) and returns a DataPtr whose context is its address, because oneDNN and
//        cuBLAS take memory with raw_allocate, which requires that. Such a block never moves: it may not be a tensor.
//     2. An op has it as input or output, as the storage of a tensor. It is ADOPTED: the DataPtr's context becomes the Record. A map by address
//        alone would be wrong, because the address of an evicted tensor is soon another's.
//     3. When the outermost op that used its contents ends, the allocation pin is dropped. From now on the storage is pinned while an outermost
//        op uses it and can be evicted otherwise. While it is not pinned it points at its resting address (FrontTable).
//     4. PyTorch frees the DataPtr, perhaps inside an op that still pins it. Its pins are given up and the tensor is destroyed.
//
// Invariants:
//     1. A storage whose record has pins points at the tensor's address.
//     2. A record has as many pins as the engine counts for its tensor.
//     3. A record that is not adopted has its allocation pin.
//     4. A record is referenced by its DataPtr and by each outermost op that pins it.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/Allocator.h>
#include <c10/core/StorageImpl.h>
#include <headroom.h>

#include <atomic>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

namespace headroom {

// ---- the front ----

struct FrontTable {
	c10::DeviceType type;
	c10::DeviceIndex (*devices)();                        // of the process
	hr_allocator (*allocator)(c10::DeviceIndex device);   // id 0 = nothing was allocated on the device
	hr_stream (*stream)(c10::DeviceIndex device);         // the stream of the calling thread; HR_STREAM_HOST on the CPU
	// Where a storage points while it is not pinned. false: at an address without access, whether it was evicted or not, so that a use which no
	// op announced faults at once. true: at its memory, or at its host copy when it was evicted, so that such a read is slow and right.
	bool rests_on_copy;
	void (*synchronize)(c10::DeviceIndex device); // waits for the stream of the calling thread; nullptr = nothing to wait for
	hr_status (*wait_for_inputs)(hr_stream stream); // waits until an op may read what was queued on [stream]; nullptr = ops are queued there too
	// CUDA graphs; nullptr = the device has none.
	bool (*captured)(c10::DeviceIndex device); // whether the stream of the calling thread is captured into a graph
	const std::atomic<int> *captures;    // above 0 while one may be
	void (*swap_capture_mode)(int *mode); // which calls of CUDA are forbidden to the calling thread while a stream is captured
};

struct Settings {
	uint64_t limit;        // bytes; 0 = all of the device
	uint64_t movable;      // least bytes of a storage that can move; 0 = DEFAULT_MOVABLE_BYTES
	uint64_t host_limit;   // as in hr_lms_options, 0 = its default
	const char *spill_dir; // NULL = none
	const char *policy;    // NULL = the default
	int lms;
	int verify;
	int rests_on_copy; // CPU tensors: as FrontTable; for tests
	int recompute;     // RecomputeSetting
};

enum RecomputeSetting {
	RECOMPUTE_OFF = 0,
	RECOMPUTE_CHEAP = 1,  // results of ops are dropped and computed again where that is cheaper than moving them
	RECOMPUTE_ALWAYS = 2, // whatever it costs; for tests
};

// While a graph is captured, CUDA forbids calls that the engine has to make. On the calling thread they are allowed while this object exists.
class EngineCall {
public:
	EngineCall();
	~EngineCall();
	EngineCall(const EngineCall &) = delete;
	EngineCall &operator=(const EngineCall &) = delete;

private:
	bool swapped;
	int mode = 0;
};

// A resting address that nothing may access. guard_open() is called first; it returns false if the system has no addresses left.
bool guard_open();
void *guard_address(size_t bytes);

// True in the child of a fork, which must not call Headroom: it can use blocks, and tensors that are kept.
extern bool forked;
void handle_forks();

// The one front of the process, and the allocator of its first device. Set once, before the first allocation.
extern FrontTable front;
extern hr_allocator allocator;
inline bool is_captured_on(c10::DeviceIndex device)
{
	return front.captures && front.captures->load(std::memory_order_acquire) > 0 && front.captured(device);
}
inline c10::DeviceIndex index_of(c10::Device device) { return device.has_index() ? device.index() : c10::DeviceIndex(0); }
extern bool lms_enabled;
extern bool verifies; // settings.verify
extern RecomputeSetting recompute_setting; // RECOMPUTE_OFF without Large Model Support

// Storages below this size never move: pinning costs more than they could give. Blocks of 64 KiB and less come from pages of their own.
extern size_t movable_bytes;
constexpr size_t DEFAULT_MOVABLE_BYTES = 1 << 20;

// Creates the allocator on [device] and registers the callbacks. A failure leaves PyTorch as it was; hr_last_message() has the reason.
hr_status open_allocator(hr_device device, const Settings &settings, const FrontTable &table);
// Creates the allocator of another device, with the same settings.
hr_status open_another(hr_device device, hr_allocator *out);

// ---- the calling thread ----

// Variables of threads are __thread, which needs no call to initialize them at each access. Every op and allocation reads these.
struct ThreadNames {
	hr_name scope, tag;
	bool known; // the thread has its first tag: "gradients" on the threads of the backward pass of a GPU
};
extern __thread ThreadNames thread_names;
void begin_names();
inline ThreadNames &names()
{
	if (!thread_names.known) begin_names();
	return thread_names;
}

// The allocator of the thread's last call that failed, whose memory an out-of-memory message describes.
extern __thread hr_allocator failed_allocator;

// Throws c10::OutOfMemoryError, or c10::Error for another status, with the text of the thread's last failed call.
[[noreturn]] void throw_status(hr_status status);
[[noreturn]] void throw_text(hr_status status, const std::string &text); // the same with another text
std::string failure_text(hr_status status);

// ---- records ----

struct Record {
	hr_tensor tensor{};
	c10::DeviceIndex device = 0;
	void *address = nullptr;  // while pinned
	void *rest = nullptr;     // an address without access: its own for life, because programs tell storages apart by their address
	size_t bytes = 0;
	// The storage of the DataPtr, once adopted; a weak reference. Counted by hand: a strong one, even for a moment, may acquire Python's GIL.
	// Written under the lock in records.cpp, as what follows [in_recipe].
	std::atomic<c10::StorageImpl *> storage{nullptr};
	std::atomic<int> references{1};
	std::atomic<bool> allocation_pin{false};
	std::atomic<bool> used{false};   // an op has read or written its contents
	std::atomic<bool> listed{false}; // in the list of a thread's new records (ops.cpp)
	std::atomic<uint64_t> op{0};     // the outermost op that pinned it last, by number (ops.cpp)
	std::atomic<bool> op_writes{false}; // that pin allows writing
	std::atomic<uint64_t> written{0};   // the outermost op that said that it writes it last, by number
	std::atomic<bool> in_recipe{false}; // it has or had a recipe, or is or was an input of one: each write is a pin of its own, so that the engine knows
	// Guarded by the lock in records.cpp:
	int pins = 0;
	bool adopted = false;
	bool kept = false;        // resident for its life
	bool dead = false;        // PyTorch has freed it
	bool on_host = false;     // an op uses its host copy
	bool workspace = false;   // has that tag, because no op had it as a tensor

	~Record();
};

void record_release(Record *record);

// Whether the address is where set_address writes it, in the DataPtr of this PyTorch.
bool layout_is_known();

// Memory for PyTorch. Throws c10::OutOfMemoryError.
c10::DataPtr allocate(size_t bytes, c10::Device device);
// Frees what raw_allocate returned.
void free_block(void *address);
// The same if it is a tensor's; false, without any effect, if it is not.
bool free_unadopted(void *address);

// The record of a storage that Headroom allocated as a tensor, adopting it if it is seen for the first time; NULL for all others.
Record *record_of(c10::StorageImpl *storage);

// Pins [count] records, of any devices, all or none; accesses[i] is that of records[i].
hr_status pin_records(Record *const *records, const hr_access *accesses, size_t count);
// Unpins [records], and gives up the allocation pins of those of [fresh] that are adopted and whose contents were used. Releases all of them.
void unpin_records(Record *const *records, size_t count, Record *const *fresh = nullptr, size_t fresh_count = 0);

// Points the storage of an evicted record at its host copy, once that is complete, and keeps it evicted until end_on_host. False if it has no host copy
// in memory, or is not evicted. A reference is held meanwhile.
bool begin_on_host(Record *record);
void end_on_host(Record *record);

// Pins the tensor for as long as it lives: its address has left PyTorch.
hr_status keep_record(Record *record);
// The same for [count] records. Those before the first failure are kept.
hr_status keep_records(Record *const *records, size_t count);

// Its address without access, which no other storage has.
void *record_identity(Record *record);

// No other thread changes a record between the two calls, so that a fork finds them whole.
void records_lock();
void records_unlock();

// Records with at least one pin, for tests.
int64_t pinned_records();
// Unpins that failed: with settings.verify, ops that wrote what they said they read. *text receives the message of the first one.
int64_t unpin_failures(std::string *text);

// Gives up the pins of a record that no op uses, while its storage exists. Its memory can then be handed over.
void give_up_pins(Record *record);

// ---- recipes ----

// An op that gives the same results each time.
struct RepeatableOp {
	c10::OperatorHandle handle;
	int probability = -1;        // index of the argument that makes it draw random numbers if it is above 0; -1 = none
	int running[2] = {-1, -1};   // of arguments that it updates while the argument [training] is true
	int training = -1;
	bool is_convolution = false; // cuDNN may choose among several algorithms
	bool is_product = false;     // its time does not follow from the bytes that it reads and writes
	bool in_place = false;       // it changes its first argument, and returns it
	bool fills = false;          // in place, and the result does not depend on what the first argument held
	bool is_random = false;      // it always draws random numbers
	hr_name name = HR_NAME_NONE;
};

struct Recipe;
struct RecipeDeleter {
	void operator()(Recipe *recipe) const;
};
using PendingRecipe = std::unique_ptr<Recipe, RecipeDeleter>;

// NULL if the op is not repeatable. Never freed: called once for each op and thread.
const RepeatableOp *repeatable_op(const c10::FunctionSchema &schema);
// Whether its kernel does nothing but call other ops.
bool only_calls_ops(const c10::FunctionSchema &schema);
// Whether autocast has a kernel for an op of PyTorch, which only casts the arguments and calls the op again; and whether it is on now.
bool has_autocast(const c10::FunctionSchema &schema);
bool is_autocast();

// An op in place is about to begin: keeps the recipe of what it changes from ending. The record whose recipe is kept; NULL if there is none.
Record *hold_recipe(const RepeatableOp &op, uint64_t outermost_op, c10::ArrayRef<const c10::IValue> arguments);
// The op failed, or cannot be repeated.
void unhold_recipe(Record *record);
// The op begins, and its arguments are pinned. [held]: what hold_recipe returned. NULL if an argument cannot be kept.
PendingRecipe begin_recipe(const RepeatableOp &op, uint64_t outermost_op, c10::ArrayRef<const c10::IValue> arguments, Record *held);
// It has ended. [created]: the records that it created.
void end_recipe(PendingRecipe recipe, const std::vector<c10::IValue> &results, c10::ArrayRef<Record *> created);
// A resident record gets contents that its recipe does not compute.
void forget_recipe(Record *record);
// An op is about to write to a storage that is not a record's: ends the recipes that depend on it, and recomputes what they dropped.
hr_status end_recipes_of(c10::StorageImpl *storage);
// Whether the calling thread repeats an op.
bool is_repeating();
// The text of the exception with which an op that the thread repeated last failed; empty if there was none since the last call.
std::string take_failed_repeat();

// ---- ops ----

void register_callbacks();
// Whether PyTorch announces ops, so that allocations are named after them. Large Model Support always needs that; otherwise it is for recordings, because it
// takes 0.3 us for each op.
void watch_ops(bool on);
// Called by allocate: a record that the current op of the thread has created. Outside of ops it has no effect.
void op_allocated(Record *record);
// Ops that ran on host copies, because their inputs did not fit on the device.
int64_t ops_on_host();
// Throws if the current op of the thread could not be given its inputs. Called by allocate, because PyTorch swallows exceptions of callbacks.
void op_check();

// Code that uses memory without ops, between the two calls on one thread: a graph of torch.compile. Its arguments are pinned, and what the thread
// allocates meanwhile stays pinned until the end. Sections nest. Throws c10::OutOfMemoryError.
void section_begin(const std::vector<at::Tensor> &arguments);
void section_end();

// A capture is about to begin on the calling thread: what its sections and ops use is kept, because kernels without ops may use it. Throws as above.
void keep_in_use();

// ---- collectives ----

// If [outputs] of an op have a Work that is not complete, takes over one pin of each of [pins] and the records [fresh], with their references, until it
// is; both are then empty. [message]: the op is a send or a receive.
bool collective_begin(const std::vector<c10::IValue> &outputs, bool message, std::vector<Record *> &pins, std::vector<Record *> &fresh);
// Works that are not known to be complete.
extern std::atomic<size_t> pending_collectives;
// Unpins the records of complete collectives; true if there were any.
bool collectives_release();
// Called when memory is short: waits until a collective is complete. False if none is pending, or none completes.
bool collectives_wait();

} // namespace headroom
