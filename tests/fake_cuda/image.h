/* image.h - what the stand-in of NVRTC gives to the stand-in driver: a header, then a shared library for the host. */
#ifndef HR_TESTS_FAKE_CUDA_IMAGE_H
#define HR_TESTS_FAKE_CUDA_IMAGE_H

#include <stdint.h>

#define FAKE_IMAGE_MAGIC UINT64_C(0x454741494d495546)

typedef struct fake_image {
	uint64_t magic, bytes; /* of the library */
} fake_image;

#endif
