/* support_streams.h - a device by name, and the work, waits and times of its streams. */
#ifndef HR_TESTS_SUPPORT_STREAMS_H
#define HR_TESTS_SUPPORT_STREAMS_H

#include "core/device/internal.h"
#include "fixture.h"
#include "test.h"

#define MS UINT64_C(1000000)
#define BIT(stream) (UINT64_C(1) << (stream))

static hr_device handle;
static hr__device *device;

static void use(const char *name)
{
	CHECK_STATUS(HR_OK, hr_device_find(name, &handle));
	CHECK_STATUS(HR_OK, hr__device_named(name, &device));
}

static hr_stream new_stream(void)
{
	return fixture_stream(handle);
}

static hr_native_stream native_of(hr_stream stream)
{
	hr_native_stream native;
	CHECK_STATUS(HR_OK, hr__stream_native(device, stream, &native));
	return native;
}

static void compute(hr_stream stream, uint64_t ns)
{
	CHECK_STATUS(HR_OK, hr__call_compute(device->physical, ns, native_of(stream)));
}

static int64_t waits_for(hr_stream stream, uint64_t mask, uint64_t epoch)
{
	int64_t waits = 0;
	CHECK_STATUS(HR_OK, hr__device_order(device, stream, mask, epoch, &waits));
	return waits;
}

#endif
