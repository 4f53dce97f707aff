/* segment.c - see segment.h. */
#include "core/record/segment.h"

#include <stdlib.h>
#include <string.h>

#include "core/base/text/text.h"

uint32_t hr__segment_process(const char *name)
{
	const size_t length = sizeof HR__SEGMENT_PREFIX - 1;
	char *end;
	if (strncmp(name, HR__SEGMENT_PREFIX, length) != 0 || name[length] < '1' || name[length] > '9') return 0;
	unsigned long number = strtoul(name + length, &end, 10);
	return *end || number > INT32_MAX ? 0 : (uint32_t)number;
}

#define CLEAN(name) \
	if (out->name < 0) out->name = 0;

static void clean_allocator(hr__segment_allocator *out)
{
	hr__text_plain(out->name, sizeof out->name);
	hr__text_plain(out->device, sizeof out->device);
	HR__SEGMENT_ALLOCATOR_TABLE(CLEAN)
	HR__SEGMENT_LMS_TABLE(CLEAN)
}

static void clean_device(hr__segment_device *out)
{
	hr__text_plain(out->name, sizeof out->name);
	HR__SEGMENT_STATS_TABLE(CLEAN)
	for (size_t i = 0; i < HR__SEGMENT_SAMPLES; i++)
		if (out->samples[i] < 0) out->samples[i] = 0;
}
#undef CLEAN

bool hr__segment_check(hr__segment *s, uint32_t process)
{
	if (s->magic != HR__SEGMENT_MAGIC || s->version != HR__SEGMENT_VERSION || s->bytes != sizeof *s) return false;
	if (s->process != process || s->device_count > HR__SEGMENT_DEVICES || s->allocator_count > HR__SEGMENT_ALLOCATORS) return false;
	if (!hr__rank_check(&s->rank)) return false;
	hr__text_plain(s->program, sizeof s->program);
	for (uint32_t i = 0; i < s->device_count; i++) clean_device(&s->devices[i]);
	for (uint32_t i = 0; i < s->allocator_count; i++) clean_allocator(&s->allocators[i]);
	return true;
}
