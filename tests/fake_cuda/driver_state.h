/* driver_state.h - the state of the stand-in driver, shared by its files. One lock guards it; BEGIN acquires it and end releases it. */
#ifndef HR_TESTS_DRIVER_STATE_H
#define HR_TESTS_DRIVER_STATE_H

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "fake_cuda/fake_cuda.h"

#define EXPORT __attribute__((visibility("default")))
#define MAX_CARDS 64
#define MAX_DEPTH 16
#define SPAN (UINT64_C(1) << 33) /* size of a card's file */
#define CONTEXT_BYTES (UINT64_C(4) << 20)
#define PAGE 4096u
#define END_STATUS 99
#define SPARE_BUCKETS 4096 /* a power of two */
#define EVENT_BUCKETS 1024 /* tests create thousands of events, whose records are all kept */

#define LEGACY_STREAM ((CUstream)1)
#define PER_THREAD_STREAM ((CUstream)2)
#define FAKE_FOREIGN_POOL ((CUmemoryPool)1) /* as a program has it from another process */

struct CUctx_st {
	int card;
	unsigned retained;
	CUresult broken; /* error of queued work, which every later call returns */
	bool destroyed;  /* a context of cuCtxCreate */
};

typedef struct extent { /* a physical handle, or the memory of a plain allocation */
	uint64_t offset, size;
	unsigned references; /* the handle, and its mappings */
	unsigned retained; /* how often the handle was retained, beyond its creation */
	bool released, gone, is_handle;
	bool of_host; /* host memory: uses none of the card's */
	int card;
	struct extent *next;
} extent;

typedef struct reservation {
	uint64_t base, size;
	struct reservation *next;
} reservation;

typedef struct mapping {
	uint64_t base, size;
	extent *memory;
	bool accessible, plain;
	uint64_t peers;    /* bit n: card n may access it too */
	bool freeing;      /* a free of it is queued */
	CUmemoryPool pool; /* NULL = none */
	CUcontext context; /* plain: its end frees it */
	struct mapping *next;
} mapping;

typedef struct registered {
	uintptr_t base, size;
	struct registered *next;
} registered;

typedef struct command {
	/* FREE: of the plain memory at to; KERNEL: writes to all of [to, to + bytes); COMPUTE: runs a kernel, or work of a library */
	enum { COPY, FILL, HOST, WAIT, FREE, KERNEL, COMPUTE } kind;
	bool to_device, from_device; /* which sides are device addresses */
	uint64_t to, from, bytes;
	unsigned char value;
	CUhostFn run;
	void *argument;
	struct computation *computation; /* COMPUTE */
	CUstream other; /* WAIT: for its work up to ticket */
	uint64_t ticket;
	struct command *next;
} command;

struct CUstream_st {
	CUcontext context;
	bool destroyed, ended;
	bool built_in; /* a default stream */
	bool capture_failed;
	CUgraph recording; /* NULL = not */
	uint64_t submitted, completed;
	CUevent pending;       /* events with timing whose time is not set yet */
	command *first, *last; /* the first is the running one */
	struct CUstream_st *next;
};

struct CUevent_st {
	CUcontext context;
	bool destroyed, timed, is_pending;
	CUstream stream; /* NULL = never recorded */
	uint64_t ticket;
	uint64_t time; /* ns */
	CUevent next_pending;
	struct CUevent_st *next;
};

typedef struct card_state {
	struct CUctx_st primary;
	CUstream legacy;
	int file;
	unsigned char *memory;
	uint64_t made; /* of the span */
	uint64_t used;
} card_state;

extern pthread_cond_t changed;
extern card_state cards[MAX_CARDS];
extern mapping *mappings;
extern CUstream streams;

uint64_t setting(const char *name, uint64_t otherwise);
void *zeroed(size_t bytes);
bool begin(const char *name, CUresult *result);
CUresult end(CUresult result);
CUcontext current(void);
void set_current(CUcontext context);
int card_count(void);
uint64_t card_bytes(void);
uint64_t free_of(int card);
CUresult map_plain(CUcontext context, CUdeviceptr *out, size_t size);
void unmap_plain(mapping *freed);
mapping *mapping_at(uint64_t address);
void need_idle(uint64_t base, uint64_t size, const command *except);
CUstream stream_of(CUcontext context, CUstream handle);
CUstream start_stream(CUcontext context);
void wait_until(CUstream stream, uint64_t ticket);
CUresult submit(CUcontext context, CUstream handle, const command *work);
void end_context_memory(CUcontext context);
/* Runs [run] on a copy of [argument] in stream order, with the memory that the addresses point into in use meanwhile. */
CUresult submit_computation(CUcontext context, CUstream stream, void (*run)(const void *argument, const unsigned *grid, unsigned threads), const void *argument,
                            size_t bytes, const unsigned *grid, unsigned threads, const uint64_t *addresses, size_t count);
void run_computation(const struct computation *computation);
int fake_pool_card(CUmemoryPool pool);
CUmemoryPool fake_pool_of_card(int card);
bool fake_pool_take(CUmemoryPool pool, uint64_t bytes);
void fake_pool_give(CUmemoryPool pool, uint64_t bytes);
CUresult fake_graph_add(CUgraph graph, const command *work);
unsigned fake_graphs_live(void);

#define BEGIN(name)  \
	CUresult result; \
	if (!begin(#name, &result)) return end(result)

/* For calls that need a context. */
#define BEGIN_IN_CONTEXT(name)                                                      \
	BEGIN(name);                                                                    \
	CUcontext context = current();                                                  \
	if (!context || !context->retained) return end(HR__CUDA_ERROR_INVALID_CONTEXT); \
	if (context->broken) return end(context->broken)

#define REQUIRE(condition, error) \
	if (!(condition)) return end(error)
#define VALID(condition) REQUIRE(condition, HR__CUDA_ERROR_INVALID_VALUE)

#endif
