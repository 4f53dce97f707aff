/* link.c - see link.h. */
#include "core/lms/policy/link.h"

#define GUESS UINT64_C(50000000000) /* bytes per second, until a copy was timed */
#define REMEMBERED (UINT64_C(16) << 30) /* bytes of copies; older ones count half */

static void add(hr__link_speed *speed, uint64_t bytes, uint64_t ns)
{
	uint64_t rate = (uint64_t)((double)bytes * 1e9 / (double)ns);
	if (rate > 2 * speed->fastest) speed->bytes = speed->ns = 0;
	if (rate > speed->fastest) speed->fastest = rate;
	if (rate < speed->fastest / 2) return;
	speed->bytes += bytes;
	speed->ns += ns;
	if (speed->bytes < REMEMBERED) return;
	speed->bytes /= 2;
	speed->ns /= 2;
}

static hr__link_speed *speed_of(hr__link *link, bool out, bool small)
{
	if (small) return out ? &link->small_out : &link->small_in;
	return out ? &link->out : &link->in;
}

static uint64_t bytes_per_s(const hr__link_speed *speed, uint64_t otherwise)
{
	return speed->ns ? (uint64_t)((double)speed->bytes * 1e9 / (double)speed->ns) : otherwise;
}

void hr__link_note(hr__link *link, hr__link_copy copy)
{
	HR_ASSERT(copy.before < copy.mark && copy.bytes >= HR__LINK_TIMED_SMALLEST);
	bool small = copy.bytes < HR__LINK_TIMED_MIN;
	link->copies[small][link->copy_count[small]++ % HR__LINK_COPIES] = copy;
}

static void time_copies(hr__link *link, const hr__lms *lms, bool small)
{
	for (uint32_t i = 0; i < link->copy_count[small] && i < HR__LINK_COPIES; i++) {
		const hr__link_copy *copy = &link->copies[small][i];
		uint64_t begin = 0, end = 0;
		hr_stream stream = copy->out ? lms->out_stream : lms->in_stream;
		if (hr__device_mark_time(lms->device, stream, copy->before, &begin) ||
		    hr__device_mark_time(lms->device, stream, copy->mark, &end))
			continue;
		/* Plans add the fixed cost to each copy. */
		if (end > begin + HR__LINK_COPY_NS) add(speed_of(link, copy->out, small), copy->bytes, end - begin - HR__LINK_COPY_NS);
		else if (small) add(speed_of(link, copy->out, true), copy->bytes, 1); /* too fast to tell */
	}
	link->copy_count[small] = 0;
}

void hr__link_time(hr__link *link, const hr__lms *lms)
{
	HR_ASSERT(hr__lock_is_mine(&lms->lock));
	time_copies(link, lms, false);
	time_copies(link, lms, true);
}

/* What small copies say counts only if it is less than the guess. */
static uint64_t small_bytes_per_s(const hr__link_speed *speed, uint64_t otherwise)
{
	uint64_t rate = bytes_per_s(speed, otherwise);
	return rate < GUESS ? rate : GUESS;
}

uint64_t hr__link_out(const hr__link *link)
{
	return bytes_per_s(&link->out, small_bytes_per_s(&link->small_out, GUESS));
}

uint64_t hr__link_in(const hr__link *link)
{
	return bytes_per_s(&link->in, link->out.ns ? hr__link_out(link) : small_bytes_per_s(&link->small_in, hr__link_out(link)));
}
