/* launches.c - see launches.h. With HEADROOM_RUN_USES=1 a recording also has the launches: an op with the blocks that the kernel's arguments point to.
 *
 * An argument says where a block is and not what the kernel does with it, so each block counts as read and written. A structure is searched for pointers
 * at multiples of 8 bytes. Blocks that are only reached through memory of the device are not seen, nor are launches inside of graphs.
 *
 * The first MEASURED executions of a kernel are timed with two events, which waits for the kernel; the shortest is the time of all later ones. A kernel may itself
 * wait for what the program does after the launch, for example launch another one: so the wait has an end, after which that kernel has no time. */
#include "launches.h"

#include <sched.h>
#include <stddef.h>
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

#define MEASURED 3
#define WAIT_MAX_NS 1000000000ull
#define LEAST_ADDRESS 4096u
#define BUFFER_POINTER ((void *)1) /* as CU_LAUNCH_PARAM_BUFFER_POINTER */
#define BUFFER_SIZE ((void *)2)
#define BUFFER_END ((void *)0)

/* ---- names ---- */

void hr__launches_forget(uint64_t address)
{
	hr__thread *self = &hr__this_thread;
	for (uint32_t i = 0; i < self->expected_count; i++)
		if (self->expected[i].address == address) self->expected[i] = self->expected[--self->expected_count];
}

__attribute__((always_inline)) static inline void name_expected(hr_name name)
{
	hr__thread *self = &hr__this_thread;
	for (uint32_t i = 0; i < self->expected_count; i++) {
		const hr__expected_block *block = &self->expected[i];
		if (__builtin_expect(block->id != 0, true)) hr__now.set_tag(block->allocator, block->id, block->address, name);
		else (void)!hr_allocation_set_names(block->allocator, (const void *)(uintptr_t)block->address, HR_NAME_NONE, name);
	}
	self->expected_count = 0;
}

/* ---- uses ---- */

typedef struct used_block {
	hr_allocator allocator;
	uint64_t address;
} used_block;

static void emit(const hr__kernel *kernel, hr__event_kind kind, const used_block *block, uint64_t ns)
{
	hr__event event = { .kind = kind, .op = kernel->name, .bytes = ns };
	if (block) event.op = HR_NAME_NONE, event.allocator = (uint32_t)block->allocator.id, event.address = block->address;
	hr__trace_event(&event);
}

static bool begins_at(uint64_t address, used_block *out)
{
	*out = (used_block){ .allocator = hr__ledger_find(address), .address = address };
	return out->allocator.id != 0;
}

/* The block that [value] points into, if it is an address at all. */
static bool block_at(uint64_t value, used_block *out)
{
	CUdeviceptr base = 0;
	size_t bytes;
	hr__block managed;
	if (value < LEAST_ADDRESS || value >> 57) return false;
	if (begins_at(value, out)) return true;
	if (hr__manage_find(value, &managed)) {
		*out = (used_block){ .allocator = managed.allocator, .address = managed.address };
		return true;
	}
	if (!hr__driver.cuMemGetAddressRange_v2 || hr__driver.cuMemGetAddressRange_v2(&base, &bytes, value) != HR__CUDA_SUCCESS) return false;
	return begins_at(base, out);
}

static void emit_uses(const hr__kernel *kernel, const void *argument, uint32_t size)
{
	used_block block;
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
	if ((!hr__this_thread.expected_count && !uses) || !hr__ledger_is_on()) return;
	hr__kernel *kernel = hr__kernels_get(function);
	if (!kernel) return;
	name_expected(kernel->name);
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

/* Almost all launches: no block of the thread waits for a name, and launches are not recorded. Then the call is a jump to the driver's, so what names
 * and records is in functions of their own, which save registers.
 *
 * A launch reads this cache line and two for the thread's count. Between two launches a program uses so much other memory that each further line is
 * a miss of the first cache, and a step of a training program has hundreds of launches.
 *
 * Their functions are in hr__now.launch. NULL: the driver has not been found, lacks the call, or launches are recorded. */
_Static_assert(offsetof(hr__state, unloads) / 64 == offsetof(hr__state, launch) / 64, "one cache line");

void hr__launches_begin(void)
{
	if (hr__settings_get()->uses) return;
#define PLAIN(symbol, name, since, parameters)                                     \
	__atomic_store_n(&hr__now.launch.symbol, hr__driver.symbol, __ATOMIC_RELAXED); \
	__atomic_store_n(&hr__now.launch.symbol##_ptsz, hr__driver.symbol##_ptsz, __ATOMIC_RELAXED);
	HR__ANSWERED_LAUNCHES(PLAIN)
#undef PLAIN
}

/* The driver's function, or NULL: blocks wait for a name, or the launch is recorded. */
#define PLAIN_LAUNCH(symbol) (__builtin_expect(hr__this_thread.expected_count == 0, true) ? __atomic_load_n(&hr__now.launch.symbol, __ATOMIC_RELAXED) : NULL)

/* Names the blocks that wait. */
static __attribute__((noinline, hot)) void name_waiting(CUfunction function)
{
	name_expected(hr__kernels_name(function));
}
/* The driver's function, after the blocks that wait were named; NULL: the launch is recorded. */
#define NAMED_LAUNCH(symbol, function)                                                                         \
	({                                                                                                         \
		__typeof__(hr__driver.symbol) named_ = __atomic_load_n(&hr__now.launch.symbol, __ATOMIC_RELAXED);      \
		if (__builtin_expect(named_ != NULL, true)) name_waiting(function);                                    \
		named_;                                                                                                \
	})

#define NAMES static __attribute__((noinline, hot)) CUresult
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
	NAMES name_launch##variant(CUfunction function, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx, unsigned int by, unsigned int bz,    \
	                    unsigned int shared, CUstream stream, void **arguments, void **extra)                                                                \
	{                                                                                                                                                        \
		__typeof__(hr__driver.cuLaunchKernel##variant) real = NAMED_LAUNCH(cuLaunchKernel##variant, function);                                               \
		if (__builtin_expect(real != NULL, true)) return real(function, gx, gy, gz, bx, by, bz, shared, stream, arguments, extra);                           \
		return record_launch##variant(function, gx, gy, gz, bx, by, bz, shared, stream, arguments, extra);                                                   \
	}                                                                                                                                                        \
	NAMES name_launch_ex##variant(const CUlaunchConfig *config, CUfunction function, void **arguments, void **extra)                                         \
	{                                                                                                                                                        \
		__typeof__(hr__driver.cuLaunchKernelEx##variant) real = config ? NAMED_LAUNCH(cuLaunchKernelEx##variant, function) : NULL;                           \
		if (__builtin_expect(real != NULL, true)) return real(config, function, arguments, extra);                                                           \
		return record_launch_ex##variant(config, function, arguments, extra);                                                                                \
	}                                                                                                                                                        \
	NAMES name_cooperative##variant(CUfunction function, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx, unsigned int by, unsigned int bz, \
	                    unsigned int shared, CUstream stream, void **arguments)                                                                              \
	{                                                                                                                                                        \
		__typeof__(hr__driver.cuLaunchCooperativeKernel##variant) real = NAMED_LAUNCH(cuLaunchCooperativeKernel##variant, function);                         \
		if (__builtin_expect(real != NULL, true)) return real(function, gx, gy, gz, bx, by, bz, shared, stream, arguments);                                  \
		return record_cooperative##variant(function, gx, gy, gz, bx, by, bz, shared, stream, arguments);                                                     \
	}                                                                                                                                                        \
	CUresult cuLaunchKernel##variant(CUfunction function, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx, unsigned int by, unsigned int bz, \
	                                 unsigned int shared, CUstream stream, void **arguments, void **extra)                                                   \
	{                                                                                                                                                        \
		__typeof__(hr__driver.cuLaunchKernel##variant) real = PLAIN_LAUNCH(cuLaunchKernel##variant);                                                         \
		if (__builtin_expect(real != NULL, true)) return real(function, gx, gy, gz, bx, by, bz, shared, stream, arguments, extra);                           \
		return name_launch##variant(function, gx, gy, gz, bx, by, bz, shared, stream, arguments, extra);                                                     \
	}                                                                                                                                                        \
	CUresult cuLaunchKernelEx##variant(const CUlaunchConfig *config, CUfunction function, void **arguments, void **extra)                                    \
	{                                                                                                                                                        \
		__typeof__(hr__driver.cuLaunchKernelEx##variant) real = PLAIN_LAUNCH(cuLaunchKernelEx##variant);                                                     \
		if (__builtin_expect(real != NULL, true)) return real(config, function, arguments, extra);                                                           \
		return name_launch_ex##variant(config, function, arguments, extra);                                                                                  \
	}                                                                                                                                                        \
	CUresult cuLaunchCooperativeKernel##variant(CUfunction function, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx, unsigned int by,    \
	                                            unsigned int bz, unsigned int shared, CUstream stream, void **arguments)                                     \
	{                                                                                                                                                        \
		__typeof__(hr__driver.cuLaunchCooperativeKernel##variant) real = PLAIN_LAUNCH(cuLaunchCooperativeKernel##variant);                                   \
		if (__builtin_expect(real != NULL, true)) return real(function, gx, gy, gz, bx, by, bz, shared, stream, arguments);                                  \
		return name_cooperative##variant(function, gx, gy, gz, bx, by, bz, shared, stream, arguments);                                                       \
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
