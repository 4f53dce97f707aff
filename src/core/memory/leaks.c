/* leaks.c - see leaks.h. */
#include "core/memory/leaks.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/base/names.h"
#include "core/base/status.h"
#include "core/base/text/text.h"
#include "core/memory/oom/oom.h"

#define KINDS (HR_BY_TAG + 1)
#define MESSAGE_BYTES 512u

/* ---- counting ---- */

static size_t sums_bytes(const hr__leaks *leaks)
{
	return KINDS * (size_t)leaks->names * sizeof *leaks->sums;
}

static void add_names(hr__leaks *leaks, hr_name op, hr_name scope, hr_name tag, uint64_t bytes)
{
	hr_name names[KINDS] = { op, scope, tag };
	void *block;
	if (!leaks->names) {
		leaks->names = hr__names_count(); /* no name is interned while the library shuts down */
		if (!hr__os()->alloc(sums_bytes(leaks), &block)) leaks->sums = memset(block, 0, sums_bytes(leaks));
	}
	for (unsigned kind = 0; leaks->sums && kind < KINDS; kind++)
		leaks->sums[kind * leaks->names + (names[kind] < leaks->names ? names[kind] : HR_NAME_OTHER)] += bytes;
}

void hr__leaks_add_tensor(hr__leaks *leaks, hr_name op, hr_name scope, hr_name tag, uint64_t bytes)
{
	leaks->tensors++;
	leaks->tensor_bytes += bytes;
	add_names(leaks, op, scope, tag, bytes);
}

void hr__leaks_add_values(hr__leaks *leaks, uint64_t count, uint64_t bytes, uint64_t largest, hr_name op)
{
	if (count && largest >= leaks->largest_value) {
		leaks->largest_value = largest;
		leaks->value_op = op;
	}
	leaks->values += count;
	leaks->value_bytes += bytes;
}

static void add_block(void *context, const hr__chunk *chunk)
{
	hr__leaks *leaks = context;
	leaks->blocks++;
	leaks->block_bytes += chunk->size;
	add_names(leaks, chunk->op, chunk->scope, chunk->tag, chunk->size);
}

void hr__leaks_add_blocks(hr__leaks *leaks, hr__allocator *allocator)
{
	hr__walk walk;
	HR_ASSERT(hr__lock_none_from(HR__RANK_REPORT));
	if (hr__device_pinned_for(allocator->device)) return; /* used by the library itself */
	hr__lock_take(&hr__report_lock);
	hr__walk_begin(&walk, allocator, false);
	hr__walk_blocks(&walk, add_block, leaks);
	hr__lock_release(&hr__report_lock);
}

/* ---- reporting ---- */

/* The name with the most bytes; HR_NAME_NONE if no leak has a name. */
static hr_name largest(const hr__leaks *leaks, unsigned kind, uint64_t *bytes)
{
	hr_name best = HR_NAME_NONE;
	*bytes = 0;
	for (hr_name name = HR_NAME_NONE + 1; leaks->sums && name < leaks->names; name++) {
		if (leaks->sums[kind * leaks->names + name] <= *bytes) continue;
		*bytes = leaks->sums[kind * leaks->names + name];
		best = name;
	}
	return best;
}

__attribute__((format(printf, 2, 3))) static void append(char out[MESSAGE_BYTES], const char *format, ...)
{
	size_t used = strlen(out);
	va_list arguments;
	va_start(arguments, format);
	vsnprintf(out + used, MESSAGE_BYTES - used, format, arguments);
	va_end(arguments);
}

static void append_count(char out[MESSAGE_BYTES], uint64_t count, const char *thing, uint64_t bytes)
{
	char size[16];
	if (!count) return;
	append(out, "%s%llu %s%s (%s)", *out ? ", " : "hr_shutdown freed ", (unsigned long long)count, thing, hr__plural(count),
	    hr__format_size(bytes, size, sizeof size));
}

static void append_holders(const hr__leaks *leaks, char out[MESSAGE_BYTES])
{
	static const char *const kinds[KINDS] = { "op", "scope", "tag" };
	const char *before = "; the largest holders are ";
	for (unsigned kind = 0; kind < KINDS; kind++) {
		uint64_t bytes;
		char size[16];
		hr_name name = largest(leaks, kind, &bytes);
		if (!name) continue;
		append(out, "%s%s %s (%s)", before, kinds[kind], hr__brief(hr_name_text(name), 60).text, hr__format_size(bytes, size, sizeof size));
		before = ", ";
	}
}

hr_status hr__leaks_end(hr__leaks *leaks, hr_status status)
{
	char text[MESSAGE_BYTES] = "", first[MESSAGE_BYTES];
	bool any = leaks->blocks || leaks->tensors || leaks->values;
	if (any) {
		append_count(text, leaks->blocks, "block", leaks->block_bytes);
		append_count(text, leaks->tensors, "tensor", leaks->tensor_bytes);
		append_count(text, leaks->values, "value", leaks->value_bytes);
		append(text, " that the program had not freed");
		if (leaks->value_op) append(text, "; the largest value is of op %s", hr__brief(hr_name_text(leaks->value_op), 60).text);
		append_holders(leaks, text);
	}
	if (leaks->sums) hr__os()->free(leaks->sums, sums_bytes(leaks));
	leaks->sums = NULL;
	if (!any) return status;
	if (!status) return hr__fail(HR_LEAKED, "%s", text);
	snprintf(first, sizeof first, "%s", hr_last_message());
	return hr__fail(status, "%s; and %s", first, text);
}
