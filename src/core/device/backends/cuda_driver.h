/* cuda_driver.h - the part of the CUDA driver's interface that Headroom uses, in its own declarations.
 *
 * Building Headroom needs no CUDA files. The functions are looked up at run time by the names below, which are the driver's symbol
 * names, with "_v2" where an interface changed. The exception is cuEventElapsedTime, whose first version reports when an event has
 * not happened yet and is in all drivers. All are the versions in which stream 0 is the legacy default stream. Types have CUDA's
 * names, so that the same table serves this backend, the fake driver of the tests (tests/fake_cuda) and
 * tools/check-cuda-declarations.sh, which compares all of this with a real cuda.h where there is one. */
#ifndef HR_DEVICE_CUDA_DRIVER_H
#define HR_DEVICE_CUDA_DRIVER_H

#include <stddef.h>
#include <stdint.h>

/* ---- types ---- */

typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef unsigned long long CUmemGenericAllocationHandle;
typedef struct CUctx_st *CUcontext;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;
typedef struct CUgraph_st *CUgraph;
typedef struct CUgraphExec_st *CUgraphExec;
typedef void (*CUhostFn)(void *argument);
typedef int CUstreamCaptureMode;
typedef int CUdevice_attribute;
typedef int CUmemAllocationGranularity_flags;

typedef struct CUmemLocation {
	int type;
	int id; /* of the device */
} CUmemLocation;

typedef struct CUmemAllocationProp {
	int type;
	int requestedHandleTypes; /* how other processes may import it; 0 = not at all */
	CUmemLocation location;
	void *win32HandleMetaData;
	struct {
		unsigned char compressionType;
		unsigned char gpuDirectRDMACapable;
		unsigned short usage;
		unsigned char reserved[4];
	} allocFlags;
} CUmemAllocationProp;

typedef struct CUmemAccessDesc {
	CUmemLocation location;
	int flags;
} CUmemAccessDesc;

/* ---- numbers: CUDA's name, value; here HR__<name> ---- */

#define HR__CUDA_NUMBERS(X)                                                   \
	X(CUDA_SUCCESS, 0)                                                        \
	X(CUDA_ERROR_INVALID_VALUE, 1)                                            \
	X(CUDA_ERROR_OUT_OF_MEMORY, 2)                                            \
	X(CUDA_ERROR_NOT_INITIALIZED, 3)                                          \
	X(CUDA_ERROR_NO_DEVICE, 100)                                              \
	X(CUDA_ERROR_INVALID_DEVICE, 101)                                         \
	X(CUDA_ERROR_INVALID_CONTEXT, 201)                                        \
	X(CUDA_ERROR_NO_BINARY_FOR_GPU, 209)                                      \
	X(CUDA_ERROR_INVALID_HANDLE, 400)                                         \
	X(CUDA_ERROR_NOT_FOUND, 500)                                              \
	X(CUDA_ERROR_NOT_READY, 600)                                              \
	X(CUDA_ERROR_ILLEGAL_ADDRESS, 700)                                        \
	X(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, 712)                         \
	X(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, 713)                             \
	X(CUDA_ERROR_NOT_SUPPORTED, 801)                                          \
	X(CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, 803)                                 \
	X(CUDA_ERROR_UNKNOWN, 999)                                                \
	X(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 16)                           \
	X(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 75)                       \
	X(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 76)                       \
	X(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 102)           \
	X(CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, 134)                                  \
	X(CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 141) \
	X(CU_MEM_ALLOCATION_TYPE_PINNED, 1)                                       \
	X(CU_MEM_HANDLE_TYPE_NONE, 0)                                             \
	X(CU_MEM_LOCATION_TYPE_DEVICE, 1)                                         \
	X(CU_MEM_LOCATION_TYPE_HOST_NUMA, 3)                                      \
	X(CU_MEM_ACCESS_FLAGS_PROT_READWRITE, 3)                                  \
	X(CU_MEM_ALLOC_GRANULARITY_MINIMUM, 0)                                    \
	X(CU_MEMHOSTREGISTER_PORTABLE, 1)                                         \
	X(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, 1)                                 \
	X(CU_STREAM_NON_BLOCKING, 1)                                              \
	X(CU_EVENT_DEFAULT, 0)                                                    \
	X(CU_EVENT_DISABLE_TIMING, 2)

enum {
#define HR__CUDA_NUMBER(name, value) HR__##name = value,
	HR__CUDA_NUMBERS(HR__CUDA_NUMBER)
#undef HR__CUDA_NUMBER
};

/* ---- calls: symbol, parameters. All of them return CUresult. ---- */

#define HR__CUDA_CALLS(X)                                                                                       \
	X(cuGetErrorName, (CUresult, const char **))                                                                \
	X(cuGetErrorString, (CUresult, const char **))                                                              \
	X(cuInit, (unsigned int))                                                                                   \
	X(cuDeviceGetCount, (int *))                                                                                \
	X(cuDeviceGet, (CUdevice *, int))                                                                           \
	X(cuDeviceGetName, (char *, int, CUdevice))                                                                 \
	X(cuDeviceGetAttribute, (int *, CUdevice_attribute, CUdevice))                                              \
	X(cuDevicePrimaryCtxRetain, (CUcontext *, CUdevice))                                                        \
	X(cuDevicePrimaryCtxRelease_v2, (CUdevice))                                                                 \
	X(cuCtxGetCurrent, (CUcontext *))                                                                           \
	X(cuCtxPushCurrent_v2, (CUcontext))                                                                         \
	X(cuCtxPopCurrent_v2, (CUcontext *))                                                                        \
	X(cuMemGetInfo_v2, (size_t *, size_t *))                                                                    \
	X(cuMemGetAllocationGranularity, (size_t *, const CUmemAllocationProp *, CUmemAllocationGranularity_flags)) \
	X(cuMemAddressReserve, (CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long))                    \
	X(cuMemAddressFree, (CUdeviceptr, size_t))                                                                  \
	X(cuMemCreate, (CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *, unsigned long long))   \
	X(cuMemRelease, (CUmemGenericAllocationHandle))                                                             \
	X(cuMemMap, (CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long))                \
	X(cuMemUnmap, (CUdeviceptr, size_t))                                                                        \
	X(cuMemSetAccess, (CUdeviceptr, size_t, const CUmemAccessDesc *, size_t))                                   \
	X(cuMemAlloc_v2, (CUdeviceptr *, size_t))                                                                   \
	X(cuMemFree_v2, (CUdeviceptr))                                                                              \
	X(cuMemHostRegister_v2, (void *, size_t, unsigned int))                                                     \
	X(cuMemHostUnregister, (void *))                                                                            \
	X(cuStreamCreate, (CUstream *, unsigned int))                                                               \
	X(cuStreamDestroy_v2, (CUstream))                                                                           \
	X(cuStreamSynchronize, (CUstream))                                                                          \
	X(cuStreamWaitEvent, (CUstream, CUevent, unsigned int))                                                     \
	X(cuEventCreate, (CUevent *, unsigned int))                                                                 \
	X(cuEventDestroy_v2, (CUevent))                                                                             \
	X(cuEventRecord, (CUevent, CUstream))                                                                       \
	X(cuEventQuery, (CUevent))                                                                                  \
	X(cuEventSynchronize, (CUevent))                                                                            \
	X(cuEventElapsedTime, (float *, CUevent, CUevent))                                                          \
	X(cuMemcpyHtoDAsync_v2, (CUdeviceptr, const void *, size_t, CUstream))                                      \
	X(cuMemcpyDtoHAsync_v2, (void *, CUdeviceptr, size_t, CUstream))                                            \
	X(cuMemcpyDtoDAsync_v2, (CUdeviceptr, CUdeviceptr, size_t, CUstream))                                       \
	X(cuMemsetD8Async, (CUdeviceptr, unsigned char, size_t, CUstream))                                          \
	X(cuLaunchHostFunc, (CUstream, CUhostFn, void *))

/* For kernels, and for graphs of them. Without one of these there are devices, but no kernels. */
#define HR__CUDA_KERNEL_CALLS(X)                                                                                                                        \
	X(cuModuleLoadData, (CUmodule *, const void *))                                                                                                     \
	X(cuModuleUnload, (CUmodule))                                                                                                                       \
	X(cuModuleGetFunction, (CUfunction *, CUmodule, const char *))                                                                                      \
	X(cuLaunchKernel,                                                                                                                                   \
	  (CUfunction, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int, CUstream, void **, void **))       \
	X(cuStreamBeginCapture_v2, (CUstream, CUstreamCaptureMode))                                                                                         \
	X(cuStreamEndCapture, (CUstream, CUgraph *))                                                                                                        \
	X(cuGraphInstantiateWithFlags, (CUgraphExec *, CUgraph, unsigned long long))                                                                        \
	X(cuGraphLaunch, (CUgraphExec, CUstream))                                                                                                           \
	X(cuGraphExecDestroy, (CUgraphExec))                                                                                                                \
	X(cuGraphDestroy, (CUgraph))

#endif
