/* conv_tile.c - see conv_tile.h. The sums of a tile stay in registers: 8 rows where there are 32 of them, otherwise 6. */
#include "runtime/kernels/conv_tile.h"

#include <string.h>

#define ROWS_6(X) X(0) X(1) X(2) X(3) X(4) X(5)
#define ROWS_8(X) ROWS_6(X) X(6) X(7)

#define ZERO(i) conv_vector x##i = { 0 }, y##i = { 0 };
#define LOAD(i) conv_vector x##i = *(const conv_vector *)(tile + 2 * i * LANES), y##i = *(const conv_vector *)(tile + (2 * i + 1) * LANES);
#define STORE(i) *(conv_vector *)(tile + 2 * i * LANES) = x##i, *(conv_vector *)(tile + (2 * i + 1) * LANES) = y##i;
#define ADD_PLACES(i) x##i += strip[k * HIGH + i] * x, y##i += strip[k * HIGH + i] * y;
#define FROM(i) const type *from##i = from[i];
#define ADD_TAPS(i) x##i += from##i[at + k] * x, y##i += from##i[at + k] * y;

#define VECTOR(bytes)                                                                                                              \
	typedef type conv_vector __attribute__((vector_size(bytes), aligned(sizeof(type)), may_alias));                                \
	enum { LANES = (bytes) / sizeof(type) };

#define KERNELS(suffix, of, bytes, rows, target)                                                                                   \
	target static void places_##suffix(int64_t depth, const void *of_strip, const int64_t *offsets, const void *of_first,          \
	                                   const void *of_second, void *to)                                                            \
	{                                                                                                                              \
		typedef of type;                                                                                                           \
		VECTOR(bytes)                                                                                                              \
		enum { HIGH = rows };                                                                                                      \
		const type *strip = of_strip, *first = of_first, *second = of_second;                                                      \
		type *tile = to;                                                                                                           \
		ROWS_##rows(ZERO) for (int64_t k = 0; k < depth; k++)                                                                      \
		{                                                                                                                          \
			conv_vector x = *(const conv_vector *)(first + offsets[k]), y = *(const conv_vector *)(second + offsets[k]);           \
			ROWS_##rows(ADD_PLACES)                                                                                                \
		}                                                                                                                          \
		ROWS_##rows(STORE)                                                                                                         \
	}                                                                                                                              \
                                                                                                                                   \
	target static void taps_##suffix(int64_t high, int64_t columns, int64_t pitch, const void *const *from, const void *of_panel,  \
	                                 void *sums)                                                                                   \
	{                                                                                                                              \
		typedef of type;                                                                                                           \
		VECTOR(bytes)                                                                                                              \
		const type *panel = of_panel;                                                                                              \
		type *tile = sums;                                                                                                         \
		ROWS_##rows(FROM) ROWS_##rows(LOAD) for (int64_t r = 0, at = 0; r < high; r++, at += pitch)                                \
		{                                                                                                                          \
			for (int64_t k = 0; k < columns; k++, panel += 2 * LANES) {                                                            \
				conv_vector x = *(const conv_vector *)panel, y = *(const conv_vector *)(panel + LANES);                            \
				ROWS_##rows(ADD_TAPS)                                                                                              \
			}                                                                                                                      \
		}                                                                                                                          \
		ROWS_##rows(STORE)                                                                                                         \
	}

KERNELS(f32_16, float, 16, 6, )
KERNELS(f64_16, double, 16, 6, )
#if defined(__x86_64__)
KERNELS(f32_32, float, 32, 6, __attribute__((target("avx2,fma"))))
KERNELS(f64_32, double, 32, 6, __attribute__((target("avx2,fma"))))
KERNELS(f32_64, float, 64, 8, __attribute__((target("avx512f"))))
KERNELS(f64_64, double, 64, 8, __attribute__((target("avx512f"))))
#endif

#define CHOOSE(bytes, rows)                                                                                                        \
	return dtype == HR_DTYPE_FLOAT32 ? (hr__conv_kernels){ rows, bytes / 4, places_f32_##bytes, taps_f32_##bytes }                 \
	                                 : (hr__conv_kernels){ rows, bytes / 8, places_f64_##bytes, taps_f64_##bytes };

hr__conv_kernels hr__conv_kernels_for(hr_dtype dtype)
{
#if defined(__x86_64__)
	if (__builtin_cpu_supports("avx512f")) CHOOSE(64, 8)
	if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) CHOOSE(32, 6)
#endif
	CHOOSE(16, 6)
}
