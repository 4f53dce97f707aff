/* log.h - the log of recent allocations: a ring for each thread, in its cache of the allocator.
 *
 * The hot path counts down to the next operation that is to be logged (hr__log_alloc, hr__log_free in allocator.h). At a sampling rate
 * of 1 every operation is. Below 1, the distance to the next one is drawn at random (log.c), so each operation is logged with the same
 * probability, independently of its size, its thread and all other operations.
 *
 * Only the owner writes to a ring, inside his cache's busy section or under a shard's lock; so whoever stops the caches and takes every
 * shard's lock may replace it. Readers take no notice of the owner: an entry's number tells whether it was overwritten meanwhile. */
#ifndef HR_MEMORY_LOG_H
#define HR_MEMORY_LOG_H

#include "headroom.h"

#include "base/atomic.h"

#define HR__LOG_SIZE_MAX 65536u
#define HR__LOG_SLOTS 16u          /* copies that are kept: one for each report */
#define HR__LOG_NEVER INT64_MAX    /* operations to the next entry when nothing is logged */

typedef enum hr__log_action {
	HR__LOG_ALLOC = 1,
	HR__LOG_FREE = 2,
	HR__LOG_FAILED = 3, /* only in what is written out: the request that the report is about */
} hr__log_action;

/* As it is read. */
typedef struct hr__log_entry {
	uint64_t time_ns; /* since 1970 */
	uint64_t bytes;   /* asked for */
	uint64_t address; /* as the option says: real, hashed; 0 = not told */
	hr_name op, scope, tag;
	hr_shape shape;
	uint32_t thread; /* numbered from 1 in the order in which they came to the allocator */
	uint8_t dtype;   /* hr_dtype */
	uint8_t action;  /* hr__log_action */
} hr__log_entry;

typedef struct hr__log_ring hr__log_ring;

struct hr__allocator;
struct hr__cache;
struct hr__chunk;

/* Settings. With [options] checked; HR_NO_HOST_MEMORY leaves everything as it was. */
hr_status hr__oom_options_check(const hr_oom_options *options);
hr_status hr__log_open(struct hr__allocator *allocator); /* when it is made, as allocator->oom says */
void hr__log_close(struct hr__allocator *allocator);     /* when nobody uses it any more */

/* A thread comes and goes: with caches_lock held. A thread that cannot have a ring logs nothing. */
void hr__log_join(struct hr__allocator *allocator, struct hr__cache *cache);
void hr__log_leave(struct hr__allocator *allocator, struct hr__cache *cache);

/* One entry, when it is due. */
void hr__log_write_alloc(struct hr__cache *cache, const hr_request *request, uint64_t address);
void hr__log_write_free(struct hr__cache *cache, const struct hr__chunk *chunk);

/* The newest entries of all threads, oldest first, at most as many as the log has; their number. *total gets how many were ever
 * logged. Takes caches_lock. [out] is what hr__log_slot gave. */
uint32_t hr__log_collect(struct hr__allocator *allocator, hr__log_entry *out, uint32_t capacity, uint64_t *total);

/* The number of the calling thread in the log; 0 = it has none. */
uint32_t hr__log_thread(const struct hr__allocator *allocator);

/* What the random numbers of new rings start from, so that a test can repeat them; 0 (default) = the clock. */
extern uint64_t hr__log_seed;

/* Memory for the log of report [slot]; it stays valid until hr__log_slots_free. One report is made at a time. */
hr__log_entry *hr__log_slot(uint32_t slot, uint32_t *capacity);
void hr__log_slots_free(void);   /* hr_shutdown: reports that point there are gone */
void hr__log_slots_forget(void); /* in the child of a fork */

#endif
