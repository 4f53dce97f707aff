/* verdict_text.c - the text and advice of a verdict: the facts that decided it, and the settings that would change them. Nothing is
 * decided here. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/base/checked.h"
#include "core/base/text/text.h"
#include "core/memory/oom/verdict.h"

/* Appends to a text. Characters that do not fit are left out. */
static void append(char *out, size_t capacity, const char *format, ...) __attribute__((format(printf, 3, 4)));
static void append(char *out, size_t capacity, const char *format, ...)
{
	size_t used = strnlen(out, capacity);
	HR_ASSERT(used < capacity);
	va_list arguments;
	va_start(arguments, format);
	if (used < capacity) vsnprintf(out + used, capacity - used, format, arguments);
	va_end(arguments);
	used = strnlen(out, capacity);
	if (used == capacity - 1) out[hr__utf8_trim(out, used)] = 0;
}

#define TEXT(verdict, ...) append((verdict)->text, sizeof(verdict)->text, __VA_ARGS__)
#define ADVISE(verdict, ...) append((verdict)->advice, sizeof(verdict)->advice, __VA_ARGS__)

typedef struct size_string {
	char text[16];
} size_string;

static size_string size_text(uint64_t bytes)
{
	size_string out;
	hr__format_size(bytes, out.text, sizeof out.text);
	return out;
}

/* ---- limits and holders ---- */

/* Names the limit that is reached, and its setting. */
static void describe_tier(const hr__judgement *j, hr_verdict *verdict)
{
	const hr__device *device = j->allocator->device;
	switch (verdict->tier) {
	case HR_TIER_ALLOCATOR:
		TEXT(verdict, "; the allocator's limit of %s is reached (options.limit_bytes)", size_text(j->allocator->limit).text);
		break;
	case HR_TIER_DEVICE:
		TEXT(verdict, "; the limit of %s, %s, is reached (%s)", hr__device_name(device), size_text(hr__device_limit(device)).text,
		    hr__device_limit_setting(device));
		break;
	case HR_TIER_PHYSICAL: TEXT(verdict, "; the device itself is full"); break;
	case HR_TIER_NONE: break;
	}
}

/* Bytes by which the allocator's memory would have to grow for the step that needed most; 0 if no step is known. */
static uint64_t growth_for_steps(const hr__judgement *j, const hr_verdict *verdict)
{
	uint64_t limit = j->allocator->limit, held = limit > j->room.allocator ? limit - j->room.allocator : 0, peak;
	if (!hr__align_up(verdict->step_peak_bytes, j->unit, &peak)) return 0;
	return peak > held ? peak - held : 0;
}

/* Ends a sentence about a limit. [lacking]: the increase for the request alone. [for_steps]: the advised increase is for a step,
 * which needs more. */
static void advise_amount(const hr__judgement *j, hr_verdict *verdict, uint64_t lacking, bool for_steps)
{
	const char *whose = j->step_elsewhere ? "a step of another allocator" : "an earlier step";
	size_string peak = size_text(verdict->step_peak_bytes);
	if (for_steps) ADVISE(verdict, " (for this request alone by %s): %s needed %s at its peak. ", size_text(lacking).text, whose, peak.text);
	else if (growth_for_steps(j, verdict) > j->need) ADVISE(verdict, ", for this request alone: %s needed %s at its peak. ", whose, peak.text);
	else ADVISE(verdict, ", for this request alone: later ones may need more. ");
}

/* Advises to raise the limit that prevents the allocator from taking [more] bytes in one piece. False if no limit prevents it, or
 * if what lies behind the limit has less than that. */
static bool advise_growth(const hr__judgement *j, hr_verdict *verdict, uint64_t more)
{
	const hr__allocator *allocator = j->allocator;
	const hr__device *device = allocator->device;
	uint64_t raised, behind = j->room.device < j->room.card ? j->room.device : j->room.card;
	bool own = hr__verdict_has_own_limit(allocator) && more > j->room.allocator, for_steps = more > j->need;
	if (own && more <= behind) {
		if (!hr__align_up(allocator->limit + (more - j->room.allocator), j->unit, &raised) || raised > hr__device_reservable(device)) return false;
		ADVISE(verdict, "Raise options.limit_bytes by %s, to %llu", size_text(raised - allocator->limit).text, (unsigned long long)raised);
		advise_amount(j, verdict, j->need > j->room.allocator ? j->need - j->room.allocator : 0, for_steps);
		return true;
	}
	if (!hr__verdict_is_part(allocator) || more <= j->room.device || more > j->room.card) return false;
	bool capped = hr__device_limit(device) < hr__device_uncapped(device);
	ADVISE(verdict, hr__device_pinned_for(device) ? "Raise the host_limit of %s by %s"
	                : capped                       ? "Raise HEADROOM_LIMIT, the limit of %s, by %s"
	                                               : "Raise the memory_limit that hr_device_set_logical gave %s by %s",
	       hr__device_name(device), size_text(more - j->room.device).text);
	if (own) ADVISE(verdict, ", and options.limit_bytes");
	advise_amount(j, verdict, j->need > j->room.device ? j->need - j->room.device : 0, for_steps);
	return true;
}

/* Advises on a limit: for a step that is known to need more than the request, or else for the request. */
static void advise_limit(const hr__judgement *j, hr_verdict *verdict)
{
	uint64_t more = growth_for_steps(j, verdict);
	if (more <= j->need || !advise_growth(j, verdict, more)) advise_growth(j, verdict, j->need);
}

static void advise_freeing(const hr__judgement *j, hr_verdict *verdict)
{
	hr_holder top;
	if (!hr__holders_top(j->walk, HR_BY_OP, &top) || top.name == HR_NAME_NONE) return;
	ADVISE(verdict, "Free memory: op %s holds most, %s in %u block%s. ", hr__brief(hr_name_text(top.name), 60).text,
	       size_text((uint64_t)top.bytes).text, top.count, hr__plural(top.count));
}

static void advise_others(const hr__judgement *j, hr_verdict *verdict)
{
	hr_device_info info = { .struct_size = sizeof info };
	if (verdict->tier != HR_TIER_PHYSICAL || hr_device_get_info(hr__device_handle(j->allocator->device), &info) != HR_OK) return;
	if (info.other_bytes) ADVISE(verdict, "Other processes hold %s of the card. ", size_text(info.other_bytes).text);
}

/* ---- by kind of verdict ---- */

static void describe_fits(const hr__judgement *j, hr_verdict *verdict)
{
	if (j->kept) TEXT(verdict, "It fits: the thread's cache has a block of that size");
	else if (j->now.holds) TEXT(verdict, "It fits: a free block is large enough");
	else TEXT(verdict, "It fits: there is room to grow by %s", size_text(hr__judgement_room(j)).text);
}

static void describe_after_stitch(const hr__judgement *j, hr_verdict *verdict)
{
	TEXT(verdict, "Enough pages are free, but scattered: it fits when %llu of them %s mapped side by side",
	    (unsigned long long)verdict->pages, verdict->pages == 1 ? "is" : "are");
	if (j->allocator->stitch) TEXT(verdict, ", which hr_alloc does automatically");
	else ADVISE(verdict, "options.stitch is off: make the allocator with it on, or call hr_allocator_trim and try again. ");
}

/* "about 12 ms" */
static void append_time(hr_verdict *verdict, uint64_t ns)
{
	if (ns < 1000000) TEXT(verdict, "about %.0f us", (double)ns / 1e3);
	else TEXT(verdict, "about %.*f ms", ns < 10000000 ? 1 : 0, (double)ns / 1e6);
}

static void describe_what_moves(hr_verdict *verdict, const char *size)
{
	uint64_t recomputed = verdict->recompute_bytes;
	if (recomputed == verdict->bytes) {
		TEXT(verdict, "It fits with LMS, if %s of idle tensors are recomputed (", size);
		append_time(verdict, verdict->recompute_ns);
		TEXT(verdict, ") or move to the host");
		return;
	}
	TEXT(verdict, "It fits with LMS, if %s of idle tensors move to the host", size);
	if (!recomputed) return;
	TEXT(verdict, ", or %s of them are recomputed (", size_text(recomputed).text);
	append_time(verdict, verdict->recompute_ns);
	TEXT(verdict, ")");
}

static void describe_with_lms(const hr__judgement *j, hr_verdict *verdict)
{
	hr__sizes size = HR__SIZES(verdict->bytes, j->host_room);
	uint64_t to_host = verdict->bytes - (j->droppable.on ? verdict->recompute_bytes : 0);
	describe_what_moves(verdict, size.text[0]);
	if (!j->lms) {
		ADVISE(verdict, "Large Model Support is off: hr_set_lms_enabled(true) before the first tensor, or HEADROOM_LMS=1 in the environment. ");
		if (j->defragged != HR__NOT_FOUND) { /* enough is free, so no limit is in the way */
			ADVISE(verdict, j->moving.on ? "Or raise hr_lms_options.defrag_budget to %llu. "
			                             : "Or set hr_lms_options.defrag: %llu bytes have to move on the device. ",
			       (unsigned long long)j->defragged);
			return;
		}
	} else if (j->host_room < to_host) {
		ADVISE(verdict, "Raise host_limit: the host has room for %s. ", size.text[1]);
		if (verdict->recompute_bytes && !j->droppable.on)
			ADVISE(verdict, "Or call hr_lms_set_recompute(allocator, true): recomputing is off. ");
	} else {
		TEXT(verdict, ", which hr_alloc does automatically");
		return;
	}
	advise_limit(j, verdict);
	advise_others(j, verdict);
}

/* For the case that defragmentation makes it fit. */
static void describe_defragged(const hr__judgement *j, hr_verdict *verdict)
{
	TEXT(verdict, "Enough memory is free, but not in one piece: tensors of %s have to move on the device", size_text(verdict->bytes).text);
	if (!j->moving.on)
		ADVISE(verdict, "Defragmentation is off: set hr_lms_options.defrag, or call hr_set_lms_defrag_enabled(true) before the first tensor. ");
	else if (j->moving.budget && j->moving.budget < verdict->bytes)
		ADVISE(verdict, "Raise hr_lms_options.defrag_budget to %llu. ", (unsigned long long)verdict->bytes);
	else TEXT(verdict, ", which hr_alloc does automatically");
}

static void describe_after_defrag(const hr__judgement *j, hr_verdict *verdict)
{
	if (j->defragged != HR__NOT_FOUND) {
		describe_defragged(j, verdict);
		return;
	}
	TEXT(verdict, "Enough memory is free, but not in one piece: live blocks of %s would have to move, and only tensors can", size_text(verdict->bytes).text);
	advise_limit(j, verdict);
	advise_freeing(j, verdict);
}

static void describe_needs_more(const hr__judgement *j, hr_verdict *verdict)
{
	TEXT(verdict, "%s more must be free", size_text(verdict->bytes).text);
	describe_tier(j, verdict);
	advise_limit(j, verdict);
	advise_others(j, verdict);
	advise_freeing(j, verdict);
}

static void describe_never_fits(const hr__judgement *j, hr_verdict *verdict)
{
	if (!verdict->bytes) {
		TEXT(verdict, "No address of the allocator is a multiple of %llu with enough addresses after it",
		    (unsigned long long)j->alignment);
		ADVISE(verdict, "Request a smaller alignment. ");
		return;
	}
	TEXT(verdict, "The request alone is %s above the limit of %s", size_text(verdict->bytes).text, size_text(j->allocator->limit).text);
	if (verdict->tier == HR_TIER_DEVICE) TEXT(verdict, " (%s)", hr__device_limit_setting(j->allocator->device));
	else TEXT(verdict, verdict->tier == HR_TIER_ALLOCATOR ? " (options.limit_bytes)" : ", which is all the device has");
	advise_limit(j, verdict);
	ADVISE(verdict, "Request less. ");
}

/* ---- by kind of allocator ---- */

static void describe_bfc(const hr__judgement *j, hr_verdict *verdict)
{
	switch (verdict->kind) {
	case HR_FITS: describe_fits(j, verdict); break;
	case HR_FITS_AFTER_TRIM:
		TEXT(verdict, "It fits when caches are emptied and free memory is released, which hr_alloc does automatically");
		break;
	case HR_FITS_AFTER_STITCH: describe_after_stitch(j, verdict); break;
	case HR_FITS_WITH_LMS: describe_with_lms(j, verdict); break;
	case HR_FITS_AFTER_DEFRAG: describe_after_defrag(j, verdict); break;
	case HR_NEEDS_MORE: describe_needs_more(j, verdict); break;
	case HR_NEVER_FITS: describe_never_fits(j, verdict); break;
	}
}

static void describe_direct(const hr__judgement *j, hr_verdict *verdict)
{
	if (verdict->kind == HR_FITS) {
		TEXT(verdict, "It fits: there is room for %s", size_text(hr__judgement_room(j)).text);
	} else if (verdict->kind == HR_FITS_AFTER_TRIM) {
		TEXT(verdict, "It fits when the device's other allocators release their free memory");
		ADVISE(verdict, "Call hr_allocator_trim on the other allocators of %s. ", hr__device_name(j->allocator->device));
	} else if (verdict->kind == HR_NEVER_FITS) {
		describe_never_fits(j, verdict);
	} else {
		describe_needs_more(j, verdict);
	}
}

static void describe_custom(const hr__judgement *j, hr_verdict *verdict)
{
	const char *name = j->allocator->kind_name;
	if (verdict->kind == HR_NEVER_FITS) {
		describe_never_fits(j, verdict);
	} else if (verdict->kind == HR_NEEDS_MORE) {
		TEXT(verdict, "%s more must be free", size_text(verdict->bytes).text);
		if (j->custom_left < j->room.allocator)
			TEXT(verdict, "; the custom allocator \"%s\" is at its own limit of %s", name, size_text(j->custom->bytes_limit).text);
		else describe_tier(j, verdict);
		advise_freeing(j, verdict);
	} else if (verdict->kind == HR_FITS_AFTER_DEFRAG) {
		TEXT(verdict, "The custom allocator \"%s\" has enough, but not in one piece", name);
		advise_freeing(j, verdict);
	} else {
		TEXT(verdict, "It fits, as far as is known of the custom allocator \"%s\"", name);
	}
}

void hr__verdict_describe(const hr__judgement *j, hr_verdict *verdict)
{
	HR_ASSERT(verdict->kind && !verdict->text[0] && !verdict->advice[0]);
	switch (j->allocator->kind) {
	case HR__KIND_BFC: describe_bfc(j, verdict); break;
	case HR__KIND_DIRECT: describe_direct(j, verdict); break;
	case HR__KIND_CUSTOM: describe_custom(j, verdict); break;
	}
	TEXT(verdict, ".");
	size_t end = strlen(verdict->advice);
	if (end && verdict->advice[end - 1] == ' ') verdict->advice[end - 1] = 0;
}
