/* cards.c - see cards.h. Memory of these devices comes from the driver's calls of the program, so the backend has none to give. */
#include "cards.h"

#include <stdio.h>
#include <string.h>

#include "driver.h"
#include "headroom_backend.h"

typedef struct listed_card {
	CUdevice device;
	uint64_t total_bytes;
	uint64_t free_bytes; /* the last that a thread with a context saw; relaxed atomic */
} listed_card;

static listed_card listed[HR__CARDS_MAX];
static int listed_count; /* stored with release */

int hr__cards_search(CUdevice device)
{
	int count = __atomic_load_n(&listed_count, __ATOMIC_ACQUIRE);
	for (int i = 0; i < count; i++)
		if (listed[i].device == device) return i;
	return -1;
}

uint32_t hr__cards_count(void)
{
	return (uint32_t)__atomic_load_n(&listed_count, __ATOMIC_ACQUIRE);
}

bool hr__cards_get(int index, CUdevice *out)
{
	if (index >= __atomic_load_n(&listed_count, __ATOMIC_ACQUIRE)) return false;
	*out = listed[index].device;
	return true;
}

bool hr__cards_ask(CUdevice *device, CUcontext *context)
{
	if (!hr__driver.cuCtxGetCurrent || !hr__driver.cuCtxGetDevice) return false;
	if (hr__driver.cuCtxGetCurrent(context) != HR__CUDA_SUCCESS || !*context) return false;
	return hr__driver.cuCtxGetDevice(device) == HR__CUDA_SUCCESS;
}

/* The driver takes memory from the card of the stream, whatever context is current. */
bool hr__cards_of_stream(CUstream stream, CUdevice *device, CUcontext *context)
{
	CUcontext of, popped;
	bool is_default = !stream || stream == HR__LEGACY_STREAM || stream == HR__PER_THREAD_STREAM;
	if (is_default || __atomic_load_n(&listed_count, __ATOMIC_ACQUIRE) < 2) return true;
	if (!hr__driver.cuStreamGetCtx || !hr__driver.cuCtxPushCurrent_v2 || !hr__driver.cuCtxPopCurrent_v2) return true;
	if (hr__driver.cuStreamGetCtx(stream, &of) != HR__CUDA_SUCCESS) return false;
	if (of == *context) return true;
	if (hr__driver.cuCtxPushCurrent_v2(of) != HR__CUDA_SUCCESS) return false;
	*context = of;
	bool known = hr__driver.cuCtxGetDevice(device) == HR__CUDA_SUCCESS;
	hr__driver.cuCtxPopCurrent_v2(&popped);
	return known;
}

CUcontext hr__cards_primary(CUdevice device)
{
	unsigned int flags;
	int active = 0;
	CUcontext primary = NULL;
	if (!hr__driver.cuDevicePrimaryCtxGetState || !hr__driver.cuDevicePrimaryCtxRetain || !hr__driver.cuDevicePrimaryCtxRelease_v2) return NULL;
	if (hr__driver.cuDevicePrimaryCtxGetState(device, &flags, &active) != HR__CUDA_SUCCESS || !active) return NULL;
	/* The only call that returns the context adds a reference. The context is active, so nothing is created. */
	if (hr__driver.cuDevicePrimaryCtxRetain(&primary, device) != HR__CUDA_SUCCESS) return NULL;
	hr__driver.cuDevicePrimaryCtxRelease_v2(device);
	return primary;
}

bool hr__cards_exist(void)
{
	int count = 0;
	return hr__driver.cuDeviceGetCount && hr__driver.cuDeviceGetCount(&count) == HR__CUDA_SUCCESS && count > 0;
}

/* ---- the backend ---- */

/* Once, before the backend is registered: other threads read the list, and a call of the driver that fails later must not empty it. */
static int list_cards(void)
{
	int count = 0;
	if (!hr__driver.cuDeviceGetCount || !hr__driver.cuDeviceGet || hr__driver.cuDeviceGetCount(&count) != HR__CUDA_SUCCESS) count = 0;
	if (count > HR__CARDS_MAX) count = HR__CARDS_MAX;
	for (int i = 0; i < count; i++)
		if (hr__driver.cuDeviceGet(&listed[i].device, i) != HR__CUDA_SUCCESS) count = i;
	hr__now.only = listed[0].device;
	if (count == 1) hr__now.get_context = hr__driver.cuCtxGetCurrent;
	__atomic_store_n(&listed_count, count, __ATOMIC_RELEASE);
	return count;
}

static hr_status card_count(void *config, uint32_t *out)
{
	(void)config;
	*out = hr__cards_count();
	return HR_OK;
}

static hr_status card_open(void *config, uint32_t index, void **device, hr_backend_caps *caps)
{
	(void)config;
	size_t total = 0;
	listed_card *card = &listed[index];
	if (!hr__driver.cuDeviceTotalMem_v2 || hr__driver.cuDeviceTotalMem_v2(&total, card->device) != HR__CUDA_SUCCESS)
		return hr_backend_set_error(HR_DEVICE_ERROR, "cuDeviceTotalMem failed");
	memset(caps, 0, sizeof *caps);
	if (!hr__driver.cuDeviceGetName || hr__driver.cuDeviceGetName(caps->description, sizeof caps->description, card->device) != HR__CUDA_SUCCESS)
		snprintf(caps->description, sizeof caps->description, "CUDA device %u", index);
	card->total_bytes = total;
	__atomic_store_n(&card->free_bytes, total, __ATOMIC_RELAXED);
	caps->total_bytes = total;
	caps->map_alignment = 1;
	*device = card;
	return HR_OK;
}

static void card_close(void *device)
{
	(void)device;
}

/* cuMemGetInfo needs a context of the card. Threads without one, such as that which publishes statistics, get the last value. */
static hr_status card_memory_info(void *device, uint64_t *free_bytes, uint64_t *total_bytes)
{
	listed_card *card = device;
	CUcontext context;
	CUdevice current;
	size_t now, total;
	if (hr__cards_current(&current, &context) && current == card->device && hr__driver.cuMemGetInfo_v2 &&
	    hr__driver.cuMemGetInfo_v2(&now, &total) == HR__CUDA_SUCCESS)
		__atomic_store_n(&card->free_bytes, now, __ATOMIC_RELAXED);
	*free_bytes = __atomic_load_n(&card->free_bytes, __ATOMIC_RELAXED);
	*total_bytes = card->total_bytes;
	return HR_OK;
}

static hr_status no_memory(void)
{
	return hr_backend_set_error(HR_UNSUPPORTED, "a device of the type " HR__CARDS_TYPE " shows what a program has from the driver, and has no memory to give; use GPU:0");
}

static hr_status card_plain_alloc(void *device, uint64_t bytes, uint64_t *address)
{
	(void)device;
	(void)bytes;
	(void)address;
	return no_memory();
}

static hr_status card_plain_free(void *device, uint64_t address, uint64_t bytes)
{
	(void)device;
	(void)address;
	(void)bytes;
	return no_memory();
}

static hr_status card_copy(void *device, uint64_t to, uint64_t from, uint64_t bytes, hr_copy_kind kind, hr_native_stream stream)
{
	(void)device;
	(void)to;
	(void)from;
	(void)bytes;
	(void)kind;
	(void)stream;
	return no_memory();
}

static hr_status card_fill(void *device, uint64_t address, uint8_t value, uint64_t bytes, hr_native_stream stream)
{
	(void)device;
	(void)address;
	(void)value;
	(void)bytes;
	(void)stream;
	return no_memory();
}

hr_status hr__cards_register(bool *on_gpu)
{
	hr_backend table;
	hr_backend_init(&table);
	table.version = HR_BACKEND_VERSION;
	table.name = "cuda_program";
	table.type = HR__CARDS_TYPE;
	table.count = card_count;
	table.open = card_open;
	table.close = card_close;
	table.memory_info = card_memory_info;
	table.plain_alloc = card_plain_alloc;
	table.plain_free = card_plain_free;
	table.copy = card_copy;
	table.fill = card_fill;
	if (!list_cards()) return hr_backend_set_error(HR_NO_SUCH_DEVICE, "cuDeviceGetCount or cuDeviceGet failed");
	hr_status status = hr_backend_register(&table, NULL);
	*on_gpu = status == HR_IN_USE;
	return status == HR_IN_USE ? HR_OK : status;
}
