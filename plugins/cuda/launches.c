/* launches.c - see launches.h. With HEADROOM_RUN_USES=1 a recording also has the launches: an op with the blocks that the kernel's arguments point to.
 *
 * An argument says where a block is and not what the kernel does with it, so each block counts as read and written. A structure is searched for pointers
 * at multiples of 8 bytes. Blocks that are only reached through memory of the device are not seen, nor are launches inside of graphs.
 *
 * The first MEASURED executions of a kernel are timed with two events, which waits for the kernel; the shortest is the time of all later ones. A kernel may itself
 * wait for what the program does after the launch, for example launch another one: so the wait has an end, after which that kernel has no time. */
#include "launches.h"

#include <sched.h>
#include <string.h>
#include <time.h>

#include "blocks.h"
#include "captures.h"
#include "core/trace/trace.h"
#include "kernels.h"
#include "manage.h"
#include "record.h"
#include "settings.h"

HR__ANSWERED_PLAIN(HR__PROTOTYPE)
HR__ANSWERED_STREAM(HR__PROTOTYPES)

#define EXPECTED_MAX 16 /* blocks of a thread that wait for a launch; earlier ones keep their names */
#define MEASURED 3
#define WAIT_MAX_NS 1000000000ull
#define LEAST_ADDRESS 4096u
#define BUFFER_POINTER ((void *)1) /* as CU_LAUNCH_PARAM_BUFFER_POINTER */
#define BUFFER_SIZE ((void *)2)
#define BUFFER_END ((void *)0)

/* ---- names ---- */

static __thread struct {
	unsigned count;
	hr_allocator allocators[EXPECTED_MAX];
	uint64_t addresses[EXPECTED_MAX];
} expected;

void hr__launches_expect(hr_allocator allocator, uint64_t address)
{
	unsigned at = expected.count < EXPECTED_MAX ? expected.count++ : EXPECTED_MAX - 1;
	expected.allocators[at] = allocator;
	expected.addresses[at] = address;
}

void hr__launches_forget(uint64_t address)
{
	for (unsigned i = 0; i < expected.count; i++) {
		if (expected.addresses[i] != address) continue;
		expected.count--;
		expected.addresses[i] = expected.addresses[expected.count];
		expected.allocators[i] = expected.allocators[expected.count];
	}
}

static void name_expected(const hr__kernel *kernel)
{
	for (unsigned i = 0; i < expected.count; i++)
		(void)!hr_allocation_set_names(expected.allocators[i], (const void *)(uintptr_t)expected.addresses[i], HR_NAME_NONE, kernel->name);
	expected.count = 0;
}

/* ---- uses ---- */

static void emit(const hr__kernel *kernel, hr__event_kind kind, const hr__block *block, uint64_t ns)
{
	hr__event event = { .kind = kind, .op = kernel->name, .bytes = ns };
	if (block) event.op = HR_NAME_NONE, event.allocator = (uint32_t)block->allocator.id, event.address = block->address;
	hr__trace_event(&event);
}

/* The block that [value] points into, if it is an address at all. */
static bool block_at(uint64_t value, hr__block *out)
{
	CUdeviceptr base = 0;
	size_t bytes;
	if (value < LEAST_ADDRESS || value >> 57) return false;
	if (hr__blocks_find(value, false, out) || hr__manage_find(value, out)) return true;
	if (!hr__driver.cuMemGetAddressRange_v2 || hr__driver.cuMemGetAddressRange_v2(&base, &bytes, value) != HR__CUDA_SUCCESS) return false;
	return hr__blocks_find(base, false, out);
}

static void emit_uses(const hr__kernel *kernel, const void *argument, uint32_t size)
{
	hr__block block;
	for (uint32_t at = 0; at + sizeof(uint64_t) <= size; at += (uint32_t)sizeof(uint64_t)) {
		uint64_t value;
		memcpy(&value, (const char *)argument + at, sizeof value);
		if (!block_at(value, &block)) continue;
		emit(kernel, HR__EVENT_READ, &block, 0);
		emit(kernel, HR__EVENT_WRITE, &block, 0);
	}
}

/* Arguments are passed one by one, or all in one buffer with the layout of the parameters. */
static void emit_arguments(const hr__kernel *kernel, void *const *arguments, void *const *extra)
{
	const char *buffer = NULL;
	for (; extra && *extra != BUFFER_END; extra += 2)
		if (*extra == BUFFER_POINTER) buffer = extra[1];
	for (uint32_t i = 0; i < kernel->parameter_count; i++) {
		const void *argument = arguments ? arguments[i] : buffer ? buffer + kernel->offsets[i] : NULL;
		if (argument) emit_uses(kernel, argument, kernel->sizes[i]);
	}
}

/* ---- times ---- */

typedef struct launch_timer {
	CUevent begin, end; /* NULL = the launch is not measured */
	CUstream stream;
} launch_timer;

static bool can_measure(const hr__kernel *kernel)
{
	/* Waiting can end the recording of a graph, also that of another thread. */
	if (__atomic_load_n(&kernel->measured, __ATOMIC_RELAXED) >= MEASURED || hr__captures_active()) return false;
	return hr__driver.cuEventCreate && hr__driver.cuEventRecord && hr__driver.cuEventQuery && hr__driver.cuEventElapsedTime && hr__driver.cuEventDestroy_v2;
}

static void end_timer(launch_timer *timer)
{
	if (timer->begin) hr__driver.cuEventDestroy_v2(timer->begin);
	if (timer->end) hr__driver.cuEventDestroy_v2(timer->end);
	timer->begin = timer->end = NULL;
}

static void begin_timer(launch_timer *timer, const hr__kernel *kernel, CUstream stream)
{
	*timer = (launch_timer){ .stream = stream };
	if (!can_measure(kernel)) return;
	bool made = hr__driver.cuEventCreate(&timer->begin, HR__CU_EVENT_DEFAULT) == HR__CUDA_SUCCESS &&
	            hr__driver.cuEventCreate(&timer->end, HR__CU_EVENT_DEFAULT) == HR__CUDA_SUCCESS;
	if (!made || hr__driver.cuEventRecord(timer->begin, stream) != HR__CUDA_SUCCESS) end_timer(timer);
}

static uint64_t now_ns(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000ull + (uint64_t)now.tv_nsec;
}

/* Whether the kernel is done; false after WAIT_MAX_NS, or where the driver does not say. */
static bool wait_for_kernel(const launch_timer *timer)
{
	CUresult result;
	uint64_t until = now_ns() + WAIT_MAX_NS;
	while ((result = hr__driver.cuEventQuery(timer->end)) == HR__CUDA_ERROR_NOT_READY && now_ns() < until) sched_yield();
	return result == HR__CUDA_SUCCESS;
}

static void note_time(hr__kernel *kernel, float ms)
{
	uint64_t ns = ms > 0 ? (uint64_t)((double)ms * 1e6) : 0, least = __atomic_load_n(&kernel->least_ns, __ATOMIC_RELAXED);
	if (!least || ns < least) __atomic_store_n(&kernel->least_ns, ns, __ATOMIC_RELAXED);
	__atomic_fetch_add(&kernel->measured, 1, __ATOMIC_RELAXED);
}

static void read_timer(launch_timer *timer, hr__kernel *kernel)
{
	float ms;
	if (timer->end && hr__driver.cuEventRecord(timer->end, timer->stream) == HR__CUDA_SUCCESS) {
		if (!wait_for_kernel(timer)) __atomic_store_n(&kernel->measured, MEASURED, __ATOMIC_RELAXED);
		else if (hr__driver.cuEventElapsedTime(&ms, timer->begin, timer->end) == HR__CUDA_SUCCESS) note_time(kernel, ms);
	}
	end_timer(timer);
}

/* ---- launches ---- */

static void say_once_without_parameters(void)
{
	static int said;
	if (!__atomic_exchange_n(&said, 1, __ATOMIC_RELAXED))
		hr__settings_say("launches are recorded without the blocks that they use: the CUDA driver has neither cuFuncGetParamInfo nor cuKernelGetParamInfo, which CUDA 12.4 "
		                 "added");
}

typedef struct noted_launch {
	hr__kernel *kernel; /* NULL = nothing to record */
	launch_timer timer;
} noted_launch;

static void begin_launch(noted_launch *launch, CUfunction function, CUstream stream, void **arguments, void **extra)
{
	*launch = (noted_launch){ .kernel = NULL };
	bool uses = hr__settings_now.uses && hr__trace_is_on();
	if ((!expected.count && !uses) || !hr__ledger_is_on()) return;
	hr__kernel *kernel = hr__kernels_get(function);
	if (!kernel) return;
	name_expected(kernel);
	if (!uses || hr__captures_has(stream, false)) return; /* a graph that is recorded runs later, or never */
	if (!hr__driver.cuFuncGetParamInfo && !hr__driver.cuKernelGetParamInfo) say_once_without_parameters();
	launch->kernel = kernel;
	emit(kernel, HR__EVENT_OP_BEGIN, NULL, 0);
	emit_arguments(kernel, arguments, extra);
	begin_timer(&launch->timer, kernel, stream);
}

static CUresult end_launch(noted_launch *launch, CUresult result)
{
	if (!launch->kernel) return result;
	if (result == HR__CUDA_SUCCESS) read_timer(&launch->timer, launch->kernel);
	else end_timer(&launch->timer);
	emit(launch->kernel, HR__EVENT_OP_END, NULL, __atomic_load_n(&launch->kernel->least_ns, __ATOMIC_RELAXED));
	return result;
}

/* The events of the timer are recorded with the calls whose stream 0 is the legacy one. */
static CUstream of_variant(CUstream stream, bool per_thread)
{
	return stream || !per_thread ? stream : HR__PER_THREAD_STREAM;
}

/* Almost all launches: no block of the thread waits for a name, and launches are not recorded. Then the call is a jump to the driver's, so what records
 * is in functions of their own, which save registers.
 *
 * A launch reads this cache line and two for the thread's count. Between two launches a program uses so much other memory that each further line is
 * a miss of the first cache, and a step of a training program has hundreds of launches.
 *
 * NULL: the driver has not been found, lacks the call, or launches are recorded. Relaxed atomics; they change once. */
static struct {
#define PLAIN(symbol, name, since, parameters) CUresult(*symbol) parameters; CUresult(*symbol##_ptsz) parameters;
	HR__ANSWERED_LAUNCHES(PLAIN)
#undef PLAIN
} plain __attribute__((aligned(64)));
_Static_assert(sizeof plain <= 64, "one cache line");

void hr__launches_begin(void)
{
	if (hr__settings_get()->uses) return;
#define PLAIN(symbol, name, since, parameters)                                       \
	__atomic_store_n(&plain.symbol, hr__driver.symbol, __ATOMIC_RELAXED);            \
	__atomic_store_n(&plain.symbol##_ptsz, hr__driver.symbol##_ptsz, __ATOMIC_RELAXED);
	HR__ANSWERED_LAUNCHES(PLAIN)
#undef PLAIN
}

/* The driver's function, or NULL: the launch has to be looked at. */
#define PLAIN_LAUNCH(symbol) (__builtin_expect(expected.count == 0, true) ? __atomic_load_n(&plain.symbol, __ATOMIC_RELAXED) : NULL)

#define RECORDS static __attribute__((noinline)) CUresult

#define LAUNCH_CALLS(variant, per_thread)                                                                                                                    \
	RECORDS record_launch##variant(CUfunction function, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx, unsigned int by,                 \
	                               unsigned int bz, unsigned int shared, CUstream stream, void **arguments, void **extra)                                    \
	{                                                                                                                                                        \
		noted_launch launch;                                                                                                                                 \
		begin_launch(&launch, function, of_variant(stream, per_thread), arguments, extra);                                                                   \
		return end_launch(&launch, HR__REAL(cuLaunchKernel##variant, function, gx, gy, gz, bx, by, bz, shared, stream, arguments, extra));                   \
	}                                                                                                                                                        \
	RECORDS record_launch_ex##variant(const CUlaunchConfig *config, CUfunction function, void **arguments, void **extra)                                     \
	{                                                                                                                                                        \
		noted_launch launch = { .kernel = NULL };                                                                                                            \
		if (config) begin_launch(&launch, function, of_variant(config->hStream, per_thread), arguments, extra);                                              \
		return end_launch(&launch, HR__REAL(cuLaunchKernelEx##variant, config, function, arguments, extra));                                                 \
	}                                                                                                                                                        \
	RECORDS record_cooperative##variant(CUfunction function, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx, unsigned int by,            \
	                                    unsigned int bz, unsigned int shared, CUstream stream, void **arguments)                                             \
	{                                                                                                                                                        \
		noted_launch launch;                                                                                                                                 \
		begin_launch(&launch, function, of_variant(stream, per_thread), arguments, NULL);                                                                    \
		return end_launch(&launch, HR__REAL(cuLaunchCooperativeKernel##variant, function, gx, gy, gz, bx, by, bz, shared, stream, arguments));               \
	}                                                                                                                                                        \
	CUresult cuLaunchKernel##variant(CUfunction function, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx, unsigned int by, unsigned int bz, \
	                                 unsigned int shared, CUstream stream, void **arguments, void **extra)                                                   \
	{                                                                                                                                                        \
		__typeof__(hr__driver.cuLaunchKernel##variant) real = PLAIN_LAUNCH(cuLaunchKernel##variant);                                                         \
		if (__builtin_expect(real != NULL, true)) return real(function, gx, gy, gz, bx, by, bz, shared, stream, arguments, extra);                           \
		return record_launch##variant(function, gx, gy, gz, bx, by, bz, shared, stream, arguments, extra);                                                   \
	}                                                                                                                                                        \
	CUresult cuLaunchKernelEx##variant(const CUlaunchConfig *config, CUfunction function, void **arguments, void **extra)                                    \
	{                                                                                                                                                        \
		__typeof__(hr__driver.cuLaunchKernelEx##variant) real = PLAIN_LAUNCH(cuLaunchKernelEx##variant);                                                     \
		if (__builtin_expect(real != NULL, true)) return real(config, function, arguments, extra);                                                           \
		return record_launch_ex##variant(config, function, arguments, extra);                                                                                \
	}                                                                                                                                                        \
	CUresult cuLaunchCooperativeKernel##variant(CUfunction function, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx, unsigned int by,    \
	                                            unsigned int bz, unsigned int shared, CUstream stream, void **arguments)                                     \
	{                                                                                                                                                        \
		__typeof__(hr__driver.cuLaunchCooperativeKernel##variant) real = PLAIN_LAUNCH(cuLaunchCooperativeKernel##variant);                                   \
		if (__builtin_expect(real != NULL, true)) return real(function, gx, gy, gz, bx, by, bz, shared, stream, arguments);                                  \
		return record_cooperative##variant(function, gx, gy, gz, bx, by, bz, shared, stream, arguments);                                                     \
	}

LAUNCH_CALLS(, false)
LAUNCH_CALLS(_ptsz, true)

/* ---- unloading ---- */

CUresult cuModuleUnload(CUmodule module)
{
	CUresult result = HR__REAL(cuModuleUnload, module);
	if (hr__ledger_is_on()) hr__kernels_forget();
	return result;
}

CUresult cuLibraryUnload(CUlibrary library)
{
	CUresult result = HR__REAL(cuLibraryUnload, library);
	if (hr__ledger_is_on()) hr__kernels_forget();
	return result;
}
