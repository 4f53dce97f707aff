/* source.c - inputs of recipes that are not tensors. See recipe.h.
 *
 * The program calls each by a number. A hash table finds the recipes that name one: a bucket is a list of inputs, linked like the
 * dependents of a tensor. The table doubles when there are more sources than buckets, and never shrinks: it has as many buckets as a
 * step of the program needed. */
#include "core/base/status.h"
#include "core/lms/context.h"
#include "core/lms/recipe/recipe.h"

#define FIRST_CAPACITY 256u

static hr__recipe_input **bucket_of(const hr__lms *lms, uint64_t source)
{
	HR_ASSERT(lms->source_buckets);
	return &lms->source_buckets[(source * UINT64_C(0x9e3779b97f4a7c15)) >> 32 & (lms->source_capacity - 1)];
}

static void push(hr__recipe_input **bucket, hr__recipe_input *input)
{
	input->next = *bucket;
	input->link = bucket;
	if (input->next) input->next->link = &input->next;
	*bucket = input;
}

bool hr__recipe_source_reserve(hr__lms *lms, uint32_t count)
{
	HR_ASSERT(hr__lock_is_mine(&lms->lock));
	uint64_t needed = (uint64_t)hr__load_relaxed(&lms->source_count) + count;
	uint32_t before = lms->source_capacity, capacity = before ? before : FIRST_CAPACITY;
	void *block;
	if (!count || needed <= before) return true;
	while (capacity < needed && capacity < UINT32_C(1) << 31) capacity *= 2;
	if (hr__os()->alloc(capacity * sizeof(hr__recipe_input *), &block)) return before > 0; /* longer lists, but they work */
	hr__recipe_input **old = lms->source_buckets;
	lms->source_buckets = block;
	lms->source_capacity = capacity;
	for (uint32_t i = 0; i < before; i++) {
		for (hr__recipe_input *input = old[i], *next; input; input = next) {
			next = input->next;
			push(bucket_of(lms, input->source), input);
		}
	}
	if (old) hr__os()->free(old, before * sizeof *old);
	return true;
}

void hr__recipe_source_link(hr__lms *lms, hr__recipe_input *input)
{
	HR_ASSERT(hr__lock_is_mine(&lms->lock) && !input->tensor);
	push(bucket_of(lms, input->source), input);
	hr__store_relaxed(&lms->source_count, hr__load_relaxed(&lms->source_count) + 1);
}

void hr__recipe_source_unlink(hr__lms *lms, hr__recipe_input *input)
{
	HR_ASSERT(hr__lock_is_mine(&lms->lock) && hr__load_relaxed(&lms->source_count) > 0);
	*input->link = input->next;
	if (input->next) input->next->link = input->link;
	hr__store_relaxed(&lms->source_count, hr__load_relaxed(&lms->source_count) - 1);
}

void hr__recipe_source_close(hr__lms *lms)
{
	HR_ASSERT(!hr__load_relaxed(&lms->source_count));
	if (lms->source_buckets) hr__os()->free(lms->source_buckets, lms->source_capacity * sizeof *lms->source_buckets);
	lms->source_buckets = NULL;
	lms->source_capacity = 0;
}

/* A recipe that names the source; NULL = none. */
static hr__recipe *find_recipe(const hr__lms *lms, uint64_t source)
{
	HR_ASSERT(hr__lock_is_mine(&lms->lock));
	hr__recipe_input *input = lms->source_buckets ? *bucket_of(lms, source) : NULL;
	while (input && input->source != source) input = input->next;
	return input ? input->recipe : NULL;
}

/* Ends one recipe, or removes an obstacle. *more: call again. */
static hr_status end_next(hr__lms *lms, uint64_t source, hr_stream stream, unsigned *attempt, bool *more)
{
	hr__recipe_ended ended = { 0 };
	hr__recipe_obstacle obstacle = { 0 };
	uint64_t word = 0;
	hr__lock_take(&lms->lock);
	hr__recipe *recipe = find_recipe(lms, source);
	bool forbidden = recipe && hr__recompute_is_running();
	*more = recipe && !forbidden;
	if (*more) obstacle = hr__recipe_find_obstacle_of(recipe);
	if (obstacle.dropped) word = hr__load_relaxed(&obstacle.dropped->word);
	if (*more && !obstacle.running && !obstacle.dropped) hr__recipe_end_one(recipe, &ended);
	hr__lock_release(&lms->lock);
	hr__recipe_release(&ended);
	if (forbidden) return hr__fail(HR_INVALID_ARGUMENT, "hr_lms_end_recipes: a recompute function must not change what recipes name as a source");
	if (!*more || (!obstacle.running && !obstacle.dropped)) return HR_OK;
	bool done = false;
	hr_status status = obstacle.running ? HR_OK : hr__recompute(obstacle.dropped, word, stream, HR__THEN_DETACH, &done);
	if (!status && !done) hr__state_wait((*attempt)++);
	return status;
}

hr_status hr_lms_end_recipes(hr_allocator allocator, uint64_t source, hr_stream stream)
{
	hr__lms *lms;
	hr_status status = hr__lms_find(allocator, &lms);
	unsigned attempt = 0;
	bool more = !status && hr__load_relaxed(&lms->source_count) > 0;
	while (!status && more) status = end_next(lms, source, stream, &attempt, &more);
	return status;
}
