/* pools.c - see pools.h. A number is the place in the table and how often the place was taken, so that the number of a destroyed pool is nobody's.
 * Pools that the table has no place for are the driver's. */
#include "pools.h"

#include <pthread.h>

#include "cards.h"
#include "manage.h"
#include "record.h"

HR__ANSWERED_PLAIN(HR__PROTOTYPE)
HR__ANSWERED_STREAM(HR__PROTOTYPES)

#define CHUNK (UINT64_C(32) << 20)
#define PLACES 64u /* a power of two */

typedef struct known_pool {
	CUmemoryPool handle; /* NULL = an empty place */
	CUdevice device;
	hr__ledger_kind kind;
	uint32_t taken;      /* how often the place was */
	bool shared;         /* other cards or processes may access it, or its memory is not that of a card: it is the driver's */
	uint64_t size;       /* bytes; 0 = no limit */
	uint64_t used, most_used;
	uint64_t reserved, most_reserved; /* whole chunks; until the program trims the pool */
} known_pool;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static known_pool places[PLACES];

/* ---- the table, with the lock held ---- */

static known_pool *place_of(CUmemoryPool handle)
{
	for (unsigned i = 0; i < PLACES; i++)
		if (places[i].handle == handle) return &places[i];
	return NULL;
}

static uint32_t number_of(const known_pool *pool)
{
	return pool->taken * PLACES + (uint32_t)(pool - places);
}

static known_pool *numbered(uint32_t number)
{
	known_pool *pool = &places[number & (PLACES - 1)];
	return pool->handle && pool->taken == number / PLACES ? pool : NULL;
}

static known_pool *add(CUmemoryPool handle, const known_pool *of)
{
	known_pool *place = place_of(handle);
	if (!place) place = place_of(NULL);
	if (!place) return NULL;
	uint32_t taken = place->taken + 1;
	*place = *of;
	place->handle = handle;
	place->taken = taken;
	return place;
}

/* ---- what memory a pool has ---- */

/* The default pool of a card is made by nobody, so it is added when it is first met. */
static known_pool *known(CUmemoryPool pool)
{
	CUmemoryPool standard;
	CUdevice device;
	known_pool *found = place_of(pool);
	for (int i = 0; !found && hr__driver.cuDeviceGetDefaultMemPool && hr__cards_get(i, &device); i++)
		if (hr__driver.cuDeviceGetDefaultMemPool(&standard, device) == HR__CUDA_SUCCESS && standard == pool) found = add(pool, &(known_pool){ .device = device });
	return found;
}

bool hr__pools_locate(CUmemoryPool pool, hr__ledger_request *request)
{
	pthread_mutex_lock(&lock);
	const known_pool *found = known(pool);
	bool changed = found && (found->device != request->device || found->kind != request->kind);
	if (changed) {
		request->kind = found->kind;
		request->device = found->device;
	}
	pthread_mutex_unlock(&lock);
	if (changed) request->context = request->kind == HR__LEDGER_HOST ? NULL : hr__cards_primary(request->device);
	return changed;
}

/* ---- for --manage ---- */

uint32_t hr__pools_find(CUmemoryPool pool, CUdevice device)
{
	if (!pool) return 0;
	pthread_mutex_lock(&lock);
	const known_pool *found = known(pool);
	uint32_t number = found && !found->shared && found->device == device ? number_of(found) : 0;
	pthread_mutex_unlock(&lock);
	return number;
}

uint32_t hr__pools_current(CUdevice device)
{
	CUmemoryPool pool;
	if (!hr__driver.cuDeviceGetMemPool || hr__driver.cuDeviceGetMemPool(&pool, device) != HR__CUDA_SUCCESS) return 0;
	return hr__pools_find(pool, device);
}

static uint64_t larger(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

/* [bytes] is what is used of a card. */
static uint64_t in_chunks(uint64_t bytes)
{
	return (bytes + CHUNK - 1) / CHUNK * CHUNK;
}

bool hr__pools_take(uint32_t number, uint64_t bytes)
{
	if (!number) return true;
	pthread_mutex_lock(&lock);
	known_pool *pool = numbered(number);
	bool fits = !pool || !pool->size || (pool->used <= pool->size && bytes <= pool->size - pool->used);
	if (pool && fits) {
		pool->used += bytes;
		pool->reserved = larger(pool->reserved, in_chunks(pool->used));
		pool->most_used = larger(pool->most_used, pool->used);
		pool->most_reserved = larger(pool->most_reserved, pool->reserved);
	}
	pthread_mutex_unlock(&lock);
	return fits;
}

void hr__pools_give(uint32_t number, uint64_t bytes)
{
	if (!number) return;
	pthread_mutex_lock(&lock);
	known_pool *pool = numbered(number);
	if (pool) pool->used -= bytes < pool->used ? bytes : pool->used;
	pthread_mutex_unlock(&lock);
}

/* ---- the program's calls ---- */

/* Memory of the card alone. What later versions of the driver may say in the reserved bytes is not known here. */
static bool is_plain(const CUmemPoolProps *of)
{
	bool plain = of->allocType == HR__CU_MEM_ALLOCATION_TYPE_PINNED && of->handleTypes == HR__CU_MEM_HANDLE_TYPE_NONE && !of->usage;
	for (unsigned i = 0; i < sizeof of->reserved; i++) plain = plain && !of->reserved[i];
	return plain && of->location.type == HR__CU_MEM_LOCATION_TYPE_DEVICE;
}

static hr__ledger_kind kind_of(const CUmemPoolProps *of)
{
	if (of->allocType == HR__CU_MEM_ALLOCATION_TYPE_MANAGED) return HR__LEDGER_MANAGED;
	return of->location.type == HR__CU_MEM_LOCATION_TYPE_DEVICE ? HR__LEDGER_DEVICE : HR__LEDGER_HOST;
}

/* The number of a location is that of a card only if the location is one. */
CUresult cuMemPoolCreate(CUmemoryPool *out, const CUmemPoolProps *of)
{
	CUresult result = HR__REAL(cuMemPoolCreate, out, of);
	if (result != HR__CUDA_SUCCESS || !hr__ledger_is_on()) return result;
	bool on_card = of->location.type == HR__CU_MEM_LOCATION_TYPE_DEVICE;
	pthread_mutex_lock(&lock);
	add(*out, &(known_pool){ .device = on_card ? of->location.id : 0, .kind = kind_of(of), .shared = !is_plain(of), .size = of->maxSize });
	pthread_mutex_unlock(&lock);
	return result;
}

/* The driver may give the next pool the same handle, so the place is emptied first. Blocks of the pool stay. */
CUresult cuMemPoolDestroy(CUmemoryPool handle)
{
	if (handle && hr__ledger_is_on()) {
		pthread_mutex_lock(&lock);
		known_pool *pool = place_of(handle);
		if (pool) pool->handle = NULL;
		pthread_mutex_unlock(&lock);
	}
	return HR__REAL(cuMemPoolDestroy, handle);
}

CUresult cuMemPoolSetAccess(CUmemoryPool handle, const CUmemAccessDesc *access, size_t count)
{
	CUresult result = HR__REAL(cuMemPoolSetAccess, handle, access, count);
	if (result != HR__CUDA_SUCCESS || !hr__manage_is_on()) return result;
	pthread_mutex_lock(&lock);
	known_pool *pool = known(handle);
	for (size_t i = 0; pool && i < count; i++) pool->shared = pool->shared || access[i].location.id != pool->device;
	pthread_mutex_unlock(&lock);
	return result;
}

/* The figure that an attribute is; NULL: another attribute. */
static uint64_t *figure_of(known_pool *pool, CUmemPool_attribute which)
{
	switch (which) {
	case HR__CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT: return &pool->reserved;
	case HR__CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH: return &pool->most_reserved;
	case HR__CU_MEMPOOL_ATTR_USED_MEM_CURRENT: return &pool->used;
	case HR__CU_MEMPOOL_ATTR_USED_MEM_HIGH: return &pool->most_used;
	default: return NULL;
	}
}

CUresult cuMemPoolGetAttribute(CUmemoryPool handle, CUmemPool_attribute which, void *out)
{
	CUresult result = HR__REAL(cuMemPoolGetAttribute, handle, which, out);
	if (result != HR__CUDA_SUCCESS || !hr__manage_is_on()) return result;
	pthread_mutex_lock(&lock);
	known_pool *pool = place_of(handle);
	const uint64_t *figure = pool ? figure_of(pool, which) : NULL;
	if (figure) *(uint64_t *)out += *figure;
	pthread_mutex_unlock(&lock);
	return result;
}

/* The driver accepts 0 for the two highest figures alone: they begin again at the current ones. */
CUresult cuMemPoolSetAttribute(CUmemoryPool handle, CUmemPool_attribute which, void *value)
{
	CUresult result = HR__REAL(cuMemPoolSetAttribute, handle, which, value);
	if (result != HR__CUDA_SUCCESS || !hr__manage_is_on()) return result;
	pthread_mutex_lock(&lock);
	known_pool *pool = place_of(handle);
	if (pool && which == HR__CU_MEMPOOL_ATTR_USED_MEM_HIGH) pool->most_used = pool->used;
	if (pool && which == HR__CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH) pool->most_reserved = pool->reserved;
	pthread_mutex_unlock(&lock);
	return result;
}

/* What Headroom's allocator keeps is given back too, since the blocks of all pools come from it. */
CUresult cuMemPoolTrimTo(CUmemoryPool handle, size_t keep)
{
	CUresult result = HR__REAL(cuMemPoolTrimTo, handle, keep);
	if (result != HR__CUDA_SUCCESS || !hr__manage_is_on()) return result;
	pthread_mutex_lock(&lock);
	known_pool *pool = place_of(handle);
	CUdevice device = pool ? pool->device : -1;
	uint64_t least = pool ? in_chunks(larger(pool->used, keep)) : 0;
	if (pool && pool->reserved > least) pool->reserved = least;
	pthread_mutex_unlock(&lock);
	if (pool) (void)!hr__manage_trim(device);
	return result;
}
