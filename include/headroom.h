/* headroom.h - devices, allocators and statistics of Headroom, a memory manager for tensor programs.
 *
 * THE FIVE-MINUTE TOUR
 *
 *     #include <headroom.h>
 *     #include <stdio.h>
 *
 *     int main(void)
 *     {
 *         hr_allocator allocator;
 *         void *block;
 *         if (hr_allocator_get_default("GPU:0", &allocator) != HR_OK || hr_alloc_bytes(allocator, 1 << 20, &block) != HR_OK) {
 *             fprintf(stderr, "%s\n", hr_last_message());
 *             return 1;
 *         }
 *         printf("%lld bytes in use\n", (long long)hr_get_bytes_in_use(0));
 *         hr_free(allocator, block, HR_STREAM_DEFAULT);
 *         return hr_shutdown() == HR_OK ? 0 : 1;
 *     }
 *
 * Where no GPU is found, GPU:0 is emulated: its memory is host memory, with the pages, streams and link of a GPU.
 * hr_device_is_emulated() tells the two apart, and hr_cuda_check() reports why no GPU was found. HEADROOM_REQUIRE_CUDA=1 in the
 * environment disables the emulated GPU:0.
 *
 * INDEX
 *
 *     headroom.h            statuses            hr_last_message, hr_status_text
 *                           names and shapes    hr_name_intern, hr_shape_intern
 *                           devices             hr_device_find, hr_device_set_logical, hr_cuda_configure
 *                           streams, copies     hr_stream_create, hr_stream_copy, hr_stream_fill
 *                           allocators          hr_allocator_create, hr_allocator_register
 *                           blocks              hr_alloc, hr_free, hr_allocation_get_info
 *                           statistics          hr_get_bytes_in_use and the other getters, hr_device_get_stats, hr_stats_scope_begin
 *                           regions             hr_allocator_get_region, hr_allocator_visit
 *                           shutdown            hr_shutdown
 *     headroom_oom.h        why memory ran out  hr_name_scope_push, hr_allocator_get_holders, hr_allocator_would_fit, hr_oom_get_last
 *     headroom_lms.h        tensors             hr_tensor_create, hr_tensor_pin, hr_tensor_get_address, hr_lms_configure
 *     headroom_record.h     recording           hr_trace_start, hr_profiler_start, hr_stack_set
 *     headroom_backend.h    a new device        hr_backend_register
 *     headroom_runtime.h    ops and graphs      libheadroom_runtime
 *     headroom_analysis.h   reading traces      libheadroom_analysis
 *
 * headroom.h includes headroom_oom.h and headroom_lms.h.
 *
 * NAMES
 *
 * Functions are named hr_<object>_<verb>. A function that only returns a property of its argument may end in the property instead
 * of a verb (hr_value_rank). Verbs come in pairs: create and destroy for handles, init (and free) for structs of the caller, start
 * and stop for recordings, begin and end for parts of a run, push and pop for scopes, enter and leave for the session or graph that
 * a thread works in. Some names have no object: hr_alloc and hr_free, the ops of the runtime (hr_add), and functions named after
 * TensorFlow's: hr_get_bytes_in_use and the other getters, hr_get_memory_info, hr_reset_memory_stats, hr_set_lms_enabled,
 * hr_get_variable, hr_gradients and others of the runtime.
 *
 * ENVIRONMENT
 *
 * A variable that is not valid never stops a program: it is ignored, and hr_environment_check() reports it. docs/environment.md
 * describes the variables.
 *
 *     HEADROOM_CUDA=0                  no CUDA devices: GPU:0 is emulated
 *     HEADROOM_CUDA_PAGE=SIZE          page size of CUDA devices
 *     HEADROOM_CUDA_LIBRARIES=FOLDERS  where NVRTC and cuBLASLt are; 0 = use neither: the host computes ops
 *     HEADROOM_KERNEL_CACHE=FOLDER     where compiled kernels are kept; 0 = nowhere
 *     HEADROOM_REQUIRE_CUDA=1          no emulated device in place of a GPU
 *     HEADROOM_EMULATED=memory=1GiB    memory, page, link, latency and number of emulated devices
 *     HEADROOM_LIMIT=SIZE              most memory that this process reserves from each GPU
 *     HEADROOM_LMS=1                   Large Model Support, or its settings
 *     HEADROOM_OOM_REPORT=FILE         write each out-of-memory report to a file, or to stderr
 *     HEADROOM_OOM_REPORT_FILES=N      most report files to write
 *     HEADROOM_RANK=3/8                this process is rank 3 of the 8 ranks of its job
 *     HEADROOM_THREADS=N               threads that compute ops
 *     HEADROOM_TRACE=FILE              record to that file
 *     HEADROOM_TRACE_STEPS=1,10-12     the steps to record
 *     HEADROOM_TRACE_MAX_BYTES=SIZE    maximum size of a recording
 *     HEADROOM_TRACE_COMPRESS=1        pack finished recordings
 *     HEADROOM_TENSORBOARD=DIR         export finished recordings for TensorBoard
 *     HEADROOM_STACKS=N                record call stacks, of up to N frames
 *     HEADROOM_TOP=1                   publish statistics for `headroom top`
 *
 * RULES THAT HOLD EVERYWHERE
 *
 * Errors     Functions return hr_status; HR_OK is 0. Results are written through out-parameters, which a failed call leaves
 *            unchanged. A failed call has no effect, except where its description says otherwise. hr_last_message() gives the details
 *            and the remedy. The library never aborts, exits or prints.
 * Handles    hr_device and hr_allocator are small values that can be copied freely. The handle of a destroyed object stays invalid
 *            for ever: using it returns HR_INVALID_HANDLE. The zero value of a handle is never valid.
 * Threads    Every function may be called from any thread at any time, with one exception: a program must not destroy an object
 *            while another thread is inside a call on it. hr_shutdown destroys all objects.
 * Structs    Structs that may grow begin with struct_size, the size of the struct as the program was compiled. New fields are added
 *            at the end, so programs and libraries of different versions work together. Each such struct has an _init function,
 *            which sets struct_size and all defaults (hr_request has HR_REQUEST). A struct_size that no version has, such as 0, is
 *            HR_INVALID_ARGUMENT.
 *            Structs that the program fills (options, requests, tables of functions) may be smaller than the library's: the missing
 *            fields have their defaults. They may be larger if all fields that the library does not know are 0; otherwise the call
 *            returns HR_INVALID_ARGUMENT, and the program needs a newer library.
 *            In structs that the library fills (statistics, descriptions), it writes only the fields that both versions have, and
 *            never struct_size. A callback must not read fields beyond the struct_size of the struct that it is given.
 *            Structs without struct_size, and elements of arrays, never change. hr_oom_options, which is inside
 *            hr_allocator_options, can grow into reserved bytes there.
 *            _init functions are inline, so that they use the size as compiled. Where defaults are not all 0, they call an
 *            _init_sized function. Bindings of other languages call the _init_sized function, or, where there is none, set
 *            all fields to 0 and then struct_size.
 * fork       A forked child must not use objects of its parent: every call returns HR_FORKED until the child calls hr_shutdown(),
 *            which discards them. Then the library can be used again.
 * Signals    A signal handler may call only hr_version, hr_status_name, hr_status_text, hr_dtype_text and hr_dtype_size. Any other
 *            call could wait for ever for a lock that the interrupted call holds, or find data that the interrupted call was
 *            changing. Handlers may interrupt any call and must return to it (no siglongjmp). To act on a signal, set a flag or
 *            write to a pipe, and call the library from a thread that waits for the signal (sigwait, signalfd).
 * Units      Sizes are in bytes, times in nanoseconds. */
#ifndef HEADROOM_H
#define HEADROOM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HR_VERSION_MAJOR 0
#define HR_VERSION_MINOR 2
#define HR_VERSION_PATCH 0

#if defined(__GNUC__)
#define HR_API __attribute__((visibility("default")))
#define HR_CHECK_RESULT __attribute__((warn_unused_result)) /* the compiler warns if the program ignores the status */
#else
#define HR_API
#define HR_CHECK_RESULT
#endif

/* "0.2.0". Static text. */
HR_API const char *hr_version(void);

/* ------------------------------------------------------------------------------------------------------------------------------
 * Statuses
 * ---------------------------------------------------------------------------------------------------------------------------- */

/* name, number, meaning. Numbers never change; new statuses are added at the end. */
#define HR_STATUS_TABLE(X)                                                                                 \
	X(OK, 0, "success")                                                                                    \
	X(INVALID_ARGUMENT, 1, "an argument is not valid")                                                     \
	X(OUT_OF_MEMORY, 2, "the device, or the limit set on it, has no room for the request")                 \
	X(NO_HOST_MEMORY, 3, "the host has no memory for the library's own records")                           \
	X(NOT_ALLOCATED, 4, "no allocated block starts at the address: freed already, or from elsewhere")      \
	X(BAD_DEVICE_NAME, 5, "the device name cannot be parsed")                                              \
	X(NO_SUCH_DEVICE, 6, "the name is well-formed, but this machine has no such device")                   \
	X(AMBIGUOUS_DEVICE, 7, "the name fits more than one device")                                           \
	X(BAD_LIMIT, 8, "the memory limit is impossible")                                                      \
	X(IN_USE, 9, "the object is in use, so it cannot be changed or destroyed now")                         \
	X(UNKNOWN_ALLOCATOR, 10, "no allocator of that name is registered")                                    \
	X(INVALID_HANDLE, 11, "the handle is not valid: its object was destroyed, or never created")           \
	X(FORKED, 12, "this process was forked from one that used the library; call hr_shutdown first")        \
	X(DEVICE_ERROR, 13, "the device reported an error")                                                    \
	X(UNSUPPORTED, 14, "the device or allocator cannot do this")                                           \
	X(ALREADY_EXISTS, 15, "the name is taken")                                                             \
	X(IO, 16, "a file could not be read or written")                                                       \
	X(BAD_FORMAT, 17, "the file or text is malformed")                                                     \
	X(TRUNCATED, 18, "the file is incomplete")                                                             \
	X(TOO_NEW, 19, "written by a newer version than this one can read")                                    \
	X(TOO_SMALL, 20, "the caller's buffer is too small")                                                   \
	X(TOO_MANY, 21, "a fixed maximum number is reached")                                                   \
	X(NOT_READY, 22, "not finished yet")                                                                   \
	X(CORRUPT, 23, "an internal invariant does not hold; please report it")                                \
	X(LEAKED, 24, "everything was destroyed, but blocks, tensors or values had not been freed")

typedef enum hr_status {
#define HR_STATUS_ENUM(name, number, text) HR_##name = number,
	HR_STATUS_TABLE(HR_STATUS_ENUM)
#undef HR_STATUS_ENUM
} hr_status;

/* "HR_OUT_OF_MEMORY"; "HR_?" for an unknown number. Static text. */
HR_API const char *hr_status_name(hr_status status);

/* The meaning in the table above. Static text. */
HR_API const char *hr_status_text(hr_status status);

/* The message of the calling thread's last failing call: what failed and what to do about it. Safe to print: control characters
 * in names that the program supplied are written as \xNN. Valid until the thread's next failing call. Never NULL; empty if no
 * call has failed yet. Without host memory for it, the text of the status. */
HR_API const char *hr_last_message(void);

/* The status of the calling thread's last failing call; HR_OK if no call has failed yet. */
HR_API hr_status hr_last_status(void);

/* ------------------------------------------------------------------------------------------------------------------------------
 * Names, shapes, dtypes: what a request is for
 * ---------------------------------------------------------------------------------------------------------------------------- */

/* An interned name of an op, a scope or a tag: a number, so that requests carry no strings. */
typedef uint32_t hr_name;

#define HR_NAME_NONE 0u  /* no name; its text is "" */
#define HR_NAME_OTHER 1u /* stands for all new names once 65,534 names are interned; its text is "(other)" */

/* The number of [text]. Equal texts have equal numbers for the life of the process. HR_NAME_NONE for NULL and "". Names longer
 * than 1,024 bytes are truncated. Never fails; takes about 20 ns for a known name. */
HR_API hr_name hr_name_intern(const char *text);

/* The text of a name; "(other)" for an invalid number. Static text. */
HR_API const char *hr_name_text(hr_name name);

/* A tensor shape, interned like a name. */
typedef uint32_t hr_shape;

#define HR_SHAPE_NONE 0u  /* shape not known */
#define HR_SHAPE_OTHER 1u /* stands for all new shapes once the table is full */
#define HR_SHAPE_MAX_RANK 8

/* The number of the shape with [rank] dimensions. Rank 0 is a scalar, which has a number of its own. HR_SHAPE_NONE when rank is
 * above HR_SHAPE_MAX_RANK, a dimension is negative, or [dims] is NULL with rank > 0. */
HR_API hr_shape hr_shape_intern(const int64_t *dims, int rank);

/* Copies the dimensions of [shape] to [dims] and returns the rank; -1 for HR_SHAPE_NONE, HR_SHAPE_OTHER and invalid numbers. */
HR_API int hr_shape_dims(hr_shape shape, int64_t dims[HR_SHAPE_MAX_RANK]);

/* Writes "[64,1024]" (scalar: "[]", unknown: "?"), truncated to [capacity] bytes with the terminating 0. Returns the length of
 * the whole text. */
HR_API size_t hr_shape_format(hr_shape shape, char *out, size_t capacity);

/* name, number, bytes per element (0 = none), text */
#define HR_DTYPE_TABLE(X)       \
	X(NONE, 0, 0, "?")          \
	X(FLOAT32, 1, 4, "float32") \
	X(FLOAT64, 2, 8, "float64") \
	X(INT32, 3, 4, "int32")     \
	X(INT64, 4, 8, "int64")     \
	X(UINT8, 5, 1, "uint8")     \
	X(BOOL, 6, 1, "bool")       \
	X(BFLOAT16, 7, 2, "bfloat16") \
	X(FLOAT16, 8, 2, "float16") \
	X(INT8, 9, 1, "int8")       \
	X(INT16, 10, 2, "int16")

typedef enum hr_dtype {
#define HR_DTYPE_ENUM(name, number, size, text) HR_DTYPE_##name = number,
	HR_DTYPE_TABLE(HR_DTYPE_ENUM)
#undef HR_DTYPE_ENUM
} hr_dtype;

HR_API const char *hr_dtype_text(hr_dtype dtype);  /* "float32"; "?" for none */
HR_API size_t hr_dtype_size(hr_dtype dtype);       /* bytes per element; 0 for none */

/* ------------------------------------------------------------------------------------------------------------------------------
 * Devices
 * ---------------------------------------------------------------------------------------------------------------------------- */

/* A logical device: a physical device, or a part of one with its own memory limit. */
typedef struct hr_device {
	uint32_t id; /* 0 = no device */
} hr_device;

typedef struct hr_device_info {
	size_t struct_size;
	char name[32];           /* "GPU:0" */
	char full_name[64];      /* "/job:localhost/replica:0/task:0/device:GPU:0" */
	char backend[16];        /* "emulated", "cpu", "cuda", "simulated" */
	char description[96];    /* human-readable: "emulated accelerator, 1.0 GiB, 2.0 MiB pages" */
	uint32_t physical_index; /* index of the physical device among those of its kind */
	uint32_t logical_count;  /* number of logical devices on that physical device */
	uint64_t total_bytes;    /* memory of the physical device */
	uint64_t free_bytes;     /* memory of the physical device that no process holds */
	uint64_t limit_bytes;    /* most bytes that this logical device may reserve: its memory_limit, or all memory of the device;
	                          * at most HEADROOM_LIMIT. Not rounded; bytes_limit of hr_stats is the same limit in whole pages */
	uint64_t page_bytes;     /* unit of mapping; 0 = the device has no pages */
	uint64_t reserved_bytes; /* bytes that this logical device has reserved from the physical one */
	uint64_t other_bytes;    /* memory of the physical device that is used outside of Headroom: by other processes, and by CUDA
	                          * itself in this one */
} hr_device_info;

/* All fields 0, and struct_size as compiled. */
static inline void hr_device_info_init(hr_device_info *info)
{
	memset(info, 0, sizeof *info);
	info->struct_size = sizeof *info;
}

/* Finds a device by name. The syntax is TensorFlow's: "GPU:0", "gpu:0", "/device:GPU:0", "/GPU:0",
 * "/job:localhost/replica:0/task:0/device:GPU:0". Any part before the device part may be omitted. "GPU:*" and "GPU" match every
 * GPU. NULL is the default device, GPU:0.
 *
 * GPU:n counts logical GPUs: CUDA devices if there are any, otherwise emulated devices. EMU:n is an emulated device in either case.
 * CPU:0 is the host. SIM:0 is the simulated device, which has no memory behind it.
 *
 * HR_BAD_DEVICE_NAME   the name cannot be parsed
 * HR_NO_SUCH_DEVICE    the device does not exist; the message lists the devices that do, and what is wrong with CUDA, if anything
 * HR_AMBIGUOUS_DEVICE  more than one device matches; the message names two */
HR_API HR_CHECK_RESULT hr_status hr_device_find(const char *name, hr_device *out);

/* The number of logical devices (0 on error), and the device at [index]. The order is: GPUs, CPU:0, SIM:0, then all others:
 * emulated devices where there is a CUDA device (EMU:0), and devices of other types from registered backends. */
HR_API uint32_t hr_device_count(void);
HR_API HR_CHECK_RESULT hr_status hr_device_at(uint32_t index, hr_device *out);

/* The number of physical devices of [type], such as "GPU" or "CPU"; 0 if there is none, and on error. Unlike hr_device_at it uses no
 * device, so that hr_device_set_logical is still possible afterwards. */
HR_API uint32_t hr_device_physical_count(const char *type);

/* Whether [device] is emulated; false for an invalid handle. GPU:0 is emulated where there is no CUDA device; hr_cuda_check()
 * reports why. With HEADROOM_REQUIRE_CUDA=1 in the environment there is no GPU:0 without a CUDA device (HR_NO_SUCH_DEVICE), and
 * emulated devices are EMU:0 and up. */
HR_API bool hr_device_is_emulated(hr_device device);

/* Describes a device and its memory as it is now. Set info->struct_size first. */
HR_API HR_CHECK_RESULT hr_status hr_device_get_info(hr_device device, hr_device_info *info);

/* Splits a physical device into [count] logical devices, each with a memory limit in bytes. [physical] is "GPU:n", where n counts
 * physical GPUs, or "SIM:0". Logical GPUs are numbered across all physical GPUs: if the first GPU has two parts, the second GPU is
 * GPU:2. Must be called before the device is first used.
 *
 * HR_BAD_LIMIT         a limit is 0, below one page or above the device's memory, or the limits together exceed that memory
 * HR_IN_USE            the device has been used
 * HR_INVALID_ARGUMENT  [count] is 0 or above 16
 * Errors in [physical] are those of hr_device_find. */
HR_API HR_CHECK_RESULT hr_status hr_device_set_logical(const char *physical, const uint64_t *memory_limits, size_t count);

/* Lets work on [peer], kernels and copies, access the memory that Headroom maps on [device], now and from now on. CUDA cards map
 * memory for themselves alone until then. Lasts until hr_shutdown; a second call has no effect. Mapping memory on [device] takes
 * longer afterwards. Memory of "direct" allocators on CUDA cards is not included: CUDA shares it by cuCtxEnablePeerAccess.
 *
 * HR_UNSUPPORTED  the devices are of different kinds, or the cards cannot access each other's memory
 * HR_DEVICE_ERROR the driver refuses */
HR_API HR_CHECK_RESULT hr_status hr_device_allow_access(hr_device device, hr_device peer);

/* HR_OK when there is a CUDA device. Otherwise HR_NO_SUCH_DEVICE, and the message says why: no driver, a driver that is too old
 * or does not work, no permission, no card, or CUDA switched off. Programs can run without CUDA: GPU:0 is then an emulated
 * device. */
HR_API HR_CHECK_RESULT hr_status hr_cuda_check(void);

/* Checks the environment variables that Headroom reads (docs/environment.md). A variable that cannot be parsed or applied never
 * stops a program: it is ignored and reported here. HR_OK: all variables are in effect. HR_INVALID_ARGUMENT: the message names each
 * ignored variable and the reason. It covers variables that cannot be parsed, and variables that failed to apply since the process
 * started or since hr_shutdown. The `headroom` command prints that message.
 *
 * HEADROOM_LIMIT=SIZE is the most bytes that Headroom reserves from each logical GPU (GPU:n and EMU:n), rounded down to whole
 * pages. Higher limits of logical devices and allocators are lowered to it. */
HR_API HR_CHECK_RESULT hr_status hr_environment_check(void);

/* ---- device options: set them before first use (HR_IN_USE afterwards) ---- */

typedef struct hr_cuda_options {
	size_t struct_size;
	bool enabled;        /* false = ignore CUDA devices, so that GPU:0 is emulated; default true */
	uint64_t page_bytes; /* unit of physical memory, a power of two up to 64 GiB; default 2 MiB. A smaller value is raised to the
	                      * card's smallest unit (2 MiB). Mapping costs about 50 us per page, whatever its size */
} hr_cuda_options;

/* Sets the defaults, then applies the environment: HEADROOM_CUDA=0 or 1 sets enabled, HEADROOM_CUDA_PAGE=16MiB sets page_bytes.
 * HR_INVALID_ARGUMENT if a variable cannot be parsed; [options] then holds the defaults alone. A program that sets no options
 * runs with those defaults in that case (hr_environment_check). */
HR_API hr_status hr_cuda_options_init_sized(hr_cuda_options *options, size_t struct_size);
static inline hr_status hr_cuda_options_init(hr_cuda_options *options)
{
	return hr_cuda_options_init_sized(options, sizeof *options);
}
HR_API HR_CHECK_RESULT hr_status hr_cuda_configure(const hr_cuda_options *options);

typedef struct hr_emulated_options {
	size_t struct_size;
	uint32_t devices;          /* number of emulated GPUs; default 1, at most 8; 0 = none */
	uint64_t memory_bytes;     /* memory of each; default 1 GiB, at least one page */
	uint64_t page_bytes;       /* a power of two, at least 64 KiB and the host's page size; default 2 MiB */
	uint64_t link_bytes_per_s; /* in each direction between host and device; 0 (default) = memory speed */
	uint64_t kernel_latency_ns; /* fixed time added to each copy or fill; default 0 */
} hr_emulated_options;

/* Sets the defaults, then applies the environment: HEADROOM_EMULATED="memory=1GiB,page=2MiB,link=2GB/s,latency=5us,devices=2",
 * or any subset. Fails like hr_cuda_options_init. */
HR_API hr_status hr_emulated_options_init_sized(hr_emulated_options *options, size_t struct_size);
static inline hr_status hr_emulated_options_init(hr_emulated_options *options)
{
	return hr_emulated_options_init_sized(options, sizeof *options);
}
HR_API HR_CHECK_RESULT hr_status hr_emulated_configure(const hr_emulated_options *options);

typedef struct hr_simulated_options {
	size_t struct_size;
	uint64_t memory_bytes;     /* default 1 TiB */
	uint64_t page_bytes;       /* a power of two, at least 256; default 2 MiB; 0 = no pages, plain allocation only */
	uint64_t link_bytes_per_s; /* default 55 GB/s */
	uint64_t map_ns;           /* host time for mapping a page, and for unmapping it later; default 0. About 40000 on an H200 */
} hr_simulated_options;

HR_API void hr_simulated_options_init_sized(hr_simulated_options *options, size_t struct_size);
static inline void hr_simulated_options_init(hr_simulated_options *options)
{
	hr_simulated_options_init_sized(options, sizeof *options);
}
HR_API HR_CHECK_RESULT hr_status hr_simulated_configure(const hr_simulated_options *options);

/* ------------------------------------------------------------------------------------------------------------------------------
 * Streams, events, copies
 *
 * Work on a device is asynchronous and ordered within a stream. A stream belongs to one physical device. Streams are small numbers,
 * so that a set of streams fits in 64 bits.
 * ---------------------------------------------------------------------------------------------------------------------------- */

typedef uint32_t hr_stream;

#define HR_STREAM_DEFAULT 0u /* exists on every device; cannot be destroyed */
#define HR_STREAM_MAX 64u    /* most streams of one physical device, the default stream included */

/* Host code that accesses device memory directly, without a stream. May be passed wherever a stream is expected:
 *
 *     hr_alloc, pins                    the call returns when the device has finished with the memory; the host may access it at once
 *     hr_free, unpins                   the host was the last user; no stream has to wait for it
 *     hr_stream_copy, hr_stream_fill    the work is done when the call returns; it runs on the default stream
 *     hr_stream_wait_stream             as [stream]: the host waits for [other]; as [other]: returns at once
 *     hr_stream_synchronize             returns at once
 *     hr_allocation_record_stream       has no effect
 *
 * A call that waits may block until the device finishes work that was queued earlier; where no such work is left, it costs nothing.
 * The host can access the memory of emulated devices and of CPU:0, but not that of a GPU; waiting works on all devices. Host
 * code that receives memory allocated for another stream must wait for that stream (hr_stream_synchronize) before it accesses
 * the memory. */
#define HR_STREAM_HOST 0x80000000u

/* Creates a stream. HR_TOO_MANY when 63 streams besides the default stream exist. */
HR_API HR_CHECK_RESULT hr_status hr_stream_create(hr_device device, hr_stream *out);

/* Registers a stream of the device's own library (a cudaStream_t as an integer). Importing it again returns the same number. The
 * caller keeps ownership: hr_stream_destroy only unregisters the stream, and must be called before the owner destroys it. */
HR_API HR_CHECK_RESULT hr_status hr_stream_import(hr_device device, uint64_t native, hr_stream *out);

/* Waits for the work on [stream], then destroys the stream. Memory freed on a destroyed stream stays safe to reuse. */
HR_API hr_status hr_stream_destroy(hr_device device, hr_stream stream);

/* Unregisters an imported stream without any call of the device: for a stream that is captured into a graph, on which nothing can be
 * recorded or waited for. All work that the stream was given before must be done (hr_stream_synchronize before the capture), because
 * from now on Headroom takes it for done. HR_INVALID_ARGUMENT: not an imported stream. */
HR_API hr_status hr_stream_forget(hr_device device, hr_stream stream);

/* Waits until all work on [stream] is done. Returns an error that the device reported meanwhile. */
HR_API HR_CHECK_RESULT hr_status hr_stream_synchronize(hr_device device, hr_stream stream);

/* Makes work queued to [stream] from now on wait for the work queued to [other] so far. Does not block the caller. */
HR_API HR_CHECK_RESULT hr_status hr_stream_wait_stream(hr_device device, hr_stream stream, hr_stream other);

typedef enum hr_copy_kind {
	HR_COPY_TO_DEVICE = 1,   /* from host memory */
	HR_COPY_TO_HOST = 2,     /* from device memory */
	HR_COPY_ON_DEVICE = 3    /* within the device; the ranges must not overlap */
} hr_copy_kind;

/* Copies [bytes] bytes in stream order. Returns before the copy is done; both ranges must stay valid until then. 0 bytes is
 * HR_OK. */
HR_API HR_CHECK_RESULT hr_status hr_stream_copy(hr_device device, void *to, const void *from, size_t bytes, hr_copy_kind kind, hr_stream stream);

/* Sets [bytes] bytes of device memory to [value], in stream order. */
HR_API HR_CHECK_RESULT hr_status hr_stream_fill(hr_device device, void *at, unsigned char value, size_t bytes, hr_stream stream);

/* ------------------------------------------------------------------------------------------------------------------------------
 * Allocators
 * ---------------------------------------------------------------------------------------------------------------------------- */

typedef struct hr_allocator {
	uint64_t id; /* 0 = no allocator */
} hr_allocator;

/* ---- out of memory: see headroom_oom.h ---- */

/* A report on a request that failed for lack of memory. */
typedef struct hr_oom_report {
	uint64_t id; /* 0 = no report */
} hr_oom_report;

/* Called in the thread whose request failed, after the report is made and before hr_alloc returns HR_OUT_OF_MEMORY. May call
 * Headroom; requests that fail inside the callback make no report. */
typedef void (*hr_oom_callback)(void *user, hr_oom_report report);

/* How the allocation log shows addresses. */
typedef enum hr_oom_log_address {
	HR_LOG_NO_ADDRESS = 0,
	HR_LOG_HASHED_ADDRESS = 1, /* a hash, equal for equal addresses: for reports that are shared with others. Does not protect
	                            * secrets */
	HR_LOG_REAL_ADDRESS = 2
} hr_oom_log_address;

typedef struct hr_oom_options {
	size_t struct_size;
	bool report_allocations_on_oom;        /* make a report when a request fails for lack of memory, and keep an allocation log
	                                        * for it; default false, unless HEADROOM_OOM_REPORT is in the environment */
	uint32_t allocation_log_buffer_size;   /* entries of the log per thread, 1 to 65,536; default 100 */
	double allocation_log_sampling_rate;   /* fraction of all operations that is logged, 0 to 1; default 1. Each operation is
	                                        * chosen at random with this probability, independently of its size, its thread and
	                                        * other operations. The failing request is always logged */
	hr_oom_log_address allocation_log_address; /* default HR_LOG_NO_ADDRESS */
	hr_oom_callback callback;              /* NULL (default) = none */
	void *user;                            /* passed to the callback */
	bool allocation_log_allocations_only;  /* do not log frees, so that the log reaches further back; default false */
} hr_oom_options;

HR_API void hr_oom_options_init_sized(hr_oom_options *options, size_t struct_size);
static inline void hr_oom_options_init(hr_oom_options *options)
{
	hr_oom_options_init_sized(options, sizeof *options);
}

typedef struct hr_allocator_options {
	size_t struct_size;

	/* "bfc" (default, also for NULL): best fit with coalescing over pages that are mapped as it grows; the hot path takes tens of
	 * nanoseconds.
	 * "direct": one allocation on the device for each request.
	 * Any name registered with hr_allocator_register: a custom allocator. */
	const char *kind;

	/* Name in reports; NULL = "<device>_<kind>", such as "GPU:0_bfc". Truncated to 31 bytes. */
	const char *name;

	/* Most bytes to reserve from the device, rounded down to whole pages; 0 (default) = the device's limit. Write HR_GIB(3), not
	 * 3 << 30, which overflows int. */
	uint64_t limit_bytes;

	/* bfc: unit of every size and address, a power of two from 16 to 64 KiB; default 256. */
	uint32_t granularity;

	/* bfc: true (default) maps pages when they are needed; false maps the whole limit at creation. */
	bool allow_growth;

	/* bfc: true (default) keeps freed blocks of 64 KiB and less in a cache of the thread that freed them, so that threads do not
	 * contend. A cache holds at most 16 MiB and at most 1/256 of the limit. Caches are emptied before a request fails. */
	bool thread_cache;

	/* bfc, on devices with pages: true (default) allows separate free pages to be mapped side by side when nothing else fits. */
	bool stitch;

	/* Reports and the allocation log; hr_allocator_options_init sets their defaults too. */
	hr_oom_options oom;
	unsigned char oom_reserved[128 - sizeof(hr_oom_options)]; /* must be 0: fields that a later hr_oom_options adds */
} hr_allocator_options;

HR_API void hr_allocator_options_init_sized(hr_allocator_options *options, size_t struct_size);
static inline void hr_allocator_options_init(hr_allocator_options *options)
{
	hr_allocator_options_init_sized(options, sizeof *options);
}

/* Creates an allocator on [device]; [options] NULL = the defaults.
 *
 * HR_UNKNOWN_ALLOCATOR  no such kind; the message lists the kinds
 * HR_BAD_LIMIT          the limit is above the device's, or below one page
 * HR_INVALID_ARGUMENT   bad granularity
 * HR_OUT_OF_MEMORY      allow_growth is false and there is no memory for the limit
 * HR_TOO_MANY           255 allocators exist */
HR_API HR_CHECK_RESULT hr_status hr_allocator_create(hr_device device, const hr_allocator_options *options, hr_allocator *out);

/* The default allocator of the named device (NULL = default device), created on first use with default options. Valid until
 * hr_shutdown; hr_allocator_destroy returns HR_IN_USE for it. */
HR_API HR_CHECK_RESULT hr_status hr_allocator_get_default(const char *device_name, hr_allocator *out);

/* Waits for the streams that used the allocator's memory, returns all of the memory and invalidates the handle. HR_IN_USE when
 * blocks are still allocated: the message gives their number, their bytes and the largest holder. */
HR_API hr_status hr_allocator_destroy(hr_allocator allocator);

/* Like hr_allocator_destroy, but also frees the blocks that are still allocated. */
HR_API hr_status hr_allocator_destroy_all(hr_allocator allocator);

/* Sizes in 64 bits, whatever the type of [n]. */
#define HR_KIB(n) ((uint64_t)(n) << 10)
#define HR_MIB(n) ((uint64_t)(n) << 20)
#define HR_GIB(n) ((uint64_t)(n) << 30)

/* A request for memory. Only struct_size and [bytes] are required; 0 in any other field means unspecified. */
typedef struct hr_request {
	size_t struct_size;
	size_t bytes;     /* > 0 */
	size_t alignment; /* of the address: 0 = the allocator's granularity, otherwise a power of two */
	hr_stream stream; /* the first stream that will use the block, or HR_STREAM_HOST; 0 is HR_STREAM_DEFAULT */
	hr_name op;       /* op that makes the request */
	hr_name scope;    /* name scope of the op, such as "encoder/layer_3" */
	hr_name tag;      /* purpose: "weights", "kv_cache" */
	hr_shape shape;   /* of the tensor that the block will hold */
	hr_dtype dtype;
} hr_request;

/* HR_REQUEST: a request for [request_bytes] bytes, with nothing else specified. */
#ifdef __cplusplus
static inline hr_request hr_request_of(size_t bytes)
{
	hr_request request = {};
	request.struct_size = sizeof request;
	request.bytes = bytes;
	return request;
}
#define HR_REQUEST(request_bytes) hr_request_of(request_bytes)
#else
#define HR_REQUEST(request_bytes) ((hr_request){ .struct_size = sizeof(hr_request), .bytes = (request_bytes) })
#endif

/* Allocates a block. The block is usable at once on request->stream: work queued to that stream waits, on the device, for the
 * streams that used the memory before. With HR_STREAM_HOST the call itself waits for them, without holding a lock. Takes tens of
 * nanoseconds in "bfc" when nothing has to be mapped or waited for.
 *
 * HR_INVALID_ARGUMENT  [bytes] is 0 or above 2^48, [alignment] is not a power of two or is above 2^40, the stream is unknown, or
 *                      struct_size was not set
 * HR_OUT_OF_MEMORY     no memory within the limit; the message gives the requested bytes, the free bytes and the largest free block
 * HR_UNSUPPORTED       "direct": the device cannot provide the alignment
 * HR_TOO_MANY          one shard of the allocator has 2^24 chunks, or the allocator has 256 regions on a device without pages
 * HR_CORRUPT           a custom allocator returned an address that is in use or not aligned
 * HR_INVALID_HANDLE, HR_FORKED, HR_DEVICE_ERROR, HR_NO_HOST_MEMORY, HR_IO (a system call failed) */
HR_API HR_CHECK_RESULT hr_status hr_alloc(hr_allocator allocator, const hr_request *request, void **out);

/* hr_alloc with a size alone. The stream is HR_STREAM_HOST where the host can access the device's memory, so the call may wait
 * as described there; otherwise it is the default stream. */
HR_API HR_CHECK_RESULT hr_status hr_alloc_bytes(hr_allocator allocator, size_t bytes, void **out);

/* Frees the block at [address]; any thread may do so. [stream] is the last stream that was given work on the block. Reuse on that
 * stream is immediate; another stream that gets the memory first waits, on the device, for the work queued to [stream] so far. With
 * HR_STREAM_HOST the host was the last user, and only the stream of the request and those of hr_allocation_record_stream are waited
 * for.
 *
 * NULL is HR_OK. HR_NOT_ALLOCATED, without any effect, when no allocated block starts at [address]: it was freed already, lies
 * inside a block or is unknown. */
HR_API hr_status hr_free(hr_allocator allocator, void *address, hr_stream stream);

/* Records that [stream] was also given work on the block. After the block is freed, other streams wait for [stream] too. */
HR_API HR_CHECK_RESULT hr_status hr_allocation_record_stream(hr_allocator allocator, void *address, hr_stream stream);

/* An allocated block. */
typedef struct hr_allocation_info {
	size_t struct_size;
	void *address;
	size_t bytes;     /* of the chunk: the bytes that the block occupies */
	size_t requested; /* bytes of the request */
	hr_name op, scope, tag;
	hr_shape shape;
	hr_dtype dtype;
	uint64_t streams; /* bit s is set if stream s used the block; the host has no bit */
} hr_allocation_info;

/* All fields 0, and struct_size as compiled. */
static inline void hr_allocation_info_init(hr_allocation_info *info)
{
	memset(info, 0, sizeof *info);
	info->struct_size = sizeof *info;
}

/* HR_NOT_ALLOCATED as in hr_free. Set info->struct_size first. */
HR_API HR_CHECK_RESULT hr_status hr_allocation_get_info(hr_allocator allocator, const void *address, hr_allocation_info *info);

/* Names a block again, for a purpose that is known only after its allocation: [scope] and [tag] replace those of the request;
 * HR_NAME_NONE keeps the present one. Statistics and reports use the new names from now on; in a recording the block ends and begins
 * again. HR_NOT_ALLOCATED as in hr_free. HR_UNSUPPORTED: the block belongs to a tensor; use hr_tensor_set_names. */
HR_API HR_CHECK_RESULT hr_status hr_allocation_set_names(hr_allocator allocator, const void *address, hr_name scope, hr_name tag);

/* Empties the thread caches and returns free memory to the device: whole free pages, or whole free regions where there are no
 * pages. Waits for streams that may still use that memory. *released receives the bytes that were returned; [released] may be
 * NULL. If the device or the system reports an error, everything that could be returned has been returned. */
HR_API hr_status hr_allocator_trim(hr_allocator allocator, uint64_t *released);

/* Verifies every data structure of the allocator. HR_OK, or HR_CORRUPT with the number of the first violated invariant in the
 * message. May be called at any time. Takes time proportional to the number of chunks, during which other threads wait for the
 * allocator. */
HR_API HR_CHECK_RESULT hr_status hr_allocator_check(hr_allocator allocator);

/* ---- custom allocators ---- */

typedef struct hr_custom_stats {
	size_t struct_size;
	uint64_t bytes_reserved; /* bytes that the allocator holds, in use or free */
	uint64_t bytes_limit;    /* 0 = no limit */
	uint64_t largest_free;   /* 0 = not known */
} hr_custom_stats;

/* An allocator that the program supplies. It only has to find memory: Headroom keeps its statistics, ledger and traces. Its
 * functions may use other allocators of Headroom. */
typedef struct hr_custom_allocator {
	size_t struct_size;

	/* open is called by hr_allocator_create, close when the allocator is destroyed. *state is passed to the other functions. If open
	 * is NULL, they get [user] instead. close may be NULL. */
	hr_status (*open)(void *user, hr_device device, uint64_t limit_bytes, void **state);
	void (*close)(void *state);

	/* Required. The address must be aligned as requested and must not be in use. Return HR_OUT_OF_MEMORY when there is no memory;
	 * hr_alloc passes any error on to its caller. [stream] may be HR_STREAM_HOST: then the memory must be idle when the
	 * function returns. Called from any thread, several at a time. */
	hr_status (*alloc)(void *state, size_t bytes, size_t alignment, hr_stream stream, void **out);

	/* Required. */
	hr_status (*free)(void *state, void *address, size_t bytes, hr_stream stream);

	/* The allocator's own statistics. NULL: Headroom reports the bytes that are allocated. */
	hr_status (*get_stats)(void *state, hr_custom_stats *stats);
} hr_custom_allocator;

/* All fields 0, and struct_size as compiled. */
static inline void hr_custom_allocator_init(hr_custom_allocator *table)
{
	memset(table, 0, sizeof *table);
	table->struct_size = sizeof *table;
}

/* Makes [table] available as options.kind = [name], on every device. The table is copied.
 *
 * HR_ALREADY_EXISTS    the name is taken, as "bfc" and "direct" are
 * HR_TOO_MANY          32 custom allocators are registered
 * HR_INVALID_ARGUMENT  the name is empty or longer than 31 bytes, struct_size was not set, or alloc or free is NULL */
HR_API HR_CHECK_RESULT hr_status hr_allocator_register(const char *name, const hr_custom_allocator *table, void *user);

/* ------------------------------------------------------------------------------------------------------------------------------
 * Statistics
 *
 * Always on, exact, and read without stopping other threads. In every snapshot
 *
 *     bytes_active + bytes_inactive                    = bytes_in_use
 *     bytes_in_use + bytes_cached + bytes_free         = bytes_reserved
 *     bytes_requested                                 <= bytes_in_use
 *     bytes_reserved <= bytes_reservable_limit,  bytes_in_use <= peak_bytes_in_use,  bytes_reserved <= peak_bytes_reserved
 *     num_live_at_reset + num_allocs - num_failed_allocs - num_frees = num_live
 *     sum of the source_* fields                       = num_allocs - num_failed_allocs
 *     peak_bytes_active <= peak_bytes_in_use <= peak_bytes_reserved
 *
 * A plain block is active while it is allocated. A tensor is active while it is pinned, and inactive while it is resident and not
 * pinned. When a tensor is moved within the device, its new memory is active until the move is done.
 *
 * A peak is the value at one moment. An allocator's peaks are exact while one thread uses the allocator, a device's while one
 * thread uses all of its allocators. With more threads peak_bytes_in_use and peak_bytes_active are upper bounds: they exceed the
 * true peaks by at most 64 KiB for each thread and allocator that it uses, in total at most peak_error_bytes. peak_bytes_reserved
 * is always exact.
 * ---------------------------------------------------------------------------------------------------------------------------- */

/* name, meaning. All are int64_t; the order never changes, new fields are added at the end. */
#define HR_STATS_TABLE(X)                                                                                                           \
	X(num_allocs, "allocation requests since start or reset, refused ones included")                                                \
	X(bytes_in_use, "bytes of chunks handed out, rounding included")                                                                \
	X(peak_bytes_in_use, "most bytes_in_use since start or reset")                                                                  \
	X(largest_alloc_size, "largest chunk handed out since start or reset")                                                          \
	X(bytes_limit, "most bytes that may be allocated, in whole pages")                                                              \
	X(bytes_reserved, "bytes reserved from the device")                                                                             \
	X(peak_bytes_reserved, "most bytes_reserved since start or reset")                                                              \
	X(bytes_reservable_limit, "most bytes that may be reserved from the device; the same as bytes_limit")                           \
	X(bytes_inactive, "bytes of resident tensors that are not pinned")                                                              \
	X(bytes_active, "bytes_in_use less bytes_inactive")                                                                             \
	X(peak_bytes_active, "most bytes_active since start or reset")                                                                  \
	X(bytes_reclaimed, "bytes freed on the device by evicting tensors")                                                             \
	X(num_single_reclaims, "times evicting one tensor was enough")                                                                  \
	X(num_full_reclaims, "times everything inactive had to be evicted")                                                             \
	X(num_defragmentations, "times live bytes were moved or remapped to join free memory")                                          \
	X(bytes_defragged, "bytes moved by defragmentation")                                                                            \
	X(num_failed_allocs, "requests refused")                                                                                        \
	X(num_frees, "blocks freed")                                                                                                    \
	X(num_live, "blocks allocated now, evicted tensors included")                                                                   \
	X(bytes_requested, "bytes requested by the blocks allocated now, before rounding")                                              \
	X(bytes_cached, "bytes of freed blocks kept in thread caches")                                                                  \
	X(bytes_free, "bytes reserved that are neither in use nor cached")                                                              \
	X(largest_free_block, "bytes of the largest free block")                                                                        \
	X(num_free_blocks, "free blocks, cached ones not counted")                                                                      \
	X(num_regions, "regions: ranges of addresses reserved from the device")                                                         \
	X(peak_error_bytes, "peak_bytes_in_use and peak_bytes_active are at most this much too high; 0 = exact")                        \
	X(metadata_bytes, "host memory for chunk records, ledger, lookup table and caches")                                             \
	X(source_cache, "allocations served from a thread cache")                                                                       \
	X(source_free_chunk, "allocations served from a free chunk")                                                                    \
	X(source_grow, "allocations for which pages were mapped or a region added")                                                     \
	X(source_trim, "allocations served after emptying caches and releasing free memory")                                            \
	X(source_stitch, "allocations served by mapping free pages side by side")                                                       \
	X(source_single_reclaim, "allocations served by evicting one tensor")                                                           \
	X(source_multi_reclaim, "allocations served by evicting several adjacent tensors")                                              \
	X(source_full_reclaim, "allocations served by evicting everything inactive")                                                    \
	X(source_defragment, "allocations served by moving live bytes")                                                                 \
	X(source_device, "allocations served directly by the device or a custom allocator")                                             \
	X(num_stitches, "times free pages were mapped side by side")                                                                    \
	X(bytes_stitched, "bytes of the pages remapped by stitching")                                                                   \
	X(num_stream_waits, "times a stream had to wait for another one before it reused memory")                                       \
	X(num_trims, "times caches were emptied and free memory was released, on request or under memory pressure")                     \
	X(num_live_at_reset, "blocks that were allocated when the statistics were last reset")                                          \
	X(page_table_bytes, "host memory for page tables: 4 bytes for each reserved page")                                              \
	X(num_multi_reclaims, "times evicting several adjacent tensors was enough")                                                     \
	X(total_bytes_allocated, "bytes of all chunks handed out since start or reset, rounding included")

/* fragmentation is not in the table because it is a fraction: 1 - largest_free_block / bytes_free; 0 when nothing is free. */
typedef struct hr_stats {
	size_t struct_size;
	double fragmentation;
#define HR_STATS_FIELD(name, text) int64_t name;
	HR_STATS_TABLE(HR_STATS_FIELD)
#undef HR_STATS_FIELD
} hr_stats;

/* All fields 0, and struct_size as compiled. */
HR_API void hr_stats_init_sized(hr_stats *stats, size_t struct_size);
static inline void hr_stats_init(hr_stats *stats)
{
	hr_stats_init_sized(stats, sizeof *stats);
}

/* Takes a snapshot. Set stats->struct_size first (hr_stats_init does). Allocations do not wait for it, unless the statistics
 * change during 64 attempts to read them; then it holds the lock for about 100 ns. */
HR_API HR_CHECK_RESULT hr_status hr_allocator_get_stats(hr_allocator allocator, hr_stats *stats);

/* The statistics of all allocators of a device together. Fields are sums, except: largest_alloc_size and largest_free_block are
 * maxima; limits are those of the device; peaks are those of the device as a whole, not sums of peaks that its allocators
 * reached at different times. The counts of a destroyed allocator, and its share of the peaks, stay with the device until the
 * next reset. Blocks that hr_allocator_destroy_all freed count as freed. */
HR_API HR_CHECK_RESULT hr_status hr_device_get_stats(hr_device device, hr_stats *stats);

/* Resets the statistics of the device (NULL = default device) and of every allocator on it:
 *
 *     set to 0         num_allocs, num_failed_allocs, num_frees, total_bytes_allocated, largest_alloc_size, all source_* fields,
 *                      num_stream_waits, num_trims, num_stitches, bytes_stitched, bytes_reclaimed, num_single_reclaims,
 *                      num_multi_reclaims, num_full_reclaims, num_defragmentations, bytes_defragged
 *     set to now       peak_bytes_in_use to bytes_in_use, peak_bytes_active to bytes_active, peak_bytes_reserved to bytes_reserved,
 *                      num_live_at_reset to num_live, peak_error_bytes to the bound for the threads that use the allocator now
 *     not changed      all other fields, which describe the current state
 *
 * Also resets the statistics of hr_lms_get_stats (headroom_lms.h), but not scopes (hr_stats_scope_begin). Stops the threads of
 * each allocator briefly, one allocator after the other. HR_NO_SUCH_DEVICE. */
HR_API HR_CHECK_RESULT hr_status hr_reset_memory_stats(const char *device_name);

typedef struct hr_memory_info {
	size_t struct_size;
	int64_t current; /* bytes in use on the device, by all its allocators */
	int64_t peak;    /* most bytes in use since start or reset */
} hr_memory_info;

/* All fields 0, and struct_size as compiled. */
static inline void hr_memory_info_init(hr_memory_info *info)
{
	memset(info, 0, sizeof *info);
	info->struct_size = sizeof *info;
}

/* Bytes in use on the whole device, now and at the peak. NULL = default device. Set info->struct_size first. */
HR_API HR_CHECK_RESULT hr_status hr_get_memory_info(const char *device_name, hr_memory_info *info);

/* One statistic of the logical GPU [gpu_id] (0 = GPU:0), all its allocators together. A negative value is an error, -status: for
 * instance -HR_NO_SUCH_DEVICE when there is no such GPU. */
HR_API int64_t hr_get_num_allocs(int gpu_id);
HR_API int64_t hr_get_bytes_in_use(int gpu_id);
HR_API int64_t hr_get_peak_bytes_in_use(int gpu_id);
HR_API int64_t hr_get_largest_alloc_size(int gpu_id);
HR_API int64_t hr_get_bytes_limit(int gpu_id);
HR_API int64_t hr_get_bytes_reserved(int gpu_id);
HR_API int64_t hr_get_peak_bytes_reserved(int gpu_id);
HR_API int64_t hr_get_bytes_reservable_limit(int gpu_id);
HR_API int64_t hr_get_bytes_inactive(int gpu_id);
HR_API int64_t hr_get_bytes_active(int gpu_id);
HR_API int64_t hr_get_peak_bytes_active(int gpu_id);
HR_API int64_t hr_get_bytes_reclaimed(int gpu_id);
HR_API int64_t hr_get_num_single_reclaims(int gpu_id);
HR_API int64_t hr_get_num_full_reclaims(int gpu_id);
HR_API int64_t hr_get_num_defragmentations(int gpu_id);
HR_API int64_t hr_get_bytes_defragged(int gpu_id);
HR_API int64_t hr_get_num_multi_reclaims(int gpu_id);
HR_API int64_t hr_get_total_bytes_allocated(int gpu_id);

/* Writes statistics as a human-readable table, or as one JSON object (keys as in HR_STATS_TABLE, and fragmentation). Writes at
 * most [capacity] bytes with the terminating 0 and returns the length of the whole text; a result >= capacity means that the
 * text was truncated. 0 when [stats] is NULL or its struct_size was not set (hr_last_message). */
HR_API size_t hr_stats_format(const hr_stats *stats, char *out, size_t capacity);
HR_API size_t hr_stats_format_json(const hr_stats *stats, char *out, size_t capacity);

/* ---- regions ---- */

typedef struct hr_region_info {
	size_t struct_size;
	void *base;
	uint64_t reserved_addresses; /* bytes of address space */
	int64_t bytes_reserved;      /* bytes of these that have memory behind them */
	int64_t bytes_in_use;
	int64_t bytes_cached;
	int64_t bytes_free;
	int64_t largest_free_block;
	double fragmentation;
	int64_t num_live;
	int64_t num_free_blocks;
	bool small_blocks;           /* the region that thread caches are filled from */
} hr_region_info;

/* All fields 0, and struct_size as compiled. */
static inline void hr_region_info_init(hr_region_info *info)
{
	memset(info, 0, sizeof *info);
	info->struct_size = sizeof *info;
}

/* The region at [index]; HR_INVALID_ARGUMENT past the last one (stats.num_regions is their number). Walks the region's chunks. */
HR_API HR_CHECK_RESULT hr_status hr_allocator_get_region(hr_allocator allocator, uint32_t index, hr_region_info *info);

/* The kinds of chunks in a region. HR_CHUNK_UNMAPPED: addresses without memory behind them. */
typedef enum hr_chunk_kind { HR_CHUNK_FREE = 1, HR_CHUNK_IN_USE = 2, HR_CHUNK_CACHED = 3, HR_CHUNK_UNMAPPED = 4 } hr_chunk_kind;

typedef struct hr_chunk_view {
	void *address;
	uint64_t bytes;
	uint64_t requested; /* in use only: bytes of the request */
	hr_chunk_kind kind;
	hr_name op, scope, tag;
	hr_shape shape;
	hr_dtype dtype;
} hr_chunk_view;

/* Calls [visit] for each chunk of region [index], lowest address first, until [visit] returns false. [visit] must not call
 * Headroom: the allocator's lock is held meanwhile. */
HR_API HR_CHECK_RESULT hr_status hr_allocator_visit(hr_allocator allocator, uint32_t index, bool (*visit)(void *context, const hr_chunk_view *chunk),
                                    void *context);

/* ---- peak inside a scope ---- */

/* Begins a statistics scope of the calling thread. The scope records the peak of the bytes that the thread itself allocates on [device].
 * Scopes nest, up to 32 deep (HR_TOO_MANY beyond that), and are independent of hr_reset_memory_stats. HR_NO_HOST_MEMORY: there is no
 * memory for the state of a thread that uses Headroom for the first time. */
HR_API HR_CHECK_RESULT hr_status hr_stats_scope_begin(hr_device device);

typedef struct hr_stats_scope {
	size_t struct_size;
	int64_t peak_bytes;  /* most bytes in use, above those at the start, from this thread's allocations and frees inside the
	                      * scope */
	int64_t net_bytes;   /* the same at the end of the scope; positive = the thread allocated more than it freed */
	int64_t num_allocs;
	int64_t num_frees;
} hr_stats_scope;

/* All fields 0, and struct_size as compiled. */
static inline void hr_stats_scope_init(hr_stats_scope *scope)
{
	memset(scope, 0, sizeof *scope);
	scope->struct_size = sizeof *scope;
}

/* Ends the innermost scope of the calling thread, which must be on [device]. [scope] may be NULL. HR_INVALID_ARGUMENT when the
 * thread has no scope, or its innermost scope is on another device. */
HR_API hr_status hr_stats_scope_end(hr_device device, hr_stats_scope *scope);

/* ------------------------------------------------------------------------------------------------------------------------------
 * Shutdown
 * ---------------------------------------------------------------------------------------------------------------------------- */

/* Closes every session, allocator, stream and device, frees the blocks that are still allocated, ends a recording, and discards all
 * settings. Afterwards the library can be used again. In a forked child hr_shutdown discards what the parent created, without
 * reporting leaks of it.
 *
 * The shared library stays loaded after dlclose, with the memory that it holds; call hr_shutdown first. A module that contains the
 * static library may be unloaded after hr_shutdown while threads that used it still run: those threads must not call it again, and
 * the memory that the library keeps for each of them is lost.
 *
 * HR_LEAKED  everything was destroyed, but the program had not freed all blocks of hr_alloc, tensors of hr_tensor_create, or values of
 *            sessions that still existed. The message gives the number and the bytes of each, and the op, scope and tag that hold
 *            most. Sessions and allocators that still exist, variables, and what hr_allocator_destroy_all destroyed before are not
 *            leaks. Summing up the leaks takes time proportional to the number of blocks that are left
 * HR_IO, ... the recording could not be ended; leaks are reported in the same message */
HR_API hr_status hr_shutdown(void);

#ifdef __cplusplus
}
#endif

#include "headroom_oom.h"
#include "headroom_lms.h"

#endif
