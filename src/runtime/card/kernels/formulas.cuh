// formulas.cuh - what elementwise ops compute of one or two numbers: a part of the programs of elements.cuh and chain.cuh, so that both give the same bits.

#if IS_FLOAT
BOTH T of_add(T a, T b) { return a + b; }
BOTH T of_sub(T a, T b) { return a - b; }
BOTH T of_mul(T a, T b) { return a * b; }
BOTH T of_div(T a, T b) { return a / b; }
BOTH T of_maximum(T a, T b) { return a > b || a != a ? a : b; } // NaN in a wins
BOTH T of_neg(T x) { return -x; }
BOTH T of_exp(T x) { return exp(x); }
BOTH T of_log(T x) { return log(x); }
BOTH T of_sqrt(T x) { return sqrt(x); }
BOTH T of_tanh(T x) { return tanh(x); }
BOTH T of_relu(T x) { return x < 0 ? (T)0 : x; } // NaN stays NaN
BOTH T of_scale(T x, double factor, double plus) { return x * (T)factor + (T)plus; }
// x F(x), F(x) = (1 + erf(x / sqrt 2)) / 2. Its derivative is F(x) + x F'(x), F'(x) = exp(-x^2 / 2) / sqrt(2 pi).
#define HALF_ROOT (T)0.70710678118654752440
#define DENSITY (T)0.39894228040143267794
BOTH T of_gelu(T x) { return (T)0.5 * x * (1 + erf(x * HALF_ROOT)); }
BOTH T of_gelu_grad(T a, T b) { return b * ((T)0.5 * (1 + erf(a * HALF_ROOT)) + a * DENSITY * exp((T)-0.5 * a * a)); }
BOTH T of_relu_grad(T a, T b) { return a > 0 ? b : (T)0; }
BOTH T of_tanh_grad(T a, T b) { return b * (1 - a * a); }
#endif
