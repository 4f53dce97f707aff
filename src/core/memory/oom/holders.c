/* holders.c - holders: the ledger of allocated blocks, summed by op, scope and tag.
 *
 * There are at most 65,536 names, so a table has a sum for each. The table is static, and entries that were never touched cost no
 * memory. Touched entries form a list, so that clearing the table takes no longer than filling it. An invalid name counts as
 * HR_NAME_OTHER, which is how it reads. */
#include <string.h>

#include "core/base/checked.h"
#include "core/base/names.h"
#include "core/base/sort.h"
#include "core/base/status.h"
#include "core/memory/oom/oom.h"

#define KINDS 3u
#define LARGEST_MAX 64u
#define NO_NAME UINT32_MAX

typedef struct sum {
	int64_t bytes;
	uint32_t count; /* 0 = not in the list */
	uint32_t next;  /* name; NO_NAME ends the list */
} sum;

/* Guarded by hr__report_lock. The tables are empty whenever the lock is free. */
static sum sums[KINDS][HR__NAMES_MAX];
static uint32_t first[KINDS] = { NO_NAME, NO_NAME, NO_NAME };

struct ledger {
	unsigned from, to;           /* kinds to sum: from <= kind < to */
	uint32_t names;              /* number of names */
	hr__report *report;          /* receives the sizes; may be NULL */
	hr_allocation_info *largest; /* largest first; may be NULL */
	size_t largest_count, largest_max;
};

/* ---- summing ---- */

static void add(unsigned kind, hr_name name, uint64_t bytes)
{
	sum *entry = &sums[kind][name];
	HR_ASSERT(hr__lock_is_mine(&hr__report_lock) && name < HR__NAMES_MAX);
	if (!entry->count) {
		entry->next = first[kind];
		first[kind] = name;
	}
	entry->count++;
	entry->bytes += (int64_t)bytes;
}

static void add_largest(struct ledger *ledger, const hr__chunk *chunk)
{
	size_t at = ledger->largest_count;
	if (!ledger->largest_max || (at == ledger->largest_max && chunk->size <= ledger->largest[at - 1].bytes)) return;
	if (at < ledger->largest_max) ledger->largest_count++;
	else at--;
	for (; at > 0 && ledger->largest[at - 1].bytes < chunk->size; at--) ledger->largest[at] = ledger->largest[at - 1];
	ledger->largest[at] = hr__chunk_info(chunk);
}

static void add_size(hr__report *report, uint64_t bytes)
{
	unsigned class_of = bytes ? hr__log2(bytes) : 0;
	if (class_of >= HR__REPORT_SIZES) class_of = HR__REPORT_SIZES - 1;
	report->size_bytes[class_of] += (int64_t)bytes;
	report->size_blocks[class_of]++;
}

static void add_block(void *context, const hr__chunk *chunk)
{
	struct ledger *ledger = context;
	hr_name names[KINDS] = { chunk->op, chunk->scope, chunk->tag };
	for (unsigned kind = ledger->from; kind < ledger->to; kind++)
		add(kind, names[kind] < ledger->names ? names[kind] : HR_NAME_OTHER, chunk->size);
	if (ledger->largest) add_largest(ledger, chunk);
	if (ledger->report) add_size(ledger->report, chunk->size);
}

/* ---- selecting the largest ---- */

/* The order of holders: most bytes first, then by name, so that the order is unique. */
static bool holder_before(const void *left, const void *right, const void *context)
{
	const hr_holder *a = left, *b = right;
	(void)context;
	return a->bytes > b->bytes || (a->bytes == b->bytes && a->name < b->name);
}

/* Writes the first [capacity] holders of a kind, in order; clears its table. */
static size_t take_top(unsigned kind, hr_holder *out, size_t capacity, hr__report_holders *totals)
{
	size_t count = 0;
	HR_ASSERT(hr__lock_is_mine(&hr__report_lock));
	for (uint32_t name = first[kind], next; name != NO_NAME; name = next) {
		sum *entry = &sums[kind][name];
		hr_holder holder = { .name = name, .count = entry->count, .bytes = entry->bytes };
		next = entry->next;
		*entry = (sum){ 0 };
		totals->names++;
		totals->rest_bytes += holder.bytes;
		totals->rest_blocks += holder.count;
		if (count < capacity) {
			out[count++] = holder;
			if (count == capacity) hr__heap_make(out, count, sizeof *out, holder_before, NULL);
		} else if (capacity && holder_before(&holder, &out[0], NULL)) {
			out[0] = holder;
			hr__heap_sift(out, 0, count, sizeof *out, holder_before, NULL);
		}
	}
	first[kind] = NO_NAME;
	hr__sort(out, count, sizeof *out, holder_before, NULL);
	for (size_t i = 0; i < count; i++) {
		totals->rest_bytes -= out[i].bytes;
		totals->rest_blocks -= out[i].count;
	}
	totals->count = (uint32_t)count;
	return count;
}

void hr__holders_report(hr__walk *walk, hr__report *report)
{
	static hr_allocation_info largest[HR__REPORT_TOP];
	HR_ASSERT(first[HR_BY_OP] == NO_NAME && first[HR_BY_SCOPE] == NO_NAME && first[HR_BY_TAG] == NO_NAME);
	struct ledger ledger = {
		.to = KINDS, .names = hr__names_count(), .report = report, .largest = largest, .largest_max = HR__REPORT_TOP
	};
	hr__walk_blocks(walk, add_block, &ledger);
	for (unsigned kind = 0; kind < KINDS; kind++) take_top(kind, report->holders[kind].top, HR__REPORT_TOP, &report->holders[kind]);
	report->largest_count = (uint32_t)ledger.largest_count;
	for (size_t i = 0; i < ledger.largest_count; i++)
		report->largest[i] = (hr__report_block){ .bytes = largest[i].bytes,
			                                     .requested = largest[i].requested,
			                                     .op = largest[i].op,
			                                     .scope = largest[i].scope,
			                                     .tag = largest[i].tag,
			                                     .shape = largest[i].shape,
			                                     .dtype = largest[i].dtype };
}

bool hr__holders_top(hr__walk *walk, hr_holder_kind kind, hr_holder *out)
{
	struct ledger ledger = { .from = (unsigned)kind, .to = (unsigned)kind + 1, .names = hr__names_count() };
	hr__report_holders totals = { 0 };
	hr__walk_blocks(walk, add_block, &ledger);
	return take_top((unsigned)kind, out, 1, &totals) == 1;
}

void hr__holders_forget(void)
{
	for (unsigned kind = 0; kind < KINDS; kind++) {
		for (uint32_t name = 0; name < hr__names_count(); name++)
			if (sums[kind][name].count) sums[kind][name] = (sum){ 0 };
		first[kind] = NO_NAME;
	}
}

/* ---- public functions ---- */

hr_status hr_allocator_get_holders(hr_allocator handle, hr_holder_kind kind, hr_holder *out, size_t capacity, size_t *count)
{
	hr_status status;
	hr__walk walk;
	if (!count || (!out && capacity)) return hr__fail(HR_INVALID_ARGUMENT, "hr_allocator_get_holders: out or count is NULL");
	if ((unsigned)kind >= KINDS) return hr__fail(HR_INVALID_ARGUMENT, "hr_allocator_get_holders: there is no kind %d", (int)kind);
	hr__allocator *allocator = hr__allocator_of(handle, &status);
	if (!allocator) return status;
	struct ledger ledger = { .from = (unsigned)kind, .to = (unsigned)kind + 1, .names = hr__names_count() };
	hr__report_holders totals = { 0 };
	hr__lock_take(&hr__report_lock);
	hr__walk_begin(&walk, allocator, false);
	hr__walk_blocks(&walk, add_block, &ledger);
	*count = take_top((unsigned)kind, out, capacity, &totals);
	hr__lock_release(&hr__report_lock);
	return HR_OK;
}

hr_status hr_allocator_get_largest(hr_allocator handle, hr_allocation_info *out, size_t capacity, size_t *count)
{
	hr_status status;
	hr__walk walk;
	if (!count || (!out && capacity)) return hr__fail(HR_INVALID_ARGUMENT, "hr_allocator_get_largest: out or count is NULL");
	hr__allocator *allocator = hr__allocator_of(handle, &status);
	if (!allocator) return status;
	struct ledger ledger = { .largest = out, .largest_max = capacity < LARGEST_MAX ? capacity : LARGEST_MAX };
	hr__lock_take(&hr__report_lock);
	hr__walk_begin(&walk, allocator, false);
	hr__walk_blocks(&walk, add_block, &ledger);
	hr__lock_release(&hr__report_lock);
	*count = ledger.largest_count;
	return HR_OK;
}
