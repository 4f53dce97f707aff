/* atomic.h - C11 atomics with the memory order in the name, so that every order in the project can be found by searching for it.
 *
 * Acquire and release on the variable itself are preferred to fences: ThreadSanitizer does not model fences. */
#ifndef HR_BASE_ATOMIC_H
#define HR_BASE_ATOMIC_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* For the few words of the process that calls of several layers read each time. They are in one place of the library, so that such a call, made between much
 * other work, needs one entry of the processor's table of pages for all of them. */
#define HR__HOT_DATA __attribute__((section("headroom_hot")))

typedef _Atomic(uint8_t) hr__atomic_u8;
typedef _Atomic(uint32_t) hr__atomic_u32;
typedef _Atomic(uint64_t) hr__atomic_u64;
typedef _Atomic(int64_t) hr__atomic_i64;

#define hr__load_relaxed(p) atomic_load_explicit((p), memory_order_relaxed)
#define hr__load_acquire(p) atomic_load_explicit((p), memory_order_acquire)
#define hr__load_seq_cst(p) atomic_load_explicit((p), memory_order_seq_cst)
#define hr__store_relaxed(p, v) atomic_store_explicit((p), (v), memory_order_relaxed)
#define hr__store_release(p, v) atomic_store_explicit((p), (v), memory_order_release)
#define hr__store_seq_cst(p, v) atomic_store_explicit((p), (v), memory_order_seq_cst)
#define hr__exchange_acquire(p, v) atomic_exchange_explicit((p), (v), memory_order_acquire)
#define hr__exchange_acq_rel(p, v) atomic_exchange_explicit((p), (v), memory_order_acq_rel)
#define hr__fetch_add_relaxed(p, v) atomic_fetch_add_explicit((p), (v), memory_order_relaxed)
#define hr__fetch_add_acq_rel(p, v) atomic_fetch_add_explicit((p), (v), memory_order_acq_rel)
#define hr__fetch_add_seq_cst(p, v) atomic_fetch_add_explicit((p), (v), memory_order_seq_cst)
#define hr__fetch_sub_acq_rel(p, v) atomic_fetch_sub_explicit((p), (v), memory_order_acq_rel)
#define hr__fetch_or_acq_rel(p, v) atomic_fetch_or_explicit((p), (v), memory_order_acq_rel)
#define hr__fetch_and_acq_rel(p, v) atomic_fetch_and_explicit((p), (v), memory_order_acq_rel)
#define hr__cas_acquire(p, expected, v) \
	atomic_compare_exchange_strong_explicit((p), (expected), (v), memory_order_acquire, memory_order_relaxed)
#define hr__cas_acq_rel(p, expected, v) \
	atomic_compare_exchange_strong_explicit((p), (expected), (v), memory_order_acq_rel, memory_order_acquire)

/* For a counter that one thread writes and any thread reads: an addition made of a relaxed load and a relaxed store. */
#define hr__owner_add(p, v) hr__store_relaxed((p), hr__load_relaxed(p) + (v))

/* The same for a maximum. */
static inline void hr__owner_max(hr__atomic_i64 *to, int64_t value)
{
	if (value > hr__load_relaxed(to)) hr__store_relaxed(to, value);
}

/* Fences, for orders that an order on one variable cannot express (the optimistic reads of lock.h, the Dekker handshake of os.h).
 * gcc warns about fences under ThreadSanitizer because ThreadSanitizer does not model them. Both uses guard only atomics, which
 * ThreadSanitizer never reports. */
#if defined(__GNUC__) && !defined(__clang__) && defined(__SANITIZE_THREAD__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wtsan"
#define HR__FENCES_POP
#endif
static inline void hr__fence_acquire(void)
{
	atomic_thread_fence(memory_order_acquire);
}

static inline void hr__fence_release(void)
{
	atomic_thread_fence(memory_order_release);
}

static inline void hr__fence_seq_cst(void)
{
	atomic_thread_fence(memory_order_seq_cst);
}
#ifdef HR__FENCES_POP
#pragma GCC diagnostic pop
#undef HR__FENCES_POP
#endif

/* Keeps the compiler, not the processor, from moving memory accesses across it. */
#define hr__compiler_barrier() atomic_signal_fence(memory_order_seq_cst)

static inline void hr__cpu_pause(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	/* Not yield, which most cores ignore: a wait made of yields would end within nanoseconds. */
	__asm__ volatile("isb" ::: "memory");
#endif
}

#endif
