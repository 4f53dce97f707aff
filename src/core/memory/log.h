/* log.h - the allocation log: a ring of recent operations for each thread, in its cache of the allocator.
 *
 * The hot path counts down to the next operation to log (hr__log_alloc, hr__log_free in allocator.h). At a sampling rate of 1 every
 * operation is logged. Below 1, the distance to the next one is drawn at random (log.c), so each operation is logged with the same
 * probability, independently of its size, its thread and all other operations.
 *
 * Only the owner writes to a ring, inside its cache's busy section or under a shard's lock. So a thread that stops the caches and
 * holds every shard's lock may replace the ring. Readers do not synchronise with the owner: an entry's number shows whether the
 * entry was overwritten during the read. */
#ifndef HR_MEMORY_LOG_H
#define HR_MEMORY_LOG_H

#include "headroom.h"

#include "core/base/atomic.h"
#include "core/base/shared.h"

#define HR__LOG_SIZE_MAX 65536u
#define HR__LOG_SLOTS 16u          /* copies of the log: one for each report */
#define HR__LOG_NEVER INT64_MAX    /* value of log_left when nothing is logged */

typedef enum hr__log_action {
	HR__LOG_ALLOC = 1,
	HR__LOG_FREE = 2,
	HR__LOG_FAILED = 3, /* only in written reports: the request that failed */
} hr__log_action;

/* A decoded entry. */
typedef struct hr__log_entry {
	uint64_t time_ns; /* since 1970 */
	uint64_t bytes;   /* requested */
	uint64_t address; /* real or hashed, as the option says; 0 = withheld */
	hr_name op, scope, tag;
	hr_shape shape;
	uint32_t thread; /* numbered from 1 in the order of their first use of the allocator */
	uint8_t dtype;   /* hr_dtype */
	uint8_t action;  /* hr__log_action */
} hr__log_entry;

typedef struct hr__log_ring hr__log_ring;

struct hr__allocator;
struct hr__cache;
struct hr__chunk;

/* Settings. [options] must have been checked. HR_NO_HOST_MEMORY changes nothing. */
HR__SHARED hr_status hr__oom_options_check(const hr_oom_options *options);
/* Copies options of any version of the headers, in [room] bytes of another struct, over the defaults in [out]. Bytes there that this library does
 * not know must be 0. */
hr_status hr__oom_options_read(const char *call, const void *given, size_t room, hr_oom_options *out);
hr_status hr__log_open(struct hr__allocator *allocator); /* at creation, from allocator->oom */
void hr__log_close(struct hr__allocator *allocator);     /* when no thread uses the allocator any more */

/* Called when a thread gets or loses its cache, with caches_lock held. A thread for which no ring can be allocated logs nothing. */
void hr__log_join(struct hr__allocator *allocator, struct hr__cache *cache);
void hr__log_leave(struct hr__allocator *allocator, struct hr__cache *cache);

/* Write one entry. */
void hr__log_write_alloc(struct hr__cache *cache, const hr_request *request, uint64_t address);
void hr__log_write_free(struct hr__cache *cache, const struct hr__chunk *chunk);

/* Writes the newest entries of all threads, oldest first, at most as many as the log holds, and returns their number. *total gets
 * the number of entries ever logged. Acquires caches_lock. [out] comes from hr__log_slot. */
uint32_t hr__log_collect(struct hr__allocator *allocator, hr__log_entry *out, uint32_t capacity, uint64_t *total);

/* The calling thread's number in the log; 0 = none. */
uint32_t hr__log_thread(const struct hr__allocator *allocator);

/* Seed of the random numbers of new rings, so that tests are reproducible; 0 (default) = the clock. */
extern uint64_t hr__log_seed;

/* Memory for the log of report [slot], valid until hr__log_slots_free. One report is made at a time. */
hr__log_entry *hr__log_slot(uint32_t slot, uint32_t *capacity);
void hr__log_slots_free(void);   /* from hr_shutdown, after all reports that point to it are gone */
void hr__log_slots_forget(void); /* in the child after fork */

#endif
