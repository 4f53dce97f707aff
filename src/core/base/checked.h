/* checked.h - arithmetic on sizes with overflow checks.
 *
 * All code that adds, multiplies or rounds a size from a caller, a file or a device uses these. Each function returns false and
 * leaves *out unchanged when the result does not fit. Nothing else in the project rounds sizes. */
#ifndef HR_BASE_CHECKED_H
#define HR_BASE_CHECKED_H

#include <stdbool.h>
#include <stdint.h>

static inline bool hr__is_power_of_two(uint64_t x)
{
	return x != 0 && (x & (x - 1)) == 0;
}

static inline bool hr__add(uint64_t a, uint64_t b, uint64_t *out)
{
	uint64_t sum;
	if (__builtin_add_overflow(a, b, &sum)) return false;
	*out = sum;
	return true;
}

static inline bool hr__multiply(uint64_t a, uint64_t b, uint64_t *out)
{
	uint64_t product;
	if (__builtin_mul_overflow(a, b, &product)) return false;
	*out = product;
	return true;
}

/* [unit] must be a power of two. */
static inline uint64_t hr__align_down(uint64_t x, uint64_t unit)
{
	return x & ~(unit - 1);
}

/* [unit] must be a power of two. */
static inline bool hr__align_up(uint64_t x, uint64_t unit, uint64_t *out)
{
	uint64_t raised;
	if (!hr__add(x, unit - 1, &raised)) return false;
	*out = hr__align_down(raised, unit);
	return true;
}

/* Position of the highest set bit; [x] must not be 0. */
static inline unsigned hr__log2(uint64_t x)
{
	return 63u - (unsigned)__builtin_clzll(x);
}

#endif
