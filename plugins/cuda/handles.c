/* handles.c - physical memory (cuMemCreate), which has a handle and no address of its own.
 *
 * A handle's memory is free when it has been released as often as it was created or retained, and is not mapped. Until then it is one block in the
 * ledger, at an address made up for it: made-up addresses are above all that a process can have, increase, and are never used again.
 *
 * One lock is held during the driver's calls, since the driver uses the numbers of released handles again. The calls take tens of microseconds. */
#include <pthread.h>
#include <stdlib.h>

#include "names.h"
#include "record.h"

HR__ANSWERED_PLAIN(HR__PROTOTYPE)
HR__ANSWERED_STREAM(HR__PROTOTYPES)

#define FIRST_MADE_UP (UINT64_C(1) << 57)
#define ALIGNMENT (UINT64_C(1) << 21)
#define BUCKETS 4096u /* a power of two */

typedef struct physical_handle {
	CUmemGenericAllocationHandle handle;
	uint64_t address; /* made up */
	unsigned references, mappings;
	struct physical_handle *next;
} physical_handle;

typedef struct handle_mapping {
	CUdeviceptr address;
	size_t bytes;
	physical_handle *of;
	struct handle_mapping *next;
} handle_mapping;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static physical_handle *handles[BUCKETS];
static handle_mapping *mappings[BUCKETS];
static uint64_t next_made_up = FIRST_MADE_UP;

static unsigned bucket_of(uint64_t key)
{
	return (unsigned)(key * UINT64_C(0x9E3779B97F4A7C15) >> 52) & (BUCKETS - 1);
}

/* A handle that was released, but is still mapped, is not found: the driver may use its number again. */
static physical_handle *find_handle(CUmemGenericAllocationHandle handle)
{
	physical_handle *at = handles[bucket_of(handle)];
	while (at && (at->handle != handle || !at->references)) at = at->next;
	return at;
}

static handle_mapping **find_mapping(CUdeviceptr address)
{
	handle_mapping **link = &mappings[bucket_of(address)];
	while (*link && (*link)->address != address) link = &(*link)->next;
	return link;
}

/* The first address from [address] on at which a known mapping begins; UINT64_MAX if there is none. */
static CUdeviceptr next_mapped(CUdeviceptr address)
{
	CUdeviceptr next = UINT64_MAX;
	for (unsigned i = 0; i < BUCKETS; i++)
		for (const handle_mapping *at = mappings[i]; at; at = at->next)
			if (at->address >= address && at->address < next) next = at->address;
	return next;
}

/* The driver has the memory already. */
static void end_block(uint64_t address)
{
	(void)HR__LEDGER_FREE(HR__LEDGER_DEVICE, address, HR__CUDA_SUCCESS);
}

static void link_handle(physical_handle *added)
{
	physical_handle **bucket = &handles[bucket_of(added->handle)];
	added->next = *bucket;
	*bucket = added;
}

static void unlink_handle(physical_handle *removed)
{
	physical_handle **link = &handles[bucket_of(removed->handle)];
	while (*link != removed) link = &(*link)->next;
	*link = removed->next;
}

/* Ends the block of a handle that nothing refers to. */
static void end_if_unused(physical_handle *ended)
{
	if (ended->references || ended->mappings) return;
	unlink_handle(ended);
	end_block(ended->address);
	free(ended);
}

static bool is_on_card(const CUmemAllocationProp *of)
{
	return of->location.type == HR__CU_MEM_LOCATION_TYPE_DEVICE;
}

/* The driver's call, and the record of the handle; without host memory for that the handle is not in the ledger. */
static CUresult create(hr__ledger_request *request, CUmemGenericAllocationHandle *out, const CUmemAllocationProp *of, unsigned long long flags,
                       uint64_t *address)
{
	CUresult result = HR__REAL(cuMemCreate, out, request->bytes, of, flags);
	if (result != HR__CUDA_SUCCESS) return result;
	*address = next_made_up;
	next_made_up += (request->bytes + ALIGNMENT - 1) & ~(ALIGNMENT - 1);
	return result;
}

static void add_handle(CUmemGenericAllocationHandle handle, uint64_t address)
{
	physical_handle *added = malloc(sizeof *added);
	if (!added) {
		end_block(address); /* its end would not be seen */
		hr__ledger_say_unrecorded("out of memory");
		return;
	}
	*added = (physical_handle){ .handle = handle, .address = address, .references = 1 };
	link_handle(added);
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *out, size_t bytes, const CUmemAllocationProp *of, unsigned long long flags)
{
	CUmemGenericAllocationHandle handle = 0;
	uint64_t address = 0;
	hr__ledger_request request = { .kind = HR__LEDGER_DEVICE, .bytes = bytes, .call = HR__CALL_cuMemCreate };
	if (!out || !of || !hr__ledger_is_on()) return HR__REAL(cuMemCreate, out, bytes, of, flags);
	request.kind = is_on_card(of) ? HR__LEDGER_DEVICE : HR__LEDGER_HOST;
	request.device = of->location.id;
	request.has_scope = true;
	request.scope = hr__names_scope(); /* without the lock: Python code may run, which releases memory */
	pthread_mutex_lock(&lock);
	CUresult result = HR__RECORD_TAKE(&request, address, create(&request, &handle, of, flags, &address), HR__REAL(cuMemRelease, handle));
	if (result == HR__CUDA_SUCCESS) {
		*out = handle;
		add_handle(handle, address);
	}
	pthread_mutex_unlock(&lock);
	return result;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
	if (!hr__ledger_is_on()) return HR__REAL(cuMemRelease, handle);
	pthread_mutex_lock(&lock);
	CUresult result = HR__REAL(cuMemRelease, handle);
	physical_handle *released = result == HR__CUDA_SUCCESS ? find_handle(handle) : NULL;
	if (released) {
		released->references--;
		end_if_unused(released);
	}
	pthread_mutex_unlock(&lock);
	return result;
}

/* Rare, so the mapping that contains [address] is not looked up by a hash. */
static physical_handle *mapped_at(CUdeviceptr address)
{
	for (unsigned i = 0; i < BUCKETS; i++)
		for (const handle_mapping *at = mappings[i]; at; at = at->next)
			if (address >= at->address && address - at->address < at->bytes) return at->of;
	return NULL;
}

/* Memory whose handle was released gets a handle again, perhaps of another number. */
static void retain(physical_handle *retained, CUmemGenericAllocationHandle handle)
{
	unlink_handle(retained);
	retained->handle = handle;
	retained->references++;
	link_handle(retained);
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *out, void *address)
{
	if (!out || !hr__ledger_is_on()) return HR__REAL(cuMemRetainAllocationHandle, out, address);
	pthread_mutex_lock(&lock);
	CUresult result = HR__REAL(cuMemRetainAllocationHandle, out, address);
	physical_handle *retained = result == HR__CUDA_SUCCESS ? mapped_at((CUdeviceptr)(uintptr_t)address) : NULL;
	if (retained) retain(retained, *out);
	pthread_mutex_unlock(&lock);
	return result;
}

CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long flags)
{
	if (!hr__ledger_is_on()) return HR__REAL(cuMemMap, address, bytes, offset, handle, flags);
	pthread_mutex_lock(&lock);
	CUresult result = HR__REAL(cuMemMap, address, bytes, offset, handle, flags);
	physical_handle *mapped = result == HR__CUDA_SUCCESS ? find_handle(handle) : NULL;
	handle_mapping *added = mapped ? malloc(sizeof *added) : NULL;
	if (added) {
		handle_mapping **bucket = &mappings[bucket_of(address)];
		*added = (handle_mapping){ address, bytes, mapped, *bucket };
		*bucket = added;
		mapped->mappings++;
	}
	pthread_mutex_unlock(&lock);
	return result;
}

/* One call can unmap a run of mappings. Those of handles that are not known here, such as imported ones, are passed over. */
static void forget_mappings(CUdeviceptr address, size_t bytes)
{
	CUdeviceptr end = address + bytes;
	while (address < end) {
		handle_mapping **link = find_mapping(address), *ended = *link;
		if (!ended) {
			address = next_mapped(address);
			continue;
		}
		*link = ended->next;
		address += ended->bytes;
		ended->of->mappings--;
		end_if_unused(ended->of);
		free(ended);
	}
}

CUresult cuMemUnmap(CUdeviceptr address, size_t bytes)
{
	if (!hr__ledger_is_on()) return HR__REAL(cuMemUnmap, address, bytes);
	pthread_mutex_lock(&lock);
	CUresult result = HR__REAL(cuMemUnmap, address, bytes);
	if (result == HR__CUDA_SUCCESS) forget_mappings(address, bytes);
	pthread_mutex_unlock(&lock);
	return result;
}
