/* link.c - see link.h. */
#include "core/lms/policy/link.h"

#define GUESS UINT64_C(50000000000) /* bytes per second, until a copy was timed */

void hr__link_note(hr__link *link, hr__link_copy copy)
{
	HR_ASSERT(copy.before < copy.mark && copy.bytes >= HR__LINK_TIMED_MIN);
	link->copies[link->copy_count++ % HR__LINK_COPIES] = copy;
}

void hr__link_time(hr__link *link, const hr__lms *lms)
{
	HR_ASSERT(hr__lock_is_mine(&lms->lock));
	for (uint32_t i = 0; i < link->copy_count && i < HR__LINK_COPIES; i++) {
		const hr__link_copy *copy = &link->copies[i];
		uint64_t begin = 0, end = 0;
		hr_stream stream = copy->out ? lms->out_stream : lms->in_stream;
		if (hr__device_mark_time(lms->device, stream, copy->before, &begin) ||
		    hr__device_mark_time(lms->device, stream, copy->mark, &end))
			continue;
		if (end <= begin + HR__LINK_COPY_NS) continue;
		double rate = (double)copy->bytes * 1e9 / (double)(end - begin - HR__LINK_COPY_NS);
		uint64_t *fastest = copy->out ? &link->out : &link->in;
		if (rate < 1e13 && (uint64_t)rate > *fastest) *fastest = (uint64_t)rate;
	}
	link->copy_count = 0;
}

uint64_t hr__link_out(const hr__link *link)
{
	return link->out ? link->out : GUESS;
}

uint64_t hr__link_in(const hr__link *link)
{
	return link->in ? link->in : hr__link_out(link);
}
