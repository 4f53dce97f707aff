/* kernels.h - kernels on the processors of a CUDA card, and calls of CUDA's libraries, for the layers above.
 *
 * A MODULE is a loaded program, in the card's context; a KERNEL is a function of it. Launches and calls of libraries are made inside of
 * hr__device_native, which makes the context current, gives the driver's stream, and counts the work as the stream's, so that stream order
 * protects memory as for copies.
 *
 * A CAPTURE records the work that a stream is given instead of doing it; the recorded GRAPH is launched as one. */
#ifndef HR_DEVICE_KERNELS_H
#define HR_DEVICE_KERNELS_H

#include "core/device/device.h"

typedef struct hr__module hr__module;
typedef struct hr__kernel hr__kernel;
typedef struct hr__native_graph hr__native_graph;

typedef struct hr__processors {
	int major, minor; /* compute capability */
	uint32_t count;   /* multiprocessors */
} hr__processors;

/* HR_UNSUPPORTED: it is not a CUDA card, or its driver is too old for kernels. */
HR__SHARED hr_status hr__device_processors(const hr__device *device, hr__processors *out);

/* Loads a program that is compiled for the card. */
HR__SHARED hr_status hr__module_load(const hr__device *device, const void *image, hr__module **out);
HR__SHARED void hr__module_unload(const hr__device *device, hr__module *module);
HR__SHARED hr_status hr__module_kernel(const hr__device *device, hr__module *module, const char *name, hr__kernel **out);

/* A stream as the driver identifies it, for launches and for calls of libraries (a CUstream). */
typedef struct hr__native {
	const hr__device *device;
	void *stream;
} hr__native;

/* Calls [call] in the card's context; what it queues is work of [stream]. It must not wait, or give work
 * to streams by other functions of Headroom than those below. */
HR__SHARED hr_status hr__device_native(hr__device *device, hr_stream stream, hr_status (*call)(const hr__native *native, void *argument), void *argument);

typedef struct hr__grid {
	uint32_t x, y, z;  /* blocks */
	uint32_t threads;  /* of a block */
	uint32_t shared;   /* bytes of memory of a block, beyond what the kernel declares */
} hr__grid;

/* [argument]: the kernel's only parameter, which is copied. [name] is for the message. */
HR__SHARED hr_status hr__kernel_launch(const hr__native *native, hr__kernel *kernel, const char *name, const hr__grid *grid, void *argument);

/* Fills device memory, and copies it within the device. 0 bytes are allowed. */
HR__SHARED hr_status hr__native_fill(const hr__native *native, void *at, uint8_t value, uint64_t bytes);
HR__SHARED hr_status hr__native_copy(const hr__native *native, void *to, const void *from, uint64_t bytes);

/* Records the work that this thread gives to [stream] from now on. Until the end nothing may wait for the stream. */
HR__SHARED hr_status hr__capture_begin(hr__device *device, hr_stream stream);
/* Ends the recording. *out is NULL, with a status, if something was queued that cannot be recorded. */
HR__SHARED hr_status hr__capture_end(hr__device *device, hr_stream stream, hr__native_graph **out);
HR__SHARED hr_status hr__native_graph_launch(const hr__native *native, hr__native_graph *graph);
HR__SHARED void hr__native_graph_destroy(const hr__device *device, hr__native_graph *graph);

#endif
