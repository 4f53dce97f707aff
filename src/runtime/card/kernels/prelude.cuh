// prelude.cuh - what every program begins with. HR_DTYPE is the number of the dtype that the program is compiled for (hr_dtype), 0 = none.
//
// Each kernel has one parameter, a struct of arguments.h. Products and sums are not fused (--fmad=false), so that a kernel gives the same bits as the
// host's loop where both round the same operations.

#ifndef HR_HOST_PROGRAM // else it is compiled for the host, which has all of this (tests/fake_cuda)
typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long long int64_t;
typedef unsigned long long uint64_t;
#define KERNEL(name, type) extern "C" __global__ void name(const __grid_constant__ type arg)
// A kernel of which [blocks] blocks of [threads] are to fit on a processor at a time: it gets so few registers.
#define FITTING_KERNEL(name, type, threads, blocks) extern "C" __global__ __launch_bounds__(threads, blocks) void name(const __grid_constant__ type arg)
#define INFINITY __int_as_float(0x7f800000)
#define COLD __device__ __noinline__ // rarely called, and too long to be copied to each place
#endif
#define BOTH __device__ inline

#define WARP 32
#define BLOCK 256 // threads, where a kernel does not say otherwise

// LOWEST is the smallest value of T.
#if HR_DTYPE == 1
typedef float T;
#define LOWEST -INFINITY
#define IS_FLOAT 1
#define IS_INTEGER 0
#elif HR_DTYPE == 2
typedef double T;
#define LOWEST -INFINITY
#define IS_FLOAT 1
#define IS_INTEGER 0
#elif HR_DTYPE == 3
typedef int32_t T;
#define LOWEST (-2147483647 - 1)
typedef uint32_t U;
#define IS_FLOAT 0
#define IS_INTEGER 1
#elif HR_DTYPE == 4
typedef int64_t T;
#define LOWEST (-9223372036854775807LL - 1)
typedef uint64_t U;
#define IS_FLOAT 0
#define IS_INTEGER 1
#elif HR_DTYPE == 5
typedef uint8_t T;
#define LOWEST 0
typedef uint32_t U; // integers wrap around, computed as unsigned, at least as wide as int
#define IS_FLOAT 0
#define IS_INTEGER 1
#elif HR_DTYPE == 6
typedef uint8_t T; // true or false
#define IS_FLOAT 0
#define IS_INTEGER 0
#elif HR_DTYPE == 7
typedef uint16_t T; // the bits of a bfloat16
#define IS_FLOAT 0
#define IS_INTEGER 0
#endif

// Elements that a thread reads and writes at once: 16 bytes, at most 4.
#define N (16 / (int)sizeof(T) < 4 ? 16 / (int)sizeof(T) : 4)

// M neighbours, read and written at once.
template <class V, int M> struct alignas(sizeof(V) * M) pack {
	V at[M];
};

// The numbers of this thread's items below [count]: for (STRIDES(i, count)).
#define STRIDES(i, count)                                                                       \
	int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, i##_step = (int64_t)gridDim.x * blockDim.x; i < (count); i += i##_step
