/* export_strings.c - see export_strings.h. */
#include "analysis/export/export_strings.h"

#include <string.h>

#include "core/base/assert.h"
#include "core/base/text/text.h"
#include "core/os/os.h"
#include "analysis/export/export_formats.h"

#define FIRST_CAPACITY 256u /* a power of two; there are twice as many slots */

static uint64_t hash(const char *text)
{
	uint64_t value = 14695981039346656037u;
	for (; *text; text++) value = (value ^ (unsigned char)*text) * 1099511628211u;
	return value ^ value >> 32;
}

/* The slot that holds the text or is free for it. */
static uint32_t *slot_of(const hr__export_strings *strings, const char *text)
{
	uint32_t mask = strings->slot_count - 1;
	uint32_t at = (uint32_t)hash(text) & mask;
	while (strings->slots[at] && strcmp(strings->texts[strings->slots[at] - 1], text) != 0) at = (at + 1) & mask;
	return &strings->slots[at];
}

static hr_status grow(hr__export_strings *strings)
{
	hr__export_strings old = *strings, bigger = { .count = old.count };
	void *texts, *slots;
	bigger.capacity = old.capacity ? old.capacity * 2 : FIRST_CAPACITY;
	bigger.slot_count = bigger.capacity * 2;
	int error = hr__os()->alloc(bigger.capacity * sizeof *bigger.texts, &texts);
	if (error) return hr__os_fail(error, "exporting a trace");
	error = hr__os()->alloc(bigger.slot_count * sizeof *bigger.slots, &slots);
	if (error) {
		hr__os()->free(texts, bigger.capacity * sizeof *bigger.texts);
		return hr__os_fail(error, "exporting a trace");
	}
	bigger.texts = texts;
	bigger.slots = slots;
	if (old.count) memcpy(bigger.texts, old.texts, old.count * sizeof *old.texts);
	for (uint32_t i = 0; i < old.count; i++) *slot_of(&bigger, bigger.texts[i]) = i + 1;
	if (old.texts) hr__os()->free(old.texts, old.capacity * sizeof *old.texts);
	if (old.slots) hr__os()->free(old.slots, old.slot_count * sizeof *old.slots);
	*strings = bigger;
	return HR_OK;
}

uint32_t hr__export_strings_add(hr__export_strings *strings, const char *text, hr_status *status)
{
	char clean[HR__EXPORT_CLEAN_BYTES];
	if (!*status && strings->count == strings->capacity) *status = grow(strings);
	if (*status) return 0;
	size_t bytes = hr__text_repair(text, strlen(text), clean, sizeof clean) + 1;
	uint32_t *slot = slot_of(strings, clean);
	if (!*slot) {
		void *copy = hr__export_take(status, bytes);
		if (*status) return 0;
		strings->texts[strings->count] = memcpy(copy, clean, bytes);
		*slot = ++strings->count;
	}
	return *slot - 1;
}

void hr__export_strings_free(hr__export_strings *strings)
{
	for (uint32_t i = 0; i < strings->count; i++) hr__os()->free(strings->texts[i], strlen(strings->texts[i]) + 1);
	if (strings->texts) hr__os()->free(strings->texts, strings->capacity * sizeof *strings->texts);
	if (strings->slots) hr__os()->free(strings->slots, strings->slot_count * sizeof *strings->slots);
	*strings = (hr__export_strings){ 0 };
}
