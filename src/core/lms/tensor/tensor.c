/* tensor.c - tensors: handles, creating and destroying them, and their properties. state.h has their states.
 *
 * A handle is the number of a record and its generation. Records are in blocks that stay allocated until hr_shutdown, so a stale
 * handle reads a valid record with another generation. Generations continue after hr_shutdown. */
#include <stdio.h>
#include <string.h>

#include "core/base/checked.h"
#include "core/base/status.h"
#include "core/base/struct.h"
#include "core/base/text/text.h"
#include "core/lms/recipe/recipe.h"
#include "core/memory/bfc/tensor_block.h"
#include "core/trace/stacks.h"

#define BLOCK HR__TENSOR_BLOCK
#define BLOCKS_MAX HR__TENSOR_BLOCKS_MAX
#define NONE UINT32_MAX

_Atomic(hr__tensor *) hr__tensor_blocks[BLOCKS_MAX]; /* written under table.lock */

static struct {
	hr__lock lock;
	uint32_t made;       /* records allocated */
	uint32_t spare;      /* first spare record, linked through [member]; index + 1, 0 = none */
	uint32_t generation; /* of the last tensor created */
} table = { .lock = HR__LOCK_INIT(HR__RANK_LMS) };

/* ---- handles ---- */

hr_status hr__tensor_fail_closed(hr_tensor handle)
{
	if (!handle.id) return hr__fail(HR_INVALID_HANDLE, "the tensor handle is zero: it was never set");
	return hr__fail(HR_INVALID_HANDLE, "the tensor %#llx was destroyed, or never created", (unsigned long long)handle.id);
}

hr_status hr__tensor_fail_missing(hr_tensor handle)
{
	if (hr__forked) return hr__fail(HR_FORKED, "this process is a fork of the one that made the tensor; call hr_shutdown() first");
	return hr__tensor_fail_closed(handle);
}

hr_tensor hr__tensor_handle(const hr__tensor *tensor, uint64_t word)
{
	return (hr_tensor){ (word >> 32 << 32) | (tensor->index + 1) };
}

bool hr__tensor_is_evictable(uint32_t owner)
{
	const hr__tensor *block = hr__load_acquire(&hr__tensor_blocks[(owner - 1) / BLOCK]);
	if (!block) return false;
	const hr__tensor *tensor = &block[(owner - 1) % BLOCK];
	uint64_t word = hr__load_acquire(&tensor->word);
	return hr__word_place(word) == HR__PLACE_RESIDENT && !(word & HR__WORD_PINS) && !hr__load_relaxed(&tensor->never_evict);
}

const char *hr__tensor_name(const hr__tensor *tensor, char *out, size_t capacity)
{
	char size[16];
	snprintf(out, capacity, "tensor %u (%s%s%s%s%s)", tensor->index + 1, hr__format_size(tensor->bytes, size, sizeof size),
	         tensor->op ? ", op " : "", hr__brief(hr_name_text(tensor->op), 40).text, tensor->tag ? ", tag " : "",
	         hr__brief(hr_name_text(tensor->tag), 40).text);
	return out;
}

/* ---- creating ---- */

void hr_tensor_options_init_sized(hr_tensor_options *options, size_t struct_size)
{
	if (options) hr__struct_init(&hr__struct_tensor_options, options, struct_size, &(const hr_tensor_options){ .struct_size = 0 });
}

/* Allocates a record, or reuses a spare one. */
static hr_status allocate_record(hr__tensor **out)
{
	hr_status status = HR_OK;
	hr__lock_take(&table.lock);
	if (table.spare) {
		*out = &hr__load_relaxed(&hr__tensor_blocks[(table.spare - 1) / BLOCK])[(table.spare - 1) % BLOCK];
		table.spare = (*out)->member;
	} else if (table.made == BLOCK * BLOCKS_MAX) {
		status = hr__fail(HR_TOO_MANY, "there are %u tensors already; destroy some first", table.made);
	} else {
		uint32_t block = table.made / BLOCK;
		void *memory = hr__load_relaxed(&hr__tensor_blocks[block]);
		int error = memory ? 0 : hr__os()->alloc(BLOCK * sizeof(hr__tensor), &memory);
		if (error) {
			status = hr__os_fail(error, "cannot get host memory for tensors");
		} else {
			hr__store_release(&hr__tensor_blocks[block], memory);
			*out = (hr__tensor *)memory + table.made % BLOCK;
			(*out)->index = table.made++;
		}
	}
	if (!status && !++table.generation) table.generation = 1;
	/* Still UNUSED, so no handle finds it. The generation is set already, for the change to NEW. */
	if (!status) hr__state_reserve(*out, table.generation);
	hr__lock_release(&table.lock);
	return status;
}

static void free_record(hr__tensor *tensor)
{
	hr__lock_take(&table.lock);
	hr__state_free(tensor);
	tensor->member = table.spare;
	table.spare = tensor->index + 1;
	hr__lock_release(&table.lock);
}

static uint32_t next_generation(void)
{
	hr__lock_take(&table.lock);
	if (!++table.generation) table.generation = 1;
	uint32_t generation = table.generation;
	hr__lock_release(&table.lock);
	return generation;
}

static hr_status check_options(const hr__lms *lms, const hr_tensor_options *options)
{
	hr_request request = HR_REQUEST(options->bytes);
	request.alignment = options->alignment;
	hr_status status = hr__request_check(lms->allocator, &request);
	if (!status && options->fixed && !lms->allocator->page)
		status = hr__fail(HR_UNSUPPORTED, "%s has no pages, so its tensors cannot be fixed", hr__device_name(lms->device));
	return status;
}

/* Writes field by field: a thread with a stale handle may read the word, context and flags of the record at any time. */
static void init_tensor(hr__tensor *tensor, hr__lms *lms, const hr_tensor_options *options)
{
	HR_ASSERT(hr__state_place(tensor) == HR__PLACE_UNUSED);
	if (tensor->lms != lms) tensor->lms = lms;
	tensor->address = tensor->sum = 0;
	tensor->copy = (hr__host_copy){ 0 };
	tensor->bytes = options->bytes;
	tensor->alignment = options->alignment;
	tensor->on_host = false;
	tensor->moved = options->moved;
	tensor->user = options->user;
	hr__atomic_u64 *const times[] = { &tensor->use_streams, &tensor->use_epoch,    &tensor->restore_epoch, &tensor->copy_epoch,
		                              &tensor->last_use,    &tensor->alloc_stream, &tensor->alloc_epoch,   &tensor->pin_streams };
	for (size_t i = 0; i < sizeof times / sizeof *times; i++) hr__store_relaxed(times[i], 0);
	hr__atomic_u8 *const flags[] = {
		&tensor->has_copy,      &tensor->sum_known,           &tensor->written,  &tensor->evict_first, &tensor->prefetched,
		&tensor->just_restored, &tensor->in_stream_unordered, &tensor->unwritten, &tensor->recipe_use,  &tensor->ghost,
		&tensor->only_moved
	};
	for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) hr__store_relaxed(flags[i], 0);
	hr__store_relaxed(&tensor->recipe, NULL);
	tensor->dependents = NULL;
	tensor->dropped = tensor->ghost_listed = false;
	tensor->recipe_mark = 0;
	tensor->span = NULL;
	tensor->shadow = NULL;
	hr__store_relaxed(&tensor->priority, options->priority);
	hr__store_relaxed(&tensor->evictions, 0);
	hr__store_relaxed(&tensor->restores, 0);
	tensor->fixed = options->fixed;
	uint64_t bytes = 0, unit = hr__tensor_owns_pages(tensor) ? lms->allocator->page : lms->allocator->granularity;
	bool fits = hr__align_up(tensor->bytes, unit, &bytes);
	HR_ASSERT(fits); /* hr__request_check has refused larger ones */
	(void)fits;
	tensor->device_bytes = bytes;
	uint8_t never_evict = options->never_evict ? HR__NEVER_EVICT_SET : 0;
	if (tensor->fixed && !hr__tensor_owns_pages(tensor)) never_evict |= HR__NEVER_EVICT_SMALL;
	hr__store_relaxed(&tensor->never_evict, never_evict);
	tensor->dtype = (uint8_t)options->dtype;
	tensor->op = options->op;
	tensor->scope = options->scope;
	if (hr__thread_self && !tensor->op) tensor->op = hr__thread_self->op;
	if (hr__thread_self && !tensor->scope) tensor->scope = hr__thread_self->scope;
	tensor->tag = options->tag;
	tensor->shape = options->shape;
	tensor->stack = hr__stacks_now();
	for (unsigned i = 0; i < HR__EVICT_QUEUES; i++) tensor->queued[i] = HR__EVICT_UNQUEUED;
	tensor->evict_number = 0;
	memset(&tensor->learned, 0, sizeof tensor->learned);
	tensor->learned.slot = tensor->learned.planned = NONE;
}

hr_status hr_tensor_create(hr_allocator allocator, const hr_tensor_options *options, hr_tensor *out)
{
	hr__lms *lms;
	hr__tensor *tensor = NULL;
	hr_tensor_options whole;
	if (!out) return hr__fail(HR_INVALID_ARGUMENT, "hr_tensor_create: out is NULL");
	hr_tensor_options_init(&whole);
	hr_status status = hr__lms_of(allocator, &lms);
	if (!status) status = hr__struct_in(&hr__struct_tensor_options, "hr_tensor_create", &whole, options);
	if (!status) status = check_options(lms, &whole);
	if (!status) status = allocate_record(&tensor);
	if (status) return status;
	const void *outer = hr__stacks_enter(__builtin_return_address(0));
	init_tensor(tensor, lms, &whole);
	hr__stacks_leave(outer);
	hr__state_create(tensor); /* before it is in the list; no thread has its handle yet */
	status = hr__lms_add(lms, tensor);
	if (status) {
		free_record(tensor);
		return status;
	}
	if (!hr__recompute_is_running()) hr__learned_created(lms, tensor); /* scratch of a recipe is not the program's */
	*out = hr__tensor_handle(tensor, hr__load_relaxed(&tensor->word));
	hr__lms_count(&lms->stats.num_tensors, 1);
	return HR_OK;
}

/* ---- destroying ---- */

/* Destroys a tensor that is DESTROYING. [anyway]: even if the device does not release its memory. */
static hr_status destroy(hr__tensor *tensor, bool anyway, bool *gone)
{
	HR_ASSERT(hr__state_place(tensor) == HR__PLACE_DESTROYING);
	HR_ASSERT(hr__lock_none_from(HR__RANK_LMS));
	hr__lms *lms = tensor->lms;
	hr_status status = hr__move_release(tensor);
	*gone = !tensor->span || anyway;
	if (!*gone) return status;
	if (tensor->span) {
		hr__fixed_abandon(tensor);
		hr__move_release(tensor); /* the host copy and the counters */
	}
	bool ghost = hr__load_relaxed(&tensor->ghost);
	if (!ghost) hr__learned_destroyed(lms, tensor);
	hr__lms_remove(lms, tensor);
	free_record(tensor);
	hr__lms_count(ghost ? &lms->stats.num_ghosts : &lms->stats.num_tensors, -1);
	return status;
}

/* The tensor lives on as a recipe. Its memory cannot fail to be freed, because a fixed tensor has no recipe. */
static void become_ghost(hr__tensor *tensor)
{
	hr__lms *lms = tensor->lms;
	HR_ASSERT(!tensor->fixed);
	hr__learned_destroyed(lms, tensor);
	hr__move_release(tensor);
	hr__ghost_settle(tensor, next_generation());
}

static bool may_be_claimed(enum hr__place place)
{
	return place == HR__PLACE_NEW || place == HR__PLACE_RESIDENT || place == HR__PLACE_EVICTED || place == HR__PLACE_DROPPED;
}

/* Why the program must not destroy the tensor with that word now; HR_OK if it may. */
static hr_status check_destruction(hr__tensor *tensor, uint64_t word, hr_tensor handle)
{
	char name[HR__TENSOR_NAME];
	enum hr__place place = hr__word_place(word);
	if (word >> 32 != handle.id >> 32 || place == HR__PLACE_UNUSED || place == HR__PLACE_DESTROYING || hr__load_relaxed(&tensor->ghost))
		return hr__tensor_fail_closed(handle);
	if (word & HR__WORD_PINS)
		return hr__fail(HR_IN_USE, "%s is pinned %u times; unpin it first", hr__tensor_name(tensor, name, sizeof name),
		                hr__word_pins(word));
	hr_status status = hr__recompute_check_own(tensor);
	if (!status && hr__recompute_is_running() && hr__load_relaxed(&tensor->recipe_use) & HR__RECIPE_FEEDS)
		return hr__recipe_fail_running(tensor);
	return status;
}

/* Claims the tensor, whose place was *place, and ends its recipes, unless *ghost. They are released once the tensor is destroyed: the
 * program's function must not run while a tensor is claimed. */
static hr_status claim_for_destruction(hr__tensor *tensor, hr_tensor handle, enum hr__place *place, bool *ghost, hr__recipe_ended *ended)
{
	for (unsigned attempt = 0;; attempt++) {
		uint64_t word = hr__load_acquire(&tensor->word);
		hr_status status = check_destruction(tensor, word, handle);
		if (status == HR_IN_USE && !hr__recompute_is_running() && hr__ghost_is_pinned_by_recipe(tensor)) {
			hr__state_wait(attempt); /* the program knows nothing of that pin */
			continue;
		}
		if (status) return status;
		*place = hr__word_place(word);
		enum hr__fate fate = may_be_claimed(*place) ? hr__ghost_decide(tensor, word, *place, ended) : HR__FATE_WAIT;
		*ghost = fate == HR__FATE_GHOST;
		if (fate == HR__FATE_GONE || *ghost) return HR_OK;
		if (fate == HR__FATE_END) status = hr__recipe_end_dependents(tensor, handle, HR_STREAM_DEFAULT);
		if (status) return status;
		if (fate == HR__FATE_WAIT) hr__state_wait(attempt);
	}
}

hr_status hr_tensor_destroy(hr_tensor handle)
{
	hr_status status;
	enum hr__place place;
	bool gone = true, ghost;
	hr__recipe_ended ended = { 0 };
	hr__tensor *tensor = hr__tensor_of(handle, &status);
	if (tensor) status = claim_for_destruction(tensor, handle, &place, &ghost, &ended);
	if (!tensor || status) return status;
	hr__lms *lms = tensor->lms;
	hr__lms_begin_move(lms); /* other threads may be waiting for its memory */
	if (ghost) become_ghost(tensor);
	else status = destroy(tensor, false, &gone);
	if (!gone) hr__state_cancel_destruction(tensor, place);
	hr__lms_end_move(lms);
	hr__recipe_release(&ended);
	return status;
}

void hr__tensor_destroy_ghost(hr__tensor *ghost)
{
	hr__lms *lms = ghost->lms;
	bool gone;
	HR_ASSERT(hr__load_relaxed(&ghost->ghost) && !ghost->dependents && !ghost->fixed);
	for (unsigned attempt = 0;; attempt++) {
		uint64_t word = hr__load_acquire(&ghost->word);
		enum hr__place place = hr__word_place(word);
		if (may_be_claimed(place) && hr__state_begin_destruction(ghost, word, place)) break;
		hr__state_wait(attempt);
	}
	hr__lms_begin_move(lms);
	destroy(ghost, false, &gone);
	HR_ASSERT(gone);
	hr__lms_end_move(lms);
}

/* No other thread uses the allocator any more. */
void hr__lms_destroy_tensors(hr__lms *lms)
{
	hr__recipe_close(lms);
	while (lms->member_count) {
		bool gone;
		hr__tensor *tensor = lms->members[lms->member_count - 1];
		uint64_t word = hr__load_relaxed(&tensor->word);
		if (word & HR__WORD_PINS) hr__meters_add_inactive(lms->allocator, (int64_t)tensor->device_bytes); /* as if it were unpinned */
		hr__state_force_destruction(tensor);
		destroy(tensor, true, &gone);
	}
	HR_ASSERT(!hr__load_relaxed(&lms->resident) && !hr__load_relaxed(&lms->stats.num_tensors));
	HR_ASSERT(!hr__load_relaxed(&lms->allocator->inactive) && !hr__load_relaxed(&lms->stats.bytes_out_now));
}

void hr__tensor_forget_all(void)
{
	hr__lock_init(&table.lock, HR__RANK_LMS);
	for (uint32_t i = 0; i < BLOCKS_MAX; i++) hr__store_relaxed(&hr__tensor_blocks[i], NULL);
	table.made = table.spare = 0;
}

void hr__tensor_shutdown(void)
{
	hr__lock_take(&table.lock);
	for (uint32_t i = 0; i < BLOCKS_MAX; i++) {
		hr__tensor *block = hr__load_relaxed(&hr__tensor_blocks[i]);
		if (!block) break;
		hr__store_release(&hr__tensor_blocks[i], NULL);
		hr__os()->free(block, BLOCK * sizeof *block);
	}
	table.made = table.spare = 0;
	hr__lock_release(&table.lock);
}

/* ---- reading and changing properties ---- */

const char *hr_tensor_state_text(hr_tensor_state state)
{
	static const char *const texts[] = { "?",        "new",     "active",    "inactive", "synced",
		                                 "evicting", "evicted", "restoring", "dropped",  "recomputing" };
	return (unsigned)state < sizeof texts / sizeof *texts ? texts[state] : texts[0];
}

static hr_tensor_state public_state(uint64_t word, bool clean)
{
	switch (hr__word_place(word)) {
	case HR__PLACE_NEW: return HR_TENSOR_NEW;
	case HR__PLACE_EVICTING: return HR_TENSOR_EVICTING;
	case HR__PLACE_EVICTED: return HR_TENSOR_EVICTED;
	case HR__PLACE_RESTORING: return HR_TENSOR_RESTORING;
	case HR__PLACE_DROPPED: return HR_TENSOR_DROPPED;
	case HR__PLACE_RECOMPUTING: return HR_TENSOR_RECOMPUTING;
	default: return word & HR__WORD_PINS ? HR_TENSOR_ACTIVE : clean ? HR_TENSOR_SYNCED : HR_TENSOR_INACTIVE;
	}
}

/* [word] may be out of date; values that do not follow from it are current. */
static void fill_info(const hr__tensor *tensor, uint64_t word, hr_tensor_info *found)
{
	HR_ASSERT(hr__lock_is_mine(&tensor->lms->lock));
	bool resident = hr__word_place(word) == HR__PLACE_RESIDENT || hr__word_place(word) == HR__PLACE_EVICTING ||
	                hr__word_place(word) == HR__PLACE_MOVING;
	found->state = public_state(word, tensor->copy.bytes != 0);
	found->pins = hr__word_pins(word);
	found->bytes = tensor->bytes;
	found->device_bytes = resident ? tensor->device_bytes : 0;
	found->host_bytes = tensor->copy.bytes;
	found->spilled = tensor->copy.bytes && !tensor->copy.address;
	found->dirty = resident && !tensor->copy.bytes;
	found->fixed = tensor->fixed;
	found->never_evict = hr__load_relaxed(&tensor->never_evict) & HR__NEVER_EVICT_SET;
	found->priority = (int32_t)hr__load_relaxed(&tensor->priority);
	found->evictions = hr__load_relaxed(&tensor->evictions);
	found->restores = hr__load_relaxed(&tensor->restores);
	found->op = tensor->op;
	found->scope = tensor->scope;
	found->tag = tensor->tag;
	found->shape = tensor->shape;
	found->dtype = (hr_dtype)tensor->dtype;
}

hr_status hr_tensor_get_info(hr_tensor handle, hr_tensor_info *info)
{
	hr_status status;
	hr__tensor *tensor = hr__tensor_of(handle, &status);
	if (!tensor) return status;
	status = hr__struct_check(&hr__struct_tensor_info, "hr_tensor_get_info", info);
	if (status) return status;
	hr_tensor_info found = { .struct_size = sizeof found };
	hr__lms *lms = tensor->lms;
	hr__lock_take(&lms->lock); /* copies are set and dropped, and members removed, under it */
	uint64_t word = hr__load_acquire(&tensor->word);
	bool gone = word >> 32 != handle.id >> 32 || hr__word_place(word) == HR__PLACE_UNUSED ||
	            hr__word_place(word) == HR__PLACE_DESTROYING;
	if (!gone) fill_info(tensor, word, &found);
	hr__lock_release(&lms->lock);
	if (gone) return hr__tensor_fail_closed(handle);
	hr__struct_out(&hr__struct_tensor_info, info, &found);
	return HR_OK;
}

/* Acquires the lock of the tensor's context; HR_INVALID_HANDLE, without the lock, if there is no such tensor. */
static hr_status lock_tensor(hr_tensor handle, hr__tensor **out)
{
	hr_status status;
	hr__tensor *tensor = hr__tensor_of(handle, &status);
	if (!tensor) return status;
	hr__lms *lms = tensor->lms;
	hr__lock_take(&lms->lock);
	uint64_t word = hr__load_acquire(&tensor->word);
	if (word >> 32 != handle.id >> 32 || hr__word_place(word) == HR__PLACE_UNUSED) {
		hr__lock_release(&lms->lock);
		return hr__tensor_fail_closed(handle);
	}
	*out = tensor;
	return HR_OK;
}

hr_status hr_tensor_set_never_evict(hr_tensor handle, bool never)
{
	hr__tensor *tensor;
	hr_status status = lock_tensor(handle, &tensor);
	if (status) return status;
	hr__store_relaxed(&tensor->never_evict,
	                  (hr__load_relaxed(&tensor->never_evict) & HR__NEVER_EVICT_SMALL) | (never ? HR__NEVER_EVICT_SET : 0));
	hr__evict_queue_update(tensor->lms, tensor);
	hr__lock_release(&tensor->lms->lock);
	return HR_OK;
}

hr_status hr_tensor_set_names(hr_tensor handle, hr_name scope, hr_name tag)
{
	hr__tensor *tensor;
	hr_status status = lock_tensor(handle, &tensor);
	if (status) return status;
	if (scope) hr__store_relaxed(&tensor->scope, scope);
	if (tag) hr__store_relaxed(&tensor->tag, tag);
	uint64_t address = hr__load_relaxed(&tensor->address);
	/* Under the context's lock, so that the record is not reused meanwhile. */
	if (address) hr__block_rename(tensor->lms->allocator, address, tensor->index + 1, scope, tag);
	hr__lock_release(&tensor->lms->lock);
	return HR_OK;
}

hr_status hr_tensor_set_priority(hr_tensor handle, int32_t priority)
{
	hr__tensor *tensor;
	hr_status status = lock_tensor(handle, &tensor);
	if (status) return status;
	hr__store_relaxed(&tensor->priority, priority);
	hr__evict_queue_update(tensor->lms, tensor);
	hr__lock_release(&tensor->lms->lock);
	return HR_OK;
}
