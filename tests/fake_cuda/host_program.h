/* host_program.h - included before a program for cards when the stand-in of NVRTC compiles it for the host, as C++.
 *
 * The threads of a block are fibers of one thread: each runs until a barrier or its end, then the next. A barrier ends when all threads of the block
 * that run are at it, a shuffle when all of the warp are. So a kernel that needs a barrier and has none gives wrong results, as on a card, though always
 * the same. Memory that is __shared__ belongs to the thread that runs the blocks, one after another.
 *
 * A kernel becomes <name>__run(argument, grid, threads) and <name>__bytes, the size of its parameter. */
#pragma once
#define HR_HOST_PROGRAM 1

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#if !defined(__x86_64__)
#include <ucontext.h>
#endif

#define __device__
#define __forceinline__ inline
#define __shared__ static thread_local
#define __launch_bounds__(...)
#define COLD static __attribute__((noinline))

struct hr_index {
	unsigned x, y, z;
};
static thread_local hr_index threadIdx, blockIdx, blockDim, gridDim;

/* ---- fibers ---- */

#define THREADS_MAX 1024
#define WARP_THREADS 32
#define STACK_BYTES (64 << 10)

typedef void (*hr_body)(const void *argument);

/* Threads that wait for each other. */
struct hr_barrier {
	unsigned running, arrived, generation;
};

struct hr_fiber {
	void *at; /* stack pointer, while it does not run */
	bool ended;
#if !defined(__x86_64__)
	ucontext_t context;
#endif
};

static thread_local struct hr_block_state {
	hr_fiber fibers[THREADS_MAX];
	char *stacks;
	void *scheduler;
	unsigned current;
	hr_body body;
	const void *argument;
	uint64_t exchanged[THREADS_MAX]; /* by shuffles */
	hr_barrier all, warps[THREADS_MAX / WARP_THREADS];
#if !defined(__x86_64__)
	ucontext_t scheduler_context;
#endif
} hr_block;

static void hr_release(hr_barrier *barrier)
{
	if (!barrier->running || barrier->arrived < barrier->running) return;
	barrier->arrived = 0;
	barrier->generation++;
}

static void hr_end_fiber()
{
	hr_barrier *warp = &hr_block.warps[hr_block.current / WARP_THREADS];
	hr_block.fibers[hr_block.current].ended = true;
	hr_block.all.running--;
	warp->running--;
	hr_release(&hr_block.all);
	hr_release(warp);
}

#if defined(__x86_64__)
extern "C" void hr_switch(void **from, void *to) __attribute__((visibility("hidden")));
__asm__(".text\n.hidden hr_switch\n.globl hr_switch\n.type hr_switch,@function\nhr_switch:\n"
        "pushq %rbp\npushq %rbx\npushq %r12\npushq %r13\npushq %r14\npushq %r15\n"
        "movq %rsp, (%rdi)\nmovq %rsi, %rsp\n"
        "popq %r15\npopq %r14\npopq %r13\npopq %r12\npopq %rbx\npopq %rbp\nret\n");

static void hr_to_scheduler()
{
	hr_switch(&hr_block.fibers[hr_block.current].at, hr_block.scheduler);
}

static void hr_begin()
{
	hr_block.body(hr_block.argument);
	hr_end_fiber();
	for (;;) hr_to_scheduler();
}

static void hr_make_fiber(unsigned i)
{
	/* The stack looks as if hr_switch had been called from where hr_begin begins; aligned as at the beginning of a function. */
	void **top = (void **)(hr_block.stacks + (size_t)(i + 1) * STACK_BYTES) - 1;
	*--top = (void *)hr_begin;
	for (int k = 0; k < 6; k++) *--top = NULL;
	hr_block.fibers[i].at = top;
	hr_block.fibers[i].ended = false;
}

static void hr_resume(unsigned i)
{
	hr_block.current = i;
	threadIdx = { i, 0, 0 };
	hr_switch(&hr_block.scheduler, hr_block.fibers[i].at);
}
#else
static void hr_to_scheduler()
{
	swapcontext(&hr_block.fibers[hr_block.current].context, &hr_block.scheduler_context);
}

static void hr_begin()
{
	hr_block.body(hr_block.argument);
	hr_end_fiber();
	for (;;) hr_to_scheduler();
}

static void hr_make_fiber(unsigned i)
{
	ucontext_t *context = &hr_block.fibers[i].context;
	getcontext(context);
	context->uc_stack.ss_sp = hr_block.stacks + (size_t)i * STACK_BYTES;
	context->uc_stack.ss_size = STACK_BYTES;
	makecontext(context, hr_begin, 0);
	hr_block.fibers[i].ended = false;
}

static void hr_resume(unsigned i)
{
	hr_block.current = i;
	threadIdx = { i, 0, 0 };
	swapcontext(&hr_block.scheduler_context, &hr_block.fibers[i].context);
}
#endif

static void hr_run_block(unsigned threads)
{
	bool runs = true;
	hr_block.all = { threads, 0, 0 };
	for (unsigned i = 0; i < THREADS_MAX / WARP_THREADS; i++) hr_block.warps[i] = { 0, 0, 0 };
	for (unsigned i = 0; i < threads; i++) {
		hr_make_fiber(i);
		hr_block.warps[i / WARP_THREADS].running++;
	}
	while (runs) {
		runs = false;
		for (unsigned i = 0; i < threads; i++) {
			if (hr_block.fibers[i].ended) continue;
			hr_resume(i);
			runs |= !hr_block.fibers[i].ended;
		}
	}
}

static void hr_run(hr_body body, const void *argument, const unsigned *grid, unsigned threads)
{
	if (threads > THREADS_MAX) abort();
	if (!hr_block.stacks) {
		hr_block.stacks = (char *)mmap(NULL, (size_t)THREADS_MAX * STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		if (hr_block.stacks == MAP_FAILED) abort();
	}
	hr_block.body = body;
	hr_block.argument = argument;
	gridDim = { grid[0], grid[1], grid[2] };
	blockDim = { threads, 1, 1 };
	for (unsigned z = 0; z < grid[2]; z++) {
		for (unsigned y = 0; y < grid[1]; y++) {
			for (unsigned x = 0; x < grid[0]; x++) {
				blockIdx = { x, y, z };
				hr_run_block(threads);
			}
		}
	}
}

/* ---- what kernels call ---- */

static inline void hr_wait(hr_barrier *barrier)
{
	unsigned generation = barrier->generation;
	barrier->arrived++;
	hr_release(barrier);
	while (barrier->generation == generation) hr_to_scheduler();
}

static inline void __syncthreads()
{
	hr_wait(&hr_block.all);
}

static inline void __syncwarp()
{
	hr_wait(&hr_block.warps[hr_block.current / WARP_THREADS]);
}

/* The value of thread [from] of the warp. All of its threads take part. */
template <class V> static inline V hr_exchange(V value, unsigned from)
{
	static_assert(sizeof(V) <= 8, "");
	unsigned me = hr_block.current;
	memcpy(&hr_block.exchanged[me], &value, sizeof value);
	__syncwarp();
	memcpy(&value, &hr_block.exchanged[me / WARP_THREADS * WARP_THREADS + from], sizeof value);
	__syncwarp();
	return value;
}

template <class V> static inline V __shfl_xor_sync(unsigned, V value, int other)
{
	return hr_exchange(value, (hr_block.current ^ (unsigned)other) % WARP_THREADS);
}

template <class V> static inline V __shfl_sync(unsigned, V value, int from)
{
	return hr_exchange(value, (unsigned)from % WARP_THREADS);
}

static inline unsigned __ballot_sync(unsigned, int is)
{
	unsigned bits = 0, me = hr_block.current, first = me / WARP_THREADS * WARP_THREADS;
	hr_block.exchanged[me] = is != 0;
	__syncwarp();
	for (unsigned i = 0; i < WARP_THREADS; i++) bits |= (unsigned)hr_block.exchanged[first + i] << i;
	__syncwarp();
	return bits;
}

/* ---- tensor cores ---- */

static inline float hr_float_of(uint32_t bits)
{
	float x;
	memcpy(&x, &bits, sizeof x);
	return x;
}

static thread_local uint32_t hr_operands[THREADS_MAX][6];

/* mma.sync: a is 16 x K, b K x 8, of K / 8 numbers in 32 bits. Sums are rounded towards zero, as on a card: many of them in one sum lose precision. */
template <unsigned K> static inline void hr_multiply_add(float *sum, const uint32_t *a, const uint32_t *b, float (*number)(uint32_t bits, unsigned i))
{
	unsigned me = hr_block.current, lane = me % WARP_THREADS;
	const uint32_t(*of)[6] = &hr_operands[me - lane];
	memcpy(hr_operands[me], a, 4 * sizeof *a);
	memcpy(hr_operands[me] + 4, b, 2 * sizeof *b);
	__syncwarp();
	for (unsigned i = 0; i < 4; i++) {
		unsigned row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
		double exact = (double)sum[i];
		for (unsigned k = 0; k < K; k++) {
			unsigned thread = k % (K / 2) / (K / 8), half = k / (K / 2), which = k % (K / 8);
			exact += (double)number(of[row % 8 * 4 + thread][row / 8 + 2 * half], which) * (double)number(of[column * 4 + thread][4 + half], which);
		}
		sum[i] = (float)exact;
		if (fabs((double)sum[i]) > fabs(exact)) sum[i] = nextafterf(sum[i], 0);
	}
	__syncwarp();
}

/* mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32. */
static inline void multiply_add(float *sum, const uint32_t *a, const uint32_t *b)
{
	hr_multiply_add<8>(sum, a, b, [](uint32_t bits, unsigned) { return hr_float_of(bits); });
}

/* mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32. */
static inline void multiply_add_bfloat16(float *sum, const uint32_t *a, const uint32_t *b)
{
	hr_multiply_add<16>(sum, a, b, [](uint32_t bits, unsigned i) { return hr_float_of(bits >> i * 16 << 16); });
}

/* ldmatrix.sync.aligned.m8n8.x4. Addresses that are not aligned to 16 bytes end the program. */
static inline void hr_read_matrices(uint32_t *to, const unsigned char *from, bool transposed)
{
	unsigned lane = hr_block.current % WARP_THREADS, first = hr_block.current - lane;
	if ((uintptr_t)from % 16 != 0) abort();
	memcpy(&hr_block.exchanged[hr_block.current], &from, sizeof from);
	__syncwarp();
	for (unsigned i = 0; i < 4; i++) {
		uint16_t x[2];
		for (unsigned k = 0; k < 2; k++) {
			unsigned row = transposed ? lane % 4 * 2 + k : lane / 4, column = transposed ? lane / 4 : lane % 4 * 2 + k;
			const unsigned char *at;
			memcpy(&at, &hr_block.exchanged[first + i * 8 + row], sizeof at);
			memcpy(&x[k], at + column * sizeof *x, sizeof *x);
		}
		memcpy(&to[i], x, sizeof x);
	}
	__syncwarp();
}

static inline void read_matrices(uint32_t *to, const unsigned char *from)
{
	hr_read_matrices(to, from, false);
}

static inline void read_transposed(uint32_t *to, const unsigned char *from)
{
	hr_read_matrices(to, from, true);
}

/* cp.async: the bytes are there after wait_for_copies, not before. */
#define COPIES_MAX 32 /* of a thread */
struct hr_copy {
	unsigned char *to;
	const void *from;
	unsigned bytes;
	bool is;
};
static thread_local struct {
	unsigned count;
	hr_copy at[COPIES_MAX];
} hr_copies[THREADS_MAX];

static inline void hr_copy_begin(unsigned char *to, const void *from, unsigned bytes, bool is)
{
	unsigned i = hr_copies[hr_block.current].count++;
	if (i >= COPIES_MAX || ((uintptr_t)to | (uintptr_t)from) % bytes != 0) abort();
	hr_copies[hr_block.current].at[i] = { to, from, bytes, is };
}

static inline void copy_16(unsigned char *to, const void *from, bool is)
{
	hr_copy_begin(to, from, 16, is);
}

static inline void copy_4(unsigned char *to, const void *from, bool is)
{
	hr_copy_begin(to, from, 4, is);
}

static inline void wait_for_copies()
{
	for (unsigned i = 0; i < hr_copies[hr_block.current].count; i++) {
		const hr_copy *copy = &hr_copies[hr_block.current].at[i];
		if (copy->is) memcpy(copy->to, copy->from, copy->bytes);
		else memset(copy->to, 0, copy->bytes);
	}
	hr_copies[hr_block.current].count = 0;
}

static inline uint32_t narrow(float low, float high)
{
	uint32_t out = 0;
	const float x[2] = { low, high };
	for (int i = 0; i < 2; i++) {
		uint32_t bits;
		memcpy(&bits, &x[i], sizeof bits);
		bits = x[i] != x[i] ? bits >> 16 | 0x40 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16; /* to nearest, ties to even */
		out |= bits << 16 * i;
	}
	return out;
}

static inline float power_of_2(float x)
{
	return exp2f(x);
}

static inline int __popc(unsigned bits)
{
	return __builtin_popcount(bits);
}

static inline int atomicCAS(int *at, int expected, int wanted)
{
	return __sync_val_compare_and_swap(at, expected, wanted);
}

static inline int __float_as_int(float x)
{
	int bits;
	memcpy(&bits, &x, sizeof bits);
	return bits;
}

static inline float __int_as_float(int bits)
{
	float x;
	memcpy(&x, &bits, sizeof x);
	return x;
}

static inline uint64_t __umul64hi(uint64_t a, uint64_t b)
{
	return (uint64_t)((unsigned __int128)a * b >> 64);
}

/* All else is hidden: the loader gives templates of one name one static memory, also in several programs. */
#define HR_EXPORT __attribute__((visibility("default")))
#define KERNEL(name, type)                                                                              \
	static void name##_body(const type &arg);                                                           \
	extern "C" {                                                                                        \
	extern HR_EXPORT const size_t name##__bytes;                                                        \
	const size_t name##__bytes = sizeof(type);                                                          \
	HR_EXPORT void name##__run(const void *argument, const unsigned *grid, unsigned threads)                      \
	{                                                                                                   \
		hr_run([](const void *at) { name##_body(*(const type *)at); }, argument, grid, threads);        \
	}                                                                                                   \
	}                                                                                                   \
	static void name##_body(const type &arg)
#define FITTING_KERNEL(name, type, threads, blocks) KERNEL(name, type)
