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
 *         if (hr_allocator_default("GPU:0", &allocator) != HR_OK || hr_alloc_bytes(allocator, 1 << 20, &block) != HR_OK) {
 *             fprintf(stderr, "%s\n", hr_last_message());
 *             return 1;
 *         }
 *         printf("%lld bytes in use\n", (long long)hr_get_bytes_in_use(0));
 *         hr_free(allocator, block, HR_STREAM_DEFAULT);
 *         return hr_shutdown() == HR_OK ? 0 : 1;
 *     }
 *
 * Where no GPU is found, GPU:0 is an emulated one: a whole accelerator in host memory, with pages, streams and a link of its own.
 * hr_cuda_check() says why none was found, and HEADROOM_REQUIRE_CUDA=1 in the environment refuses to go on without one.
 *
 * RULES THAT HOLD EVERYWHERE
 *
 * Errors     Functions return hr_status; HR_OK is 0. Results go through out-parameters, which are left alone on failure. A function
 *            that fails leaves everything as it was. hr_last_message() has the detail: what, and what to do about it. The library
 *            never aborts, exits or prints.
 * Handles    hr_device and hr_allocator are small values, copied freely. A handle that was closed is recognised for ever: using it
 *            returns HR_CLOSED. The zero value of a handle is never valid.
 * Threads    Every function may be called from any thread at any time, with one exception: closing an allocator, or shutting
 *            down, while another thread is inside a call on the same object is a mistake of the program.
 * Structs    Structs that a caller fills start with struct_size and have an _init function that sets it and all the defaults.
 *            Structs that the library fills start with struct_size too: set it to the size you were compiled with.
 * fork       A forked child must not touch what its parent made: every call returns HR_FORKED until hr_shutdown() is called in the
 *            child, which forgets all of it; then it can start anew.
 * Signals    A signal handler may call hr_version, hr_status_name, hr_status_text, hr_dtype_text and hr_dtype_size, and nothing else: a
 *            call that interrupts another one of the same thread waits for ever for a lock that only that one can release, or finds
 *            what it was changing. Handlers may interrupt any call, and must return to it (no siglongjmp). To act on a signal, set a
 *            flag or write to a pipe, and call the library from a thread that waits for that (sigwait, signalfd).
 * Units      Sizes are bytes. Times are nanoseconds. */
#ifndef HEADROOM_H
#define HEADROOM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HR_VERSION_MAJOR 0
#define HR_VERSION_MINOR 1
#define HR_VERSION_PATCH 0

#if defined(__GNUC__)
#define HR_API __attribute__((visibility("default")))
#else
#define HR_API
#endif

/* "0.1.0". Static text. */
HR_API const char *hr_version(void);

/* ------------------------------------------------------------------------------------------------------------------------------
 * Statuses
 * ---------------------------------------------------------------------------------------------------------------------------- */

/* name, number, what it means. Numbers never change; new ones are added at the end. */
#define HR_STATUS_TABLE(X)                                                                        \
	X(OK, 0, "success")                                                                           \
	X(INVALID_ARGUMENT, 1, "an argument is outside what the function takes")                      \
	X(OUT_OF_MEMORY, 2, "the device, or the limit set on it, has no room for the request")        \
	X(NO_HOST_MEMORY, 3, "the host has no memory for the library's own records")                  \
	X(NOT_ALLOCATED, 4, "the address is not one that is allocated now: freed already, or foreign") \
	X(BAD_DEVICE_NAME, 5, "the device name cannot be parsed")                                     \
	X(NO_SUCH_DEVICE, 6, "the name is well-formed, but this machine has no such device")          \
	X(AMBIGUOUS_DEVICE, 7, "the name fits more than one device")                                  \
	X(BAD_LIMIT, 8, "the memory limit is impossible")                                             \
	X(IN_USE, 9, "the thing is in use, so it cannot be changed or closed now")                    \
	X(UNKNOWN_ALLOCATOR, 10, "no allocator of that name is registered")                           \
	X(CLOSED, 11, "the handle was closed, or never was one")                                      \
	X(FORKED, 12, "this process is a fork; call hr_shutdown and start anew")                      \
	X(DEVICE_ERROR, 13, "the device reported an error")                                           \
	X(UNSUPPORTED, 14, "the device or allocator cannot do this")                                  \
	X(ALREADY_EXISTS, 15, "something of that name is there already")                              \
	X(IO, 16, "a file could not be read or written")                                              \
	X(BAD_FORMAT, 17, "the file or text is not what it should be")                                \
	X(TRUNCATED, 18, "the file ends in the middle")                                               \
	X(TOO_NEW, 19, "written by a newer version than this one can read")                           \
	X(TOO_SMALL, 20, "the caller's buffer is too small")                                          \
	X(TOO_MANY, 21, "a fixed number of something is used up")                                     \
	X(NOT_READY, 22, "not finished yet")                                                          \
	X(CORRUPT, 23, "an internal invariant does not hold; please report it")                          \
	X(LEAKED, 24, "everything was closed, but blocks, tensors or values had not been freed")

typedef enum hr_status {
#define HR_STATUS_ENUM(name, number, text) HR_##name = number,
	HR_STATUS_TABLE(HR_STATUS_ENUM)
#undef HR_STATUS_ENUM
} hr_status;

/* "HR_OUT_OF_MEMORY"; "HR_?" for a number that is none. Static text. */
HR_API const char *hr_status_name(hr_status status);

/* The sentence in the table above. Static text. */
HR_API const char *hr_status_text(hr_status status);

/* What went wrong in the calling thread's last failing call: a sentence that names the thing and the remedy. Safe to print: control characters
 * in the names of a program are written as \xNN. Valid until the thread's
 * next failing call; never NULL, empty when nothing has failed yet. */
HR_API const char *hr_last_message(void);

/* The status that goes with it; HR_OK when nothing has failed yet. */
HR_API hr_status hr_last_status(void);

/* ------------------------------------------------------------------------------------------------------------------------------
 * Names, shapes, dtypes: who is allocating, and what
 * ---------------------------------------------------------------------------------------------------------------------------- */

/* A name (of an op, a scope, a tag) as a number: interned once, so that requests carry no strings. */
typedef uint32_t hr_name;

#define HR_NAME_NONE 0u  /* no name; reads "" */
#define HR_NAME_OTHER 1u /* what any name becomes when 65,534 different ones are interned already; reads "(other)" */

/* The number of [text]: the same for the same text, for the life of the process. NULL and "" give HR_NAME_NONE. Names longer than
 * 1,024 bytes are cut. Never fails; takes about 20 ns for a known name. */
HR_API hr_name hr_name_intern(const char *text);

/* The text of a name; "(other)" for a number that is no name. Static text. */
HR_API const char *hr_name_text(hr_name name);

/* A tensor shape as a number, interned like a name. */
typedef uint32_t hr_shape;

#define HR_SHAPE_NONE 0u  /* no shape known */
#define HR_SHAPE_OTHER 1u /* what any shape becomes when the table is full */
#define HR_SHAPE_MAX_RANK 8

/* The number of the shape with [rank] dimensions. HR_SHAPE_NONE when rank is above HR_SHAPE_MAX_RANK, a dimension is negative, or
 * [dims] is NULL with rank > 0. Rank 0 is a scalar, which is a shape of its own. */
HR_API hr_shape hr_shape_intern(const int64_t *dims, int rank);

/* Copies the dimensions of [shape] to [dims] and returns the rank; -1 for HR_SHAPE_NONE, HR_SHAPE_OTHER and what is no shape. */
HR_API int hr_shape_dims(hr_shape shape, int64_t dims[HR_SHAPE_MAX_RANK]);

/* Writes "[64,1024]" (scalar "[]", unknown "?") with a final 0, cut to [capacity]; returns the length of the whole text. */
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

/* A logical device: a physical one, or a part of one with a memory limit of its own. */
typedef struct hr_device {
	uint32_t id; /* 0 is no device */
} hr_device;

typedef struct hr_device_info {
	size_t struct_size;
	char name[32];           /* "GPU:0" */
	char full_name[64];      /* "/job:localhost/replica:0/task:0/device:GPU:0" */
	char backend[16];        /* "emulated", "cpu", "cuda", "simulated" */
	char description[96];    /* for people: "emulated accelerator, 1.0 GiB, 2.0 MiB pages" */
	uint32_t physical_index; /* which physical device of its kind this is (a part of) */
	uint32_t logical_count;  /* how many logical devices that physical device has */
	uint64_t total_bytes;    /* memory of the physical device */
	uint64_t free_bytes;     /* memory of the physical device that nobody holds, other processes included */
	uint64_t limit_bytes;    /* the most this logical device may take: its memory_limit, or all there is; at most HEADROOM_LIMIT.
	                          * As it was set: bytes_limit of hr_stats has it in whole pages */
	uint64_t page_bytes;     /* unit of mapping; 0 where the device has no pages */
	uint64_t reserved_bytes; /* taken from the physical device by this logical one */
	uint64_t other_bytes;    /* memory of the physical device that is taken, but not by Headroom: other processes, and what CUDA
	                          * keeps for itself in this one */
} hr_device_info;

/* Finds a device by name. Names are read as TensorFlow reads them: "GPU:0", "gpu:0", "/device:GPU:0", "/GPU:0",
 * "/job:localhost/replica:0/task:0/device:GPU:0"; any part before the device part may be left out. "GPU:*" or "GPU" fits every GPU.
 * NULL means the default device: GPU:0.
 *
 * GPU:n counts logical GPUs: CUDA devices where there are any, else emulated ones. EMU:n is an emulated one in either case.
 * CPU:0 is the host. SIM:0 is the simulated device, which has no memory behind it.
 *
 * HR_BAD_DEVICE_NAME   cannot be parsed
 * HR_NO_SUCH_DEVICE    can be parsed, but is not here; the message lists what is, and says what is wrong with CUDA, if anything
 * HR_AMBIGUOUS_DEVICE  fits more than one; the message names two */
HR_API hr_status hr_device_find(const char *name, hr_device *out);

/* Number of logical devices, and the [index]th of them: GPUs first, then CPU:0, then SIM:0, then what else there is:
 * emulated devices where there is a CUDA device (EMU:0), and other types of registered backends. 0 when there is an error. */
HR_API uint32_t hr_device_count(void);
HR_API hr_status hr_device_at(uint32_t index, hr_device *out);

/* Whether it is an emulated device: GPU:0 is one where there is no CUDA device, and hr_cuda_check() says why. HEADROOM_REQUIRE_CUDA=1 in the
 * environment refuses that: there is no GPU:0 then (HR_NO_SUCH_DEVICE), and emulated devices are EMU:0 and on. false for what is no device. */
HR_API bool hr_device_is_emulated(hr_device device);

/* What a device is and how much memory it has now. Set info->struct_size first. */
HR_API hr_status hr_device_get_info(hr_device device, hr_device_info *info);

/* Splits a physical device into [count] logical ones, each with a memory limit in bytes. [physical] is "GPU:n", n counting physical
 * GPUs, or "SIM:0". The logical GPUs of all physical ones are numbered on: with two parts of the first GPU, the second GPU is GPU:2.
 * Must come before the device is first used.
 *
 * A limit of 0, one below one page, one above the device's memory, or limits that together exceed it: HR_BAD_LIMIT. After first use:
 * HR_IN_USE. [count] 0 or above 16: HR_INVALID_ARGUMENT. Names fail as in hr_device_find. */
HR_API hr_status hr_set_logical_devices(const char *physical, const uint64_t *memory_limits, size_t count);

/* HR_OK when there is a CUDA device. Otherwise HR_NO_SUCH_DEVICE, and the message says why: no driver, one that is too old or does
 * not work, no permission, no card, switched off. That is no error for programs: GPU:0 is an emulated device then. */
HR_API hr_status hr_cuda_check(void);

/* Settings in the environment never stop a program: one that cannot be read, or is impossible, is ignored, and this says so. HR_OK: all are
 * in force. HR_INVALID_ARGUMENT: the message names each that is ignored, and why: those that cannot be read, and those that were tried since the
 * process began, or hr_shutdown, and did not work. The `headroom` command prints that message. Variables and their meanings: docs/environment.md.
 *
 * HEADROOM_LIMIT=SIZE is the most that Headroom takes from each logical GPU (GPU:n and EMU:n), rounded down to whole pages; limits above it, of
 * logical devices and of allocators, are lowered to it. */
HR_API hr_status hr_environment_check(void);

/* ---- settings of devices. They must be made before first use (HR_IN_USE afterwards). ---- */

typedef struct hr_cuda_options {
	size_t struct_size;
	bool enabled;        /* false = as if there were no CUDA device, so that GPU:0 is an emulated one; default true */
	uint64_t page_bytes; /* unit of physical memory, a power of two up to 64 GiB; default 2 MiB. A card that has only larger units
	                      * takes its smallest (2 MiB). Mapping costs about 50 us per page, whatever its size */
} hr_cuda_options;

/* Defaults, then what the environment says: HEADROOM_CUDA=0 (or 1) is enabled, HEADROOM_CUDA_PAGE=16MiB is page_bytes. A text that
 * cannot be parsed is HR_INVALID_ARGUMENT, and [options] holds the plain defaults. A program that sets no options uses those, and goes on
 * (hr_environment_check). */
HR_API hr_status hr_cuda_options_init(hr_cuda_options *options);
HR_API hr_status hr_configure_cuda(const hr_cuda_options *options);

typedef struct hr_emulated_options {
	size_t struct_size;
	uint32_t devices;          /* how many emulated GPUs; default 1, at most 8; 0 = none */
	uint64_t memory_bytes;     /* of each; default 1 GiB, at least one page */
	uint64_t page_bytes;       /* a power of two, at least 64 KiB and the host's page; default 2 MiB */
	uint64_t link_bytes_per_s; /* each way between host and device; 0 = as fast as memory goes (default) */
	uint64_t kernel_latency_ns; /* fixed time a copy or fill takes on top; default 0 */
} hr_emulated_options;

/* Defaults, then what the environment says: HEADROOM_EMULATED="memory=1GiB,page=2MiB,link=2GB/s,latency=5us,devices=2", any subset.
 * A text that cannot be parsed is HR_INVALID_ARGUMENT, and [options] holds the plain defaults; as above. */
HR_API hr_status hr_emulated_options_init(hr_emulated_options *options);
HR_API hr_status hr_configure_emulated(const hr_emulated_options *options);

typedef struct hr_simulated_options {
	size_t struct_size;
	uint64_t memory_bytes;     /* default 1 TiB */
	uint64_t page_bytes;       /* a power of two, at least 256; default 2 MiB; 0 = the device has no pages, only plain allocation */
	uint64_t link_bytes_per_s; /* default 55 GB/s */
} hr_simulated_options;

HR_API void hr_simulated_options_init(hr_simulated_options *options);
HR_API hr_status hr_configure_simulated(const hr_simulated_options *options);

/* ------------------------------------------------------------------------------------------------------------------------------
 * Streams, events, copies
 *
 * Work on a device is asynchronous and ordered within a stream. A stream belongs to one physical device and is a small number, so
 * that a set of streams is a word of 64 bits.
 * ---------------------------------------------------------------------------------------------------------------------------- */

typedef uint32_t hr_stream;

#define HR_STREAM_DEFAULT 0u /* exists on every device, never destroyed */
#define HR_STREAM_MAX 64u    /* streams of one physical device alive at once, the default one included */

/* Host code that reads and writes device memory itself, without a stream. Pass it wherever a stream is asked for:
 *
 *     hr_alloc, pins             the call returns when the device has finished with the memory, so the host may touch it at once
 *     hr_free, unpins            the host was the last user: no stream has to wait for it
 *     hr_copy, hr_fill           the work is done when the call returns; it goes through the default stream
 *     hr_stream_wait_stream      the host waits for the other stream; a stream that should wait for the host returns at once
 *     hr_stream_synchronize      returns at once
 *     hr_record_stream           changes nothing
 *
 * Such a call may wait as long as the device takes for work it was given earlier. It costs nothing on streams without such work. The
 * host can access the memory of emulated devices and of CPU:0, and not that of a GPU; waiting works on all of them. Host code that
 * is given memory for another stream must wait for that stream (hr_stream_synchronize) before it touches the memory. */
#define HR_STREAM_HOST 0x80000000u

/* HR_TOO_MANY when 63 exist already. */
HR_API hr_status hr_stream_create(hr_device device, hr_stream *out);

/* Makes a stream of the device's own library known (a cudaStream_t as an integer). The same one gives the same number. It stays its
 * owner's: hr_stream_destroy makes Headroom forget it, and must come before the owner destroys it. */
HR_API hr_status hr_stream_import(hr_device device, uint64_t native, hr_stream *out);

/* Waits for the stream's work, then forgets it. Memory freed on it stays safe to reuse. */
HR_API hr_status hr_stream_destroy(hr_device device, hr_stream stream);

/* Waits until all work on [stream] is done. Reports an error of the device that happened meanwhile. */
HR_API hr_status hr_stream_synchronize(hr_device device, hr_stream stream);

/* Lets work given to [stream] from now on wait for what [other] was given so far. Does not block the caller. */
HR_API hr_status hr_stream_wait_stream(hr_device device, hr_stream stream, hr_stream other);

typedef enum hr_copy_kind {
	HR_COPY_TO_DEVICE = 1,   /* from host memory */
	HR_COPY_TO_HOST = 2,     /* from device memory */
	HR_COPY_ON_DEVICE = 3    /* within the device; the ranges must not overlap */
} hr_copy_kind;

/* Copies [bytes] in stream order. Returns before it is done; both ranges must stay valid until then. 0 bytes is HR_OK. */
HR_API hr_status hr_copy(hr_device device, void *to, const void *from, size_t bytes, hr_copy_kind kind, hr_stream stream);

/* Sets [bytes] of device memory to [value], in stream order. */
HR_API hr_status hr_fill(hr_device device, void *at, unsigned char value, size_t bytes, hr_stream stream);

/* ------------------------------------------------------------------------------------------------------------------------------
 * Allocators
 * ---------------------------------------------------------------------------------------------------------------------------- */

typedef struct hr_allocator {
	uint64_t id; /* 0 is no allocator */
} hr_allocator;

/* ---- what happens when memory runs out: see headroom_oom.h ---- */

/* A report on a request that failed. */
typedef struct hr_oom_report {
	uint64_t id; /* 0 is no report */
} hr_oom_report;

/* Called in the thread that ran out, after the report is made and before hr_alloc returns HR_OUT_OF_MEMORY. It may use Headroom;
 * requests that fail inside it make no report. */
typedef void (*hr_oom_callback)(void *user, hr_oom_report report);

/* What the log of recent allocations tells of addresses. */
typedef enum hr_log_address {
	HR_LOG_NO_ADDRESS = 0,
	HR_LOG_HASHED_ADDRESS = 1, /* other numbers, equal for equal addresses: for reports that are passed on. No secret is kept by it */
	HR_LOG_REAL_ADDRESS = 2
} hr_log_address;

typedef struct hr_oom_options {
	size_t struct_size;
	bool report_allocations_on_oom;        /* make a report when a request fails for lack of memory, and keep a log for it; default
	                                        * false, unless HEADROOM_OOM_REPORT is in the environment */
	uint32_t allocation_log_buffer_size;   /* entries of the log, for each thread: 1 to 65,536; default 100 */
	double allocation_log_sampling_rate;   /* the fraction of all operations that is logged, 0 to 1; default 1. Each operation is
	                                        * chosen at random with this probability, independently of its size, its thread and
	                                        * the operations around it. The failing request is always in */
	hr_log_address allocation_log_address; /* default: none */
	hr_oom_callback callback;              /* NULL (default): none */
	void *user;                            /* for the callback */
	bool allocation_log_allocations_only;  /* frees are not logged, so that the log reaches further back; default false */
} hr_oom_options;

HR_API void hr_oom_options_init(hr_oom_options *options);

typedef struct hr_allocator_options {
	size_t struct_size;

	/* "bfc" (default, NULL too): best fit with coalescing over pages that are mapped as it grows; hot path of tens of nanoseconds.
	 * "direct": asks the device each time.
	 * Any name given to hr_register_allocator: a custom one. */
	const char *kind;

	/* How reports call it; NULL = "<device>_<kind>", such as "GPU:0_bfc". Cut at 31 bytes. */
	const char *name;

	/* The most bytes it may take from the device; rounded down to whole pages. 0 = the device's limit (default). HR_GIB(3), not 3 << 30, which
	 * is an int and overflows. */
	uint64_t limit_bytes;

	/* bfc: unit of every size and address, a power of two from 16 to 64 KiB; default 256. */
	uint32_t granularity;

	/* bfc: true (default) maps pages as they are needed; false maps the whole limit at creation. */
	bool allow_growth;

	/* bfc: true (default) keeps small freed blocks (64 KiB and less) with the thread that freed them, so that threads stay out of
	 * each other's way. At most 16 MiB per thread, and 1/256 of the limit; given up before a request fails. */
	bool thread_cache;

	/* bfc, on devices with pages: true (default) lets free pages that are apart be mapped side by side when nothing else fits. */
	bool stitch;

	/* What is kept and told when memory runs out; hr_allocator_options_init sets its defaults too. */
	hr_oom_options oom;
} hr_allocator_options;

HR_API void hr_allocator_options_init(hr_allocator_options *options);

/* Makes an allocator on [device]; a NULL [options] means the defaults. Up to 255 exist at once (HR_TOO_MANY).
 * HR_UNKNOWN_ALLOCATOR (the message lists the kinds there are), HR_BAD_LIMIT (above the device, below one page),
 * HR_INVALID_ARGUMENT (granularity), HR_OUT_OF_MEMORY (allow_growth false and no room). */
HR_API hr_status hr_allocator_create(hr_device device, const hr_allocator_options *options, hr_allocator *out);

/* The default allocator of the named device (NULL = default device), made on first use with default options. Lives until
 * hr_shutdown; hr_allocator_close on it returns HR_IN_USE. */
HR_API hr_status hr_allocator_default(const char *device_name, hr_allocator *out);

/* Waits for the streams that used its memory, gives everything back and makes the handle dead. Blocks that are still allocated make
 * it fail with HR_IN_USE: the message says how many and how many bytes, and names the largest holder. */
HR_API hr_status hr_allocator_close(hr_allocator allocator);

/* As hr_allocator_close, but blocks that are still allocated go with it. */
HR_API hr_status hr_allocator_close_all(hr_allocator allocator);

/* Sizes, in 64 bits whatever the type of [n]. */
#define HR_KIB(n) ((uint64_t)(n) << 10)
#define HR_MIB(n) ((uint64_t)(n) << 20)
#define HR_GIB(n) ((uint64_t)(n) << 30)

/* A request for memory. Only [bytes] is needed; zero means "not said" everywhere else. */
typedef struct hr_request {
	size_t struct_size;
	size_t bytes;     /* > 0 */
	size_t alignment; /* of the address: 0 = the allocator's granularity, else a power of two */
	hr_stream stream; /* the stream that will use the block first; HR_STREAM_DEFAULT = 0; HR_STREAM_HOST */
	hr_name op;       /* who asks */
	hr_name scope;    /* on whose behalf: a name scope such as "encoder/layer_3" */
	hr_name tag;      /* what for: "weights", "kv_cache" */
	hr_shape shape;   /* of the tensor that will live there */
	hr_dtype dtype;
} hr_request;

/* HR_REQUEST(bytes) is a request for that many bytes and nothing said about them. */
#define HR_REQUEST(request_bytes) ((hr_request){ .struct_size = sizeof(hr_request), .bytes = (request_bytes) })

/* Allocates. The block is usable at once on request->stream: work given to that stream waits, on the device, for the streams that used
 * the memory before. With HR_STREAM_HOST the call itself waits for them, without holding a lock.
 * Costs tens of nanoseconds in "bfc" when nothing has to be mapped or waited for.
 *
 * HR_INVALID_ARGUMENT  bytes 0 or above 2^48, alignment not a power of two or above 2^40, struct_size or stream unknown
 * HR_OUT_OF_MEMORY     no room within the limit; the message says what was asked, what is free and the largest free block
 * HR_UNSUPPORTED       "direct": the device does not align as asked
 * HR_TOO_MANY          2^24 blocks in one part of the allocator, or 256 regions of a device without pages
 * HR_CORRUPT           a custom allocator gave an address that is in use, or not aligned
 * HR_CLOSED, HR_FORKED, HR_DEVICE_ERROR, HR_NO_HOST_MEMORY, HR_IO (the system refused something) */
HR_API hr_status hr_alloc(hr_allocator allocator, const hr_request *request, void **out);

/* hr_alloc with nothing but a size, for whatever the program does next: on HR_STREAM_HOST where the host can access the device's memory,
 * so it may wait as described there, and on the default stream otherwise. */
HR_API hr_status hr_alloc_bytes(hr_allocator allocator, size_t bytes, void **out);

/* Frees the block at [address]. [stream] is the last stream that was given work on it. Reuse on that stream is immediate; another
 * stream that gets the memory first waits, on the device, for what this stream has been given so far. With HR_STREAM_HOST the memory
 * is free for every stream at once, except that the stream of its request and those of hr_record_stream are still waited for. Any
 * thread may free.
 *
 * NULL is HR_OK. An address that is not allocated now, whether freed already, inside a block or never seen, is HR_NOT_ALLOCATED;
 * nothing changes. */
HR_API hr_status hr_free(hr_allocator allocator, void *address, hr_stream stream);

/* Says that [stream] too was given work on the block, so that after its free other streams wait for it as well. */
HR_API hr_status hr_record_stream(hr_allocator allocator, void *address, hr_stream stream);

/* What an allocated block is. */
typedef struct hr_allocation_info {
	size_t struct_size;
	void *address;
	size_t bytes;     /* of the chunk: what it occupies */
	size_t requested; /* what was asked for */
	hr_name op, scope, tag;
	hr_shape shape;
	hr_dtype dtype;
	uint64_t streams; /* bit s is set when stream s used it; the host has no bit */
} hr_allocation_info;

/* HR_NOT_ALLOCATED as in hr_free. Set info->struct_size first. */
HR_API hr_status hr_allocation_get_info(hr_allocator allocator, const void *address, hr_allocation_info *info);

/* Empties the caches and gives memory that is free back to the device: whole free pages, or whole free regions where there are no
 * pages. *released (may be NULL) gets the bytes given back. Waits for streams that may still use that memory. An error is the device's or the
 * system's; what could be given back is given back. */
HR_API hr_status hr_allocator_trim(hr_allocator allocator, uint64_t *released);

/* Verifies every structure of the allocator. HR_OK, or HR_CORRUPT with the number of the first violated invariant in the message. Right at
 * any moment, whatever other threads do: they wait meanwhile. Takes time in proportion to the number of chunks and holds the allocator's lock. */
HR_API hr_status hr_allocator_check(hr_allocator allocator);

/* ---- custom allocators ---- */

typedef struct hr_custom_stats {
	size_t struct_size;
	uint64_t bytes_reserved; /* bytes it holds from wherever it gets them */
	uint64_t bytes_limit;    /* 0 = it has none */
	uint64_t largest_free;   /* 0 = it does not know */
} hr_custom_stats;

/* A user's allocator. Statistics, the ledger and traces are kept by Headroom around it: it only has to find memory. Its functions may
 * use other allocators of Headroom. */
typedef struct hr_custom_allocator {
	size_t struct_size;

	/* Called once for each hr_allocator_create with this kind; *state is passed to the others. NULL: state is [user]. */
	hr_status (*open)(void *user, hr_device device, uint64_t limit_bytes, void **state);
	void (*close)(void *state);

	/* Must be there. The address must be aligned as asked and must not be in use. A failure is passed on to the caller of hr_alloc:
	 * HR_OUT_OF_MEMORY when there is no room. [stream] may be HR_STREAM_HOST: then the memory must be idle when the call returns.
	 * Called from any thread, several at a time. */
	hr_status (*alloc)(void *state, size_t bytes, size_t alignment, hr_stream stream, void **out);

	/* Must be there. */
	hr_status (*free)(void *state, void *address, size_t bytes, hr_stream stream);

	/* Its own statistics; NULL: Headroom reports what was handed out. */
	hr_status (*get_stats)(void *state, hr_custom_stats *stats);
} hr_custom_allocator;

/* Makes [table] available as options.kind = [name], on every device. The table is copied. HR_ALREADY_EXISTS for a name that is taken
 * ("bfc" and "direct" are), HR_TOO_MANY after 32, HR_INVALID_ARGUMENT for a name that is empty or above 31 bytes, or when alloc or
 * free is missing. */
HR_API hr_status hr_register_allocator(const char *name, const hr_custom_allocator *table, void *user);

/* ------------------------------------------------------------------------------------------------------------------------------
 * Statistics
 *
 * Always on, exact, read without stopping other threads. In every snapshot
 *
 *     bytes_active + bytes_inactive                    = bytes_in_use
 *     bytes_in_use + bytes_cached + bytes_free         = bytes_reserved
 *     bytes_requested                                 <= bytes_in_use
 *     bytes_reserved <= bytes_reservable_limit,  bytes_in_use <= peak_bytes_in_use,  bytes_reserved <= peak_bytes_reserved
 *     num_live_at_reset + num_allocs - num_failed_allocs - num_frees = num_live
 *     sum of the source_* fields                       = num_allocs - num_failed_allocs
 *     peak_bytes_active <= peak_bytes_in_use <= peak_bytes_reserved
 *
 * Plain blocks are active as long as they are allocated; a tensor is active while it is pinned, and inactive while it is resident and not
 * pinned. Memory that a tensor is moved to on the device is active until the tensor has moved.
 *
 * Peaks are those of one moment. They are exact while one thread uses an allocator, and those of a device while one thread uses all of its
 * allocators. With more threads peak_bytes_in_use and peak_bytes_active are upper bounds: at most 64 KiB for each thread and allocator that it
 * uses above the true ones; peak_error_bytes says how much. peak_bytes_reserved is always exact.
 * ---------------------------------------------------------------------------------------------------------------------------- */

/* name, what it means. All are int64_t; the order never changes, new ones are added at the end. */
#define HR_STATS_TABLE(X)                                                                                                           \
	X(num_allocs, "allocation requests made, met or refused, since start or reset")                                                 \
	X(bytes_in_use, "bytes of chunks handed out, rounding included")                                                                \
	X(peak_bytes_in_use, "most bytes_in_use since start or reset")                                                                  \
	X(largest_alloc_size, "largest chunk handed out since start or reset")                                                          \
	X(bytes_limit, "bytes the user may allocate, in whole pages")                                                                   \
	X(bytes_reserved, "bytes taken from the device")                                                                                \
	X(peak_bytes_reserved, "most bytes_reserved since start or reset")                                                              \
	X(bytes_reservable_limit, "the most that may be taken from the device: the same as bytes_limit")                                \
	X(bytes_inactive, "bytes of resident tensors that nothing is using")                                                            \
	X(bytes_active, "in use less inactive")                                                                                         \
	X(peak_bytes_active, "most bytes_active since start or reset")                                                                  \
	X(bytes_reclaimed, "total bytes freed on the device by moving tensors to the host")                                             \
	X(num_single_reclaims, "times moving one tensor out was enough")                                                                \
	X(num_full_reclaims, "times everything inactive had to be moved out")                                                           \
	X(num_defragmentations, "times live bytes were moved or remapped to join free memory")                                          \
	X(bytes_defragged, "bytes so moved")                                                                                            \
	X(num_failed_allocs, "requests refused")                                                                                        \
	X(num_frees, "blocks freed")                                                                                                    \
	X(num_live, "blocks allocated now, tensors that are out included")                                                              \
	X(bytes_requested, "bytes asked for by the blocks allocated now, before rounding")                                              \
	X(bytes_cached, "bytes of freed blocks kept in thread caches")                                                                  \
	X(bytes_free, "bytes reserved that are neither in use nor cached")                                                              \
	X(largest_free_block, "bytes of the largest free block")                                                                        \
	X(num_free_blocks, "free blocks, cached ones not counted")                                                                      \
	X(num_regions, "regions: ranges of addresses reserved from the device")                                                         \
	X(peak_error_bytes, "peak_bytes_in_use and peak_bytes_active are at most this much too high; 0 = exact")                        \
	X(metadata_bytes, "host memory for chunk records, ledger, lookup table and caches")                                             \
	X(source_cache, "allocations met from a thread cache")                                                                          \
	X(source_free_chunk, "allocations met from a free chunk")                                                                       \
	X(source_grow, "allocations for which pages were mapped or a region added")                                                     \
	X(source_trim, "allocations met after emptying caches and releasing free memory")                                               \
	X(source_stitch, "allocations met by mapping free pages side by side")                                                          \
	X(source_single_reclaim, "allocations met by moving one tensor out")                                                            \
	X(source_multi_reclaim, "allocations met by moving several adjacent tensors out")                                               \
	X(source_full_reclaim, "allocations met by moving everything inactive out")                                                     \
	X(source_defragment, "allocations met by moving live bytes")                                                                    \
	X(source_device, "allocations met by asking the device or a custom allocator each time")                                        \
	X(num_stitches, "times free pages were mapped side by side")                                                                    \
	X(bytes_stitched, "bytes of pages so remapped")                                                                                 \
	X(num_stream_waits, "times one stream had to wait for another to reuse memory")                                                 \
	X(num_trims, "times caches were emptied and free memory released, asked for or under pressure")                                 \
	X(num_live_at_reset, "blocks that were allocated when the statistics were last reset")                                          \
	X(page_table_bytes, "host memory that says which page is mapped where: 4 bytes for each page reserved")                           \
	X(num_multi_reclaims, "times moving several adjacent tensors out was enough")                                                   \
	X(total_bytes_allocated, "bytes of all chunks handed out since start or reset, rounding included")

/* fragmentation is apart because it is a fraction: 1 - largest_free_block / bytes_free, 0 when nothing is free. */
typedef struct hr_stats {
	size_t struct_size;
	double fragmentation;
#define HR_STATS_FIELD(name, text) int64_t name;
	HR_STATS_TABLE(HR_STATS_FIELD)
#undef HR_STATS_FIELD
} hr_stats;

/* A snapshot. Set stats->struct_size first (hr_stats_init does). Takes no lock that an allocation waits for, except when 64 attempts
 * at a quiet moment fail; then it holds it for about 100 ns. */
HR_API void hr_stats_init(hr_stats *stats);
HR_API hr_status hr_allocator_get_stats(hr_allocator allocator, hr_stats *stats);

/* All allocators of a device together: sums, but for the largest of largest_alloc_size and largest_free_block, the limits of the device, and its
 * peaks, which are tracked as one number: allocators that reached their peaks at different times do not add up. What a closed allocator has
 * counted, and its share of the peaks, stays with the device until the next reset; blocks that hr_allocator_close_all took with it count as
 * freed. */
HR_API hr_status hr_device_get_stats(hr_device device, hr_stats *stats);

/* Counting begins anew for the device (NULL = default device) and every allocator on it:
 *
 *     set to 0         num_allocs, num_failed_allocs, num_frees, total_bytes_allocated, largest_alloc_size, all source_* fields,
 *                      num_stream_waits, num_trims, num_stitches, bytes_stitched, bytes_reclaimed, num_single_reclaims,
 *                      num_multi_reclaims, num_full_reclaims, num_defragmentations, bytes_defragged
 *     set to now       peak_bytes_in_use to bytes_in_use, peak_bytes_active to bytes_active, peak_bytes_reserved to bytes_reserved,
 *                      num_live_at_reset to num_live, peak_error_bytes to what the threads that use the allocator now make it
 *     not changed      everything else: it says what is now
 *
 * hr_lms_get_stats is reset with it (headroom_lms.h says how); scopes (hr_stats_scope_begin) are not. Stops each allocator's threads for a
 * moment, one allocator after the other. HR_NO_SUCH_DEVICE. */
HR_API hr_status hr_reset_memory_stats(const char *device_name);

typedef struct hr_memory_info {
	size_t struct_size;
	int64_t current; /* bytes in use on the device, all its allocators together */
	int64_t peak;    /* the most there were since start or reset */
} hr_memory_info;

/* What the whole device holds now and held at most. NULL means the default device. */
HR_API hr_status hr_get_memory_info(const char *device_name, hr_memory_info *info);

/* One number of the logical GPU [gpu_id] (0 = GPU:0), all its allocators together. Negative values are errors: -status, for instance
 * -HR_NO_SUCH_DEVICE when there is no such GPU. */
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

/* Statistics as a table for people, or as one JSON object (keys as in HR_STATS_TABLE, and fragmentation). Writes at most [capacity]
 * bytes with a final 0 and returns the length of the whole text; a result >= capacity means it was cut. */
HR_API size_t hr_stats_format(const hr_stats *stats, char *out, size_t capacity);
HR_API size_t hr_stats_json(const hr_stats *stats, char *out, size_t capacity);

/* ---- regions ---- */

typedef struct hr_region_info {
	size_t struct_size;
	void *base;
	uint64_t reserved_addresses; /* bytes of address space */
	int64_t bytes_reserved;      /* of those, with memory behind them */
	int64_t bytes_in_use;
	int64_t bytes_cached;
	int64_t bytes_free;
	int64_t largest_free_block;
	double fragmentation;
	int64_t num_live;
	int64_t num_free_blocks;
	bool small_blocks;           /* the region that thread caches are filled from */
} hr_region_info;

/* The [index]th region; HR_INVALID_ARGUMENT past the last (stats.num_regions says how many). Walks the region's chunks. */
HR_API hr_status hr_allocator_get_region(hr_allocator allocator, uint32_t index, hr_region_info *info);

/* What lies where in a region, lowest address first. Chunks of kind HR_CHUNK_UNMAPPED have no memory behind them. */
typedef enum hr_chunk_kind { HR_CHUNK_FREE = 1, HR_CHUNK_IN_USE = 2, HR_CHUNK_CACHED = 3, HR_CHUNK_UNMAPPED = 4 } hr_chunk_kind;

typedef struct hr_chunk_view {
	void *address;
	uint64_t bytes;
	uint64_t requested; /* in use only */
	hr_chunk_kind kind;
	hr_name op, scope, tag;
	hr_shape shape;
	hr_dtype dtype;
} hr_chunk_view;

/* Calls [visit] for each chunk of region [index] until it returns false. The allocator's lock is held meanwhile: [visit] must not
 * call Headroom. */
HR_API hr_status hr_allocator_visit(hr_allocator allocator, uint32_t index, bool (*visit)(void *context, const hr_chunk_view *chunk),
                                    void *context);

/* ---- peak inside a scope ---- */

/* Begins a scope of the calling thread: from here on, the most bytes that the thread's own allocations add on [device] is recorded.
 * Scopes nest, up to 32 deep, and are independent of hr_reset_memory_stats. HR_TOO_MANY beyond that. */
HR_API hr_status hr_stats_scope_begin(hr_device device);

typedef struct hr_stats_scope {
	size_t struct_size;
	int64_t peak_bytes;  /* the most bytes in use that this thread's allocations and frees inside the scope came to, above the start */
	int64_t net_bytes;   /* what is left at the end: positive = the scope allocated more than it freed */
	int64_t num_allocs;
	int64_t num_frees;
} hr_stats_scope;

/* Ends the innermost scope of the calling thread, which must be on [device]; [scope] may be NULL. HR_INVALID_ARGUMENT when there is
 * none, or the innermost is on another device. */
HR_API hr_status hr_stats_scope_end(hr_device device, hr_stats_scope *scope);

/* ------------------------------------------------------------------------------------------------------------------------------
 * The end
 * ---------------------------------------------------------------------------------------------------------------------------- */

/* Closes every session, every allocator (blocks that are still allocated go with them), every stream and every device, ends a recording,
 * and forgets all settings. Afterwards the library can be used anew. In a forked child it forgets what the parent made, and reports nothing
 * of it.
 *
 * The shared library stays in memory after dlclose, with what it holds; call this first. A module that contains the static library may be
 * unloaded after it, while threads that used it still run: these must not call it again, and what it keeps for each of them is lost.
 *
 * HR_LEAKED  all of that is done, but the program had not freed everything: blocks of hr_alloc, tensors of hr_tensor_create, or values of
 *            sessions that were still open. The message says how many of each and how many bytes, and which op, scope and tag hold most.
 *            A session or an allocator that is still open, or a variable, is no leak: it is closed. Nor is what hr_allocator_close_all closed
 *            before. Adding it up takes time in proportion to the blocks that are left
 * HR_IO, ... the recording could not be ended; leaks are in the same message */
HR_API hr_status hr_shutdown(void);

#ifdef __cplusplus
}
#endif

#include "headroom_oom.h"
#include "headroom_lms.h"
#include "headroom_runtime.h"

#endif
