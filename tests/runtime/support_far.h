/* support_far.h - an emulated device that, like a card, reports that the host cannot access its memory. "FAR:0". */
#ifndef HR_TESTS_SUPPORT_FAR_H
#define HR_TESTS_SUPPORT_FAR_H

#include "core/device/device.h"
#include "headroom_backend.h"
#include "test.h"

static hr_status far_open(void *config, uint32_t index, void **out, hr_backend_caps *caps)
{
	hr_status status = hr__backend_emulated.open(config, index, out, caps);
	caps->host_accessible = false;
	return status;
}

/* With little pinned memory: the default of 64 MiB at a time is slow to pin. */
static void far_add(void)
{
	static hr_emulated_options config;
	static hr_backend far;
	hr_device device;
	hr__device *pinned;
	hr_status status;
	CHECK_STATUS(HR_OK, hr_emulated_options_init(&config));
	far = hr__backend_emulated;
	far.name = "far";
	far.type = "FAR";
	far.open = far_open;
	CHECK_STATUS(HR_OK, hr_backend_register(&far, &config));
	CHECK_STATUS(HR_OK, hr_device_find("FAR:0", &device));
	CHECK_STATUS(HR_OK, hr__device_pinned(hr__device_of(device, &status), 8 << 20, &pinned));
}

#endif
