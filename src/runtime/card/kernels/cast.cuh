// cast.cuh - conversion from T to each dtype, as in ops_cast.c: floats outside of an integer's range are clamped, NaN becomes 0.

// [beyond] is the first value that does not fit.
template <class V> BOTH V clamp(double x, V least, V most, double beyond)
{
	if (x != x) return 0;
	if (x <= (double)least) return least;
	return x >= beyond ? most : (V)x;
}

#if IS_FLOAT
#define AS_FLOAT(V) (V)x
#define AS_INTEGER(V, least, most, beyond) clamp<V>((double)x, least, most, beyond)
#define AS_TRUTH x != 0
#define AS_BFLOAT16 of_float(x)
BOTH uint16_t of_float(float x) { return hr__bfloat16_of_f32(x); }
BOTH uint16_t of_float(double x) { return hr__bfloat16_of_f64(x); }
#elif HR_DTYPE == 7
#define AS_FLOAT(V) (V)hr__bfloat16_to_f32(x)
#define AS_INTEGER(V, least, most, beyond) clamp<V>((double)hr__bfloat16_to_f32(x), least, most, beyond)
#define AS_TRUTH hr__bfloat16_to_f32(x) != 0
#define AS_BFLOAT16 x
#elif HR_DTYPE == 6
#define AS_FLOAT(V) (V)(x != 0)
#define AS_INTEGER(V, least, most, beyond) (V)(x != 0)
#define AS_TRUTH x != 0
#define AS_BFLOAT16 hr__bfloat16_of_i64(x != 0)
#else
#define AS_FLOAT(V) (V)x
#define AS_INTEGER(V, least, most, beyond) (V)x
#define AS_TRUTH x != 0
#define AS_BFLOAT16 hr__bfloat16_of_i64((int64_t)x)
#endif

// Four elements at a time, where the addresses allow it.
#define CAST(name, V, expression)                                                          \
	template <int M> BOTH void cast_to_##name(const hr__k_cast &arg)                       \
	{                                                                                      \
		for (STRIDES(i, arg.count / M)) {                                                  \
			pack<T, M> from = ((const pack<T, M> *)arg.from)[i];                           \
			pack<V, M> to;                                                                 \
			for (int k = 0; k < M; k++) {                                                  \
				T x = from.at[k];                                                          \
				to.at[k] = (V)(expression);                                                \
			}                                                                              \
			((pack<V, M> *)arg.to)[i] = to;                                                \
		}                                                                                  \
	}                                                                                      \
	KERNEL(hr_cast_to_##name##_1, hr__k_cast) { cast_to_##name<1>(arg); }                  \
	KERNEL(hr_cast_to_##name##_n, hr__k_cast) { cast_to_##name<4>(arg); }

CAST(float32, float, AS_FLOAT(float))
CAST(float64, double, AS_FLOAT(double))
CAST(int32, int32_t, AS_INTEGER(int32_t, -2147483647 - 1, 2147483647, 2147483648.0))
CAST(int64, int64_t, AS_INTEGER(int64_t, -9223372036854775807LL - 1, 9223372036854775807LL, 9223372036854775808.0))
CAST(uint8, uint8_t, AS_INTEGER(uint8_t, 0, 255, 256.0))
CAST(bool, uint8_t, AS_TRUTH)
CAST(bfloat16, uint16_t, AS_BFLOAT16)
