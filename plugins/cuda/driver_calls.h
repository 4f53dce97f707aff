/* driver_calls.h - the calls of the CUDA driver that libheadroom_cuda answers, and those that it makes itself, in its own declarations.
 *
 * Types and numbers that libheadroom uses too are in its cuda_driver.h. tools/check-cuda-declarations.sh compares both with a real cuda.h.
 *
 * A program obtains a driver function in one of three ways: by linking to its symbol, by dlsym with the symbol, or by cuGetProcAddress with the
 * name without suffixes, the CUDA version that the program was written for, and flags. The version selects among the signatures that a name has
 * had: [since] is the first version for which the name means this signature. The functions of CUDA 3.1 and older, with 32-bit sizes, are not
 * answered. */
#ifndef HR_PLUGIN_CUDA_DRIVER_CALLS_H
#define HR_PLUGIN_CUDA_DRIVER_CALLS_H

#include "core/device/backends/cuda_driver.h"

typedef struct CUmemPoolHandle_st *CUmemoryPool;
typedef struct CUkern_st *CUkernel;
typedef struct CUlib_st *CUlibrary;
typedef struct CUlaunchAttribute_st CUlaunchAttribute;
typedef struct CUgraphNode_st *CUgraphNode;
typedef struct CUgraphEdgeData_st CUgraphEdgeData;
typedef struct CUipcMemHandle_st CUipcMemHandle;
typedef int CUpointer_attribute;
typedef int CUmemPool_attribute;
typedef int CUdevice_P2PAttribute;
typedef int CUstreamCaptureStatus;

typedef struct CUlaunchConfig {
	unsigned int gridDimX, gridDimY, gridDimZ, blockDimX, blockDimY, blockDimZ, sharedMemBytes;
	CUstream hStream;
	CUlaunchAttribute *attrs;
	unsigned int numAttrs;
} CUlaunchConfig;

typedef struct CUmemPoolProps {
	int allocType;
	int handleTypes; /* how other processes may import it; 0 = not at all */
	CUmemLocation location;
	void *win32SecurityAttributes;
	size_t maxSize; /* 0 = none */
	unsigned short usage;
	unsigned char reserved[54]; /* later versions have fields here */
} CUmemPoolProps;

/* ---- symbol, name, first version of the signature, parameters ---- */

/* Without a stream: the same function whatever the flags say. */
#define HR__ANSWERED_PLAIN(X)                                                                                                                         \
	X(cuMemAlloc_v2, cuMemAlloc, 3020, (CUdeviceptr *, size_t))                                                                                       \
	X(cuMemAllocPitch_v2, cuMemAllocPitch, 3020, (CUdeviceptr *, size_t *, size_t, size_t, unsigned int))                                             \
	X(cuMemFree_v2, cuMemFree, 3020, (CUdeviceptr))                                                                                                   \
	X(cuMemAllocManaged, cuMemAllocManaged, 6000, (CUdeviceptr *, size_t, unsigned int))                                                              \
	X(cuMemAllocHost_v2, cuMemAllocHost, 3020, (void **, size_t))                                                                                     \
	X(cuMemHostAlloc, cuMemHostAlloc, 2020, (void **, size_t, unsigned int))                                                                          \
	X(cuMemFreeHost, cuMemFreeHost, 2000, (void *))                                                                                                   \
	X(cuMemCreate, cuMemCreate, 10020, (CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *, unsigned long long))                     \
	X(cuMemRelease, cuMemRelease, 10020, (CUmemGenericAllocationHandle))                                                                              \
	X(cuMemRetainAllocationHandle, cuMemRetainAllocationHandle, 11000, (CUmemGenericAllocationHandle *, void *))                                      \
	X(cuMemMap, cuMemMap, 10020, (CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long))                                     \
	X(cuMemUnmap, cuMemUnmap, 10020, (CUdeviceptr, size_t))                                                                                           \
	X(cuMemGetInfo_v2, cuMemGetInfo, 3020, (size_t *, size_t *))                                                                                      \
	X(cuDeviceTotalMem_v2, cuDeviceTotalMem, 3020, (size_t *, CUdevice))                                                                              \
	X(cuMemGetAddressRange_v2, cuMemGetAddressRange, 3020, (CUdeviceptr *, size_t *, CUdeviceptr))                                                    \
	X(cuPointerGetAttribute, cuPointerGetAttribute, 4000, (void *, CUpointer_attribute, CUdeviceptr))                                                 \
	X(cuPointerGetAttributes, cuPointerGetAttributes, 7000, (unsigned int, CUpointer_attribute *, void **, CUdeviceptr))                              \
	X(cuStreamDestroy_v2, cuStreamDestroy, 4000, (CUstream))                                                                                          \
	X(cuModuleUnload, cuModuleUnload, 2000, (CUmodule))                                                                                               \
	X(cuLibraryUnload, cuLibraryUnload, 12000, (CUlibrary))                                                                                           \
	X(cuCtxDestroy_v2, cuCtxDestroy, 4000, (CUcontext))                                                                                               \
	X(cuDevicePrimaryCtxRelease_v2, cuDevicePrimaryCtxRelease, 11000, (CUdevice))                                                                     \
	X(cuDevicePrimaryCtxReset_v2, cuDevicePrimaryCtxReset, 11000, (CUdevice))                                                                         \
	X(cuIpcGetMemHandle, cuIpcGetMemHandle, 4010, (CUipcMemHandle *, CUdeviceptr))                                                                    \
	X(cuDeviceCanAccessPeer, cuDeviceCanAccessPeer, 4000, (int *, CUdevice, CUdevice))                                                                \
	X(cuDeviceGetP2PAttribute, cuDeviceGetP2PAttribute, 8000, (int *, CUdevice_P2PAttribute, CUdevice, CUdevice))                                     \
	X(cuCtxEnablePeerAccess, cuCtxEnablePeerAccess, 4000, (CUcontext, unsigned int))                                                                  \
	X(cuMemPoolCreate, cuMemPoolCreate, 11020, (CUmemoryPool *, const CUmemPoolProps *))                                                              \
	X(cuMemPoolDestroy, cuMemPoolDestroy, 11020, (CUmemoryPool))                                                                                      \
	X(cuMemPoolSetAccess, cuMemPoolSetAccess, 11020, (CUmemoryPool, const CUmemAccessDesc *, size_t))                                                 \
	X(cuMemPoolGetAttribute, cuMemPoolGetAttribute, 11020, (CUmemoryPool, CUmemPool_attribute, void *))                                               \
	X(cuMemPoolSetAttribute, cuMemPoolSetAttribute, 11020, (CUmemoryPool, CUmemPool_attribute, void *))                                               \
	X(cuMemPoolTrimTo, cuMemPoolTrimTo, 11020, (CUmemoryPool, size_t))

/* With a stream: the symbol with _ptsz is the variant in which stream 0 is the thread's own default stream. That of cuGetProcAddress finds such variants
 * where the flags leave it open. */
#define HR__ANSWERED_STREAM(X) HR__ANSWERED_ASYNC(X) HR__ANSWERED_LAUNCHES(X) HR__ANSWERED_SEARCHES(X) HR__ANSWERED_CAPTURES(X)

#define HR__ANSWERED_SEARCHES(X)                                                                   \
	X(cuGetProcAddress, cuGetProcAddress, 11030, (const char *, void **, int, unsigned long long)) \
	X(cuGetProcAddress_v2, cuGetProcAddress, 12000, (const char *, void **, int, unsigned long long, int *))

#define HR__ANSWERED_CAPTURES(X)                                                                    \
	X(cuStreamBeginCapture_v2, cuStreamBeginCapture, 10010, (CUstream, CUstreamCaptureMode))        \
	X(cuStreamBeginCaptureToGraph, cuStreamBeginCaptureToGraph, 12030,                              \
	  (CUstream, CUgraph, const CUgraphNode *, const CUgraphEdgeData *, size_t, CUstreamCaptureMode)) \
	X(cuStreamEndCapture, cuStreamEndCapture, 10000, (CUstream, CUgraph *))

#define HR__ANSWERED_ASYNC(X)                                                                               \
	X(cuMemAllocAsync, cuMemAllocAsync, 11020, (CUdeviceptr *, size_t, CUstream))                           \
	X(cuMemAllocFromPoolAsync, cuMemAllocFromPoolAsync, 11020, (CUdeviceptr *, size_t, CUmemoryPool, CUstream)) \
	X(cuMemFreeAsync, cuMemFreeAsync, 11020, (CUdeviceptr, CUstream))

#define HR__ANSWERED_LAUNCHES(X)                                                                                                                           \
	X(cuLaunchKernel, cuLaunchKernel, 4000,                                                                                                                \
	  (CUfunction, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int, CUstream, void **, void **))          \
	X(cuLaunchKernelEx, cuLaunchKernelEx, 11060, (const CUlaunchConfig *, CUfunction, void **, void **))                                                   \
	X(cuLaunchCooperativeKernel, cuLaunchCooperativeKernel, 9000,                                                                                          \
	  (CUfunction, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int, CUstream, void **))

/* ---- symbol, parameters: calls that are made but not answered ---- */

#define HR__MADE_CALLS(X)                                         \
	X(cuDeviceGetCount, (int *))                                  \
	X(cuDeviceGet, (CUdevice *, int))                             \
	X(cuDeviceGetName, (char *, int, CUdevice))                   \
	X(cuCtxGetCurrent, (CUcontext *))                             \
	X(cuCtxGetDevice, (CUdevice *))                               \
	X(cuCtxPushCurrent_v2, (CUcontext))                           \
	X(cuCtxPopCurrent_v2, (CUcontext *))                          \
	X(cuCtxSynchronize, (void))                                   \
	X(cuStreamIsCapturing, (CUstream, CUstreamCaptureStatus *))   \
	X(cuStreamGetCtx, (CUstream, CUcontext *))                    \
	X(cuStreamSynchronize, (CUstream))                            \
	X(cuDeviceGetMemPool, (CUmemoryPool *, CUdevice))             \
	X(cuDeviceGetDefaultMemPool, (CUmemoryPool *, CUdevice))      \
	X(cuEventCreate, (CUevent *, unsigned int))                   \
	X(cuEventDestroy_v2, (CUevent))                               \
	X(cuEventRecord, (CUevent, CUstream))                         \
	X(cuEventQuery, (CUevent))                                    \
	X(cuEventElapsedTime, (float *, CUevent, CUevent))            \
	X(cuFuncGetName, (const char **, CUfunction))                 \
	X(cuKernelGetName, (const char **, CUkernel))                 \
	X(cuFuncGetParamInfo, (CUfunction, size_t, size_t *, size_t *)) \
	X(cuKernelGetParamInfo, (CUkernel, size_t, size_t *, size_t *)) \
	X(cuDevicePrimaryCtxGetState, (CUdevice, unsigned int *, int *)) \
	X(cuDevicePrimaryCtxRetain, (CUcontext *, CUdevice))

/* ---- numbers: CUDA's name, value; here HR__<name> ---- */

#define HR__PROGRAM_NUMBERS(X)                          \
	X(CU_GET_PROC_ADDRESS_DEFAULT, 0)                   \
	X(CU_GET_PROC_ADDRESS_LEGACY_STREAM, 1)             \
	X(CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, 2) \
	X(CU_POINTER_ATTRIBUTE_CONTEXT, 1)                  \
	X(CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, 11)        \
	X(CU_POINTER_ATTRIBUTE_RANGE_SIZE, 12)              \
	X(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, 5)          \
	X(CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, 6)             \
	X(CU_MEMPOOL_ATTR_USED_MEM_CURRENT, 7)              \
	X(CU_MEMPOOL_ATTR_USED_MEM_HIGH, 8)                 \
	X(CU_MEM_ALLOCATION_TYPE_MANAGED, 2)                \
	X(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, 217)          \
	X(CU_STREAM_CAPTURE_STATUS_NONE, 0)                 \
	X(CU_STREAM_CAPTURE_STATUS_ACTIVE, 1)               \
	X(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, 900)       \
	X(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, 901)

enum {
#define HR__PROGRAM_NUMBER(name, value) HR__##name = value,
	HR__PROGRAM_NUMBERS(HR__PROGRAM_NUMBER)
#undef HR__PROGRAM_NUMBER
};

/* Handles of the two default streams. */
#define HR__LEGACY_STREAM ((CUstream)1)
#define HR__PER_THREAD_STREAM ((CUstream)2)

/* ---- prototypes ---- */

#define HR__EXPORT __attribute__((visibility("default")))

#define HR__PROTOTYPE(symbol, name, since, parameters) HR__EXPORT CUresult symbol parameters;
#define HR__PROTOTYPES(symbol, name, since, parameters) HR__EXPORT CUresult symbol parameters; HR__EXPORT CUresult symbol##_ptsz parameters;

#endif
