/* histogram.h - counts of 32-bit values, exact below 4096 and to 1/64 above: quantiles of many timings in little memory. */
#ifndef HR_CLI_HISTOGRAM_H
#define HR_CLI_HISTOGRAM_H

#include <stdint.h>

#define HR__HISTOGRAM_EXACT 4096u
#define HR__HISTOGRAM_BINS (HR__HISTOGRAM_EXACT + 20u * 64u)

typedef struct hr__histogram {
	uint64_t total;
	uint64_t bins[HR__HISTOGRAM_BINS];
} hr__histogram;

static inline void hr__histogram_add(hr__histogram *histogram, uint32_t value)
{
	uint32_t bin = value;
	if (value >= HR__HISTOGRAM_EXACT) {
		unsigned log = 31u - (unsigned)__builtin_clz(value); /* 12 to 31 */
		bin = HR__HISTOGRAM_EXACT + (log - 12) * 64 + ((value >> (log - 6)) & 63);
	}
	histogram->bins[bin]++;
	histogram->total++;
}

static inline double hr__histogram_value(uint32_t bin)
{
	if (bin < HR__HISTOGRAM_EXACT) return bin;
	uint32_t above = bin - HR__HISTOGRAM_EXACT;
	return (double)((uint64_t)(64 + above % 64) << (above / 64 + 6));
}

/* The value at or below which the share [quantile] of all values lies; 0 when there are none. Each value counts as spread evenly
 * over an interval of length [width] around it. Clock counters of some machines advance in increments (26 ticks); with [width] set
 * to the increment, the quantile is finer than that. */
static inline double hr__histogram_quantile(const hr__histogram *histogram, double quantile, double width)
{
	double low = -width, high = 4294967296.0 + width, wanted = quantile * (double)histogram->total;
	if (histogram->total == 0) return 0;
	while (high - low > 0.01) {
		double middle = (low + high) / 2, below = 0;
		for (uint32_t bin = 0; bin < HR__HISTOGRAM_BINS; bin++) {
			double share = width > 0 ? (middle - hr__histogram_value(bin)) / width + 0.5 : middle >= hr__histogram_value(bin);
			if (share <= 0) break;
			below += (double)histogram->bins[bin] * (share < 1 ? share : 1);
		}
		if (below < wanted) low = middle;
		else high = middle;
	}
	return high;
}

#endif
