/* libraries.h - CUDA's libraries, found at run time like the driver, in declarations of our own: NVRTC compiles kernels, cuBLASLt multiplies
 * matrices.
 *
 * Searched in this order: the folders of HEADROOM_CUDA_LIBRARIES, libraries that the process has loaded, the loader's path, CUDA's usual
 * folders. In each folder, the places of pip's packages are searched too, so the folder "nvidia" of a Python environment can be named.
 *
 * tools/check-cuda-declarations.sh compares the declarations with the real headers. Enumerations are int. */
#ifndef HR_CARD_LIBRARIES_H
#define HR_CARD_LIBRARIES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- NVRTC ---- */

typedef struct _nvrtcProgram *nvrtcProgram;

#define HR__NVRTC_CALLS(X)                                                                                                   \
	X(nvrtcVersion, int, (int *, int *))                                                                                     \
	X(nvrtcGetErrorString, const char *, (int))                                                                              \
	X(nvrtcGetNumSupportedArchs, int, (int *))                                                                               \
	X(nvrtcGetSupportedArchs, int, (int *))                                                                                  \
	X(nvrtcCreateProgram, int, (nvrtcProgram *, const char *, const char *, int, const char *const *, const char *const *))  \
	X(nvrtcDestroyProgram, int, (nvrtcProgram *))                                                                            \
	X(nvrtcCompileProgram, int, (nvrtcProgram, int, const char *const *))                                                    \
	X(nvrtcGetCUBINSize, int, (nvrtcProgram, size_t *))                                                                      \
	X(nvrtcGetCUBIN, int, (nvrtcProgram, char *))                                                                            \
	X(nvrtcGetPTXSize, int, (nvrtcProgram, size_t *))                                                                        \
	X(nvrtcGetPTX, int, (nvrtcProgram, char *))                                                                              \
	X(nvrtcGetProgramLogSize, int, (nvrtcProgram, size_t *))                                                                 \
	X(nvrtcGetProgramLog, int, (nvrtcProgram, char *))

#define HR__NVRTC_NUMBERS(X)   \
	X(NVRTC_SUCCESS, 0)        \
	X(NVRTC_ERROR_COMPILATION, 6)

/* ---- cuBLASLt ---- */

typedef struct cublasLtContext *cublasLtHandle_t;
typedef struct hr__lt_desc *cublasLtMatmulDesc_t;     /* a pointer to an opaque struct of the library */
typedef struct hr__lt_layout *cublasLtMatrixLayout_t;
typedef struct hr__lt_preference *cublasLtMatmulPreference_t;

typedef struct cublasLtMatmulAlgo_t {
	uint64_t data[8];
} cublasLtMatmulAlgo_t;

typedef struct cublasLtMatmulHeuristicResult_t {
	cublasLtMatmulAlgo_t algo;
	size_t workspaceSize;
	int state;
	float wavesCount;
	int reserved[4];
} cublasLtMatmulHeuristicResult_t;

#define HR__CUBLASLT_CALLS(X)                                                                                                                 \
	X(cublasLtCreate, int, (cublasLtHandle_t *))                                                                                              \
	X(cublasLtDestroy, int, (cublasLtHandle_t))                                                                                               \
	X(cublasLtGetVersion, size_t, (void))                                                                                                     \
	X(cublasLtGetStatusName, const char *, (int))                                                                                             \
	X(cublasLtMatmulDescCreate, int, (cublasLtMatmulDesc_t *, int, int))                                                                      \
	X(cublasLtMatmulDescDestroy, int, (cublasLtMatmulDesc_t))                                                                                 \
	X(cublasLtMatmulDescSetAttribute, int, (cublasLtMatmulDesc_t, int, const void *, size_t))                                                 \
	X(cublasLtMatrixLayoutCreate, int, (cublasLtMatrixLayout_t *, int, uint64_t, uint64_t, int64_t))                                          \
	X(cublasLtMatrixLayoutDestroy, int, (cublasLtMatrixLayout_t))                                                                             \
	X(cublasLtMatrixLayoutSetAttribute, int, (cublasLtMatrixLayout_t, int, const void *, size_t))                                             \
	X(cublasLtMatmulPreferenceCreate, int, (cublasLtMatmulPreference_t *))                                                                    \
	X(cublasLtMatmulPreferenceDestroy, int, (cublasLtMatmulPreference_t))                                                                     \
	X(cublasLtMatmulPreferenceSetAttribute, int, (cublasLtMatmulPreference_t, int, const void *, size_t))                                     \
	X(cublasLtMatmulAlgoGetHeuristic, int,                                                                                                    \
	  (cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, \
	   cublasLtMatmulPreference_t, int, cublasLtMatmulHeuristicResult_t *, int *))                                                            \
	X(cublasLtMatmul, int,                                                                                                                    \
	  (cublasLtHandle_t, cublasLtMatmulDesc_t, const void *, const void *, cublasLtMatrixLayout_t, const void *, cublasLtMatrixLayout_t,      \
	   const void *, const void *, cublasLtMatrixLayout_t, void *, cublasLtMatrixLayout_t, const cublasLtMatmulAlgo_t *, void *, size_t,      \
	   void *))

#define HR__CUBLASLT_NUMBERS(X)                             \
	X(CUBLAS_STATUS_SUCCESS, 0)                             \
	X(CUBLAS_STATUS_NOT_INITIALIZED, 1)                     \
	X(CUBLAS_STATUS_INVALID_VALUE, 7)                       \
	X(CUBLAS_STATUS_NOT_SUPPORTED, 15)                      \
	X(CUBLAS_COMPUTE_32F, 68)                               \
	X(CUBLAS_COMPUTE_32F_FAST_TF32, 77)                     \
	X(CUBLAS_COMPUTE_64F, 70)                               \
	X(CUDA_R_32F, 0)                                        \
	X(CUDA_R_64F, 1)                                        \
	X(CUDA_R_16BF, 14)                                      \
	X(CUBLAS_OP_N, 0)                                       \
	X(CUBLAS_OP_T, 1)                                       \
	X(CUBLASLT_MATMUL_DESC_TRANSA, 3)                       \
	X(CUBLASLT_MATMUL_DESC_TRANSB, 4)                       \
	X(CUBLASLT_MATMUL_DESC_EPILOGUE, 7)                     \
	X(CUBLASLT_MATMUL_DESC_BIAS_POINTER, 8)                 \
	X(CUBLASLT_EPILOGUE_BIAS, 4)                            \
	X(CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, 5)                \
	X(CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, 6)       \
	X(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, 1)          \
	X(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, 5)        \
	X(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, 6)        \
	X(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, 7)        \
	X(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, 8)

enum {
#define HR__LIBRARY_NUMBER(name, value) HR__##name = value,
	HR__NVRTC_NUMBERS(HR__LIBRARY_NUMBER)
	HR__CUBLASLT_NUMBERS(HR__LIBRARY_NUMBER)
#undef HR__LIBRARY_NUMBER
};

/* ---- finding them ---- */

#define HR__LIBRARY_MEMBER(name, result, parameters) result(*name) parameters;
typedef struct hr__nvrtc_calls {
	HR__NVRTC_CALLS(HR__LIBRARY_MEMBER)
} hr__nvrtc_calls;
typedef struct hr__cublaslt_calls {
	HR__CUBLASLT_CALLS(HR__LIBRARY_MEMBER)
} hr__cublaslt_calls;
#undef HR__LIBRARY_MEMBER

/* Load a library; NULL, and the reason in [why], if it is not found or lacks a function. Once loaded it stays. Call from one thread at a time. */
const hr__nvrtc_calls *hr__nvrtc_find(char *why, size_t capacity);
const hr__cublaslt_calls *hr__cublaslt_find(char *why, size_t capacity);

#endif
