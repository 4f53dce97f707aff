/* gpu_driver.h - direct calls of the CUDA driver, the reference for the library's own calls.
 *
 * Loaded at run time, so that the benchmark compiles anywhere; without a driver or GPU, driver.here is false. It does not use the
 * table of the library's backend (src/core/device): a reference that shared code with what it measures would hide its cost. */
#ifndef HR_BENCH_GPU_DRIVER_H
#define HR_BENCH_GPU_DRIVER_H

#include <dlfcn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

typedef uint64_t cu_address;
typedef uint64_t cu_handle; /* physical memory */
typedef void *cu_stream, *cu_context, *cu_pool;

/* Numbers from cuda.h. */
enum { CU_PINNED = 1, CU_ON_DEVICE = 1, CU_READ_WRITE = 3, CU_POOL_RELEASE_THRESHOLD = 4, CU_STREAM_NON_BLOCKING = 1 };

typedef struct cu_location {
	int type, id;
} cu_location;

typedef struct cu_properties { /* CUmemAllocationProp */
	int type, handle_types;
	cu_location location;
	void *windows_only;
	unsigned char compression, rdma;
	unsigned short usage;
	unsigned char reserved[4];
} cu_properties;

typedef struct cu_access { /* CUmemAccessDesc */
	cu_location location;
	int flags;
} cu_access;

/* name in the library, name here, arguments */
#define DRIVER_TABLE(X)                                                                             \
	X(cuInit, init, (unsigned))                                                                     \
	X(cuDeviceGet, device_get, (int *, int))                                                        \
	X(cuDeviceGetName, device_name, (char *, int, int))                                             \
	X(cuDriverGetVersion, version, (int *))                                                         \
	X(cuDevicePrimaryCtxRetain, context_retain, (cu_context *, int))                                \
	X(cuCtxSetCurrent, context_set, (cu_context))                                                   \
	X(cuMemAlloc_v2, alloc, (cu_address *, size_t))                                                 \
	X(cuMemFree_v2, free, (cu_address))                                                             \
	X(cuMemAllocAsync, alloc_async, (cu_address *, size_t, cu_stream))                              \
	X(cuMemFreeAsync, free_async, (cu_address, cu_stream))                                          \
	X(cuDeviceGetDefaultMemPool, default_pool, (cu_pool *, int))                                    \
	X(cuMemPoolSetAttribute, pool_set, (cu_pool, int, void *))                                      \
	X(cuMemPoolTrimTo, pool_trim, (cu_pool, size_t))                                                \
	X(cuStreamCreate, stream_create, (cu_stream *, unsigned))                                       \
	X(cuStreamDestroy_v2, stream_destroy, (cu_stream))                                              \
	X(cuStreamSynchronize, stream_wait, (cu_stream))                                                \
	X(cuMemHostAlloc, host_alloc, (void **, size_t, unsigned))                                      \
	X(cuMemFreeHost, host_free, (void *))                                                           \
	X(cuMemcpyHtoDAsync_v2, copy_to_device, (cu_address, const void *, size_t, cu_stream))          \
	X(cuMemcpyDtoHAsync_v2, copy_to_host, (void *, cu_address, size_t, cu_stream))                  \
	X(cuMemCreate, page_create, (cu_handle *, size_t, const cu_properties *, unsigned long long))   \
	X(cuMemRelease, page_release, (cu_handle))                                                      \
	X(cuMemAddressReserve, reserve, (cu_address *, size_t, size_t, cu_address, unsigned long long)) \
	X(cuMemAddressFree, unreserve, (cu_address, size_t))                                            \
	X(cuMemMap, map, (cu_address, size_t, size_t, cu_handle, unsigned long long))                   \
	X(cuMemSetAccess, set_access, (cu_address, size_t, const cu_access *, size_t))                  \
	X(cuMemUnmap, unmap, (cu_address, size_t))

static struct {
	bool here;
	int device;
	char name[96];
	int version_number; /* 13000 = CUDA 13.0 */
	cu_context context;
#define DRIVER_FIELD(symbol, field, arguments) int(*field) arguments;
	DRIVER_TABLE(DRIVER_FIELD)
#undef DRIVER_FIELD
} driver;

static void driver_must(int result, const char *what)
{
	if (result == 0) return;
	fprintf(stderr, "%s: error %d of the CUDA driver\n", what, result);
	exit(1);
}
#define DRIVER(call) driver_must(driver.call, #call)

/* Makes the driver usable from the calling thread, on the first GPU. Sets driver.here. */
static void driver_open(void)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	if (!library) return;
#define DRIVER_LOAD(symbol, field, arguments)          \
	*(void **)&driver.field = dlsym(library, #symbol); \
	if (!driver.field) return;
	DRIVER_TABLE(DRIVER_LOAD)
#undef DRIVER_LOAD
	if (driver.init(0) != 0 || driver.device_get(&driver.device, 0) != 0) return;
	DRIVER(device_name(driver.name, (int)sizeof driver.name, driver.device));
	DRIVER(version(&driver.version_number));
	DRIVER(context_retain(&driver.context, driver.device));
	DRIVER(context_set(driver.context));
	driver.here = true;
}

#endif
