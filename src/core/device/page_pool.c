/* page_pool.c - the page pool: the pages of a logical device, and the only place where its limit is enforced.
 *
 * A page has an id, an index into the pool's table. An id is in one of three states:
 *
 *     dead --(take: creates)--> taken --(give)--> idle --(shrink: destroys)--> dead
 *                                 ^-----(take)------'
 *
 * Ids are issued in order; dead ids are reused first. The table grows by blocks that never move, so that the user of a page reads
 * its entry without a lock. Memory that is not in pages (plain) counts against the same limit.
 *
 * The device is called outside the lock: take first claims the bytes under the lock, then creates pages, and undoes the claim when
 * that fails. So a slow device blocks no other thread, and two threads can never both get the last page.
 *
 * Invariants, under the lock:
 *   1  reserved = bytes of taken pages + bytes of plain allocations, including those in progress
 *   2  held = reserved + page_bytes * (idle_count + destroying)
 *   3  held <= reservable: what exists on the device is within the limit too, so logical devices cannot crowd each other out
 *   4  every id below made is taken, or in the idle list, or in the dead list, or being created or destroyed by one thread */
#include <stdio.h>
#include <string.h>

#include "core/base/checked.h"
#include "core/base/status.h"
#include "core/base/text/text.h"
#include "core/device/internal.h"

#define FIRST_BLOCK 1024u
#define MAP_BATCH 256u

#define CHECK_POOL(pool)                                                                                                       \
	HR_ASSERT((pool)->held ==                                                                                                  \
	          hr__load_relaxed(&(pool)->reserved) + (pool)->page_bytes * ((uint64_t)(pool)->idle_count + (pool)->destroying)); \
	HR_ASSERT((pool)->held <= hr__load_relaxed(&(pool)->reservable))

/* ---- the table ---- */

static inline uint32_t first_id_of(uint32_t block)
{
	return FIRST_BLOCK * ((UINT32_C(1) << block) - 1);
}

static inline uint32_t block_of(hr__page_id id)
{
	return (uint32_t)hr__log2((uint64_t)id / FIRST_BLOCK + 1);
}

static inline hr_page *entry_of(const hr__page_pool *pool, hr__page_id id)
{
	uint32_t block = block_of(id);
	HR_ASSERT(block < HR__POOL_BLOCKS && pool->blocks[block].pages);
	return &pool->blocks[block].pages[id - first_id_of(block)];
}

static inline uint32_t *next_of(const hr__page_pool *pool, hr__page_id id)
{
	uint32_t block = block_of(id);
	HR_ASSERT(block < HR__POOL_BLOCKS && pool->blocks[block].next);
	return &pool->blocks[block].next[id - first_id_of(block)];
}

hr_page hr__page_pool_page(const hr__page_pool *pool, hr__page_id id)
{
	return *entry_of(pool, id);
}

/* Ensures that the table has entries for [fresh] ids from made on. */
static hr_status grow_table(hr__page_pool *pool, uint32_t fresh)
{
	while ((uint64_t)pool->made + fresh > first_id_of(pool->block_count)) {
		if (pool->block_count == HR__POOL_BLOCKS) return hr__fail(HR_TOO_MANY, "a device has at most 4,294,966,272 pages");
		size_t entries = (size_t)FIRST_BLOCK << pool->block_count;
		size_t bytes = entries * (sizeof(hr_page) + sizeof(uint32_t));
		void *memory;
		int error = hr__os()->alloc(bytes, &memory);
		if (error) return hr__os_fail(error, "a page table of %zu bytes", bytes);
		hr__pool_block *block = &pool->blocks[pool->block_count++];
		*block = (hr__pool_block){ .pages = memory, .next = (uint32_t *)((hr_page *)memory + entries), .bytes = bytes };
		hr__store_relaxed(&pool->metadata, hr__load_relaxed(&pool->metadata) + bytes);
	}
	return HR_OK;
}

void hr__page_pool_init(hr__page_pool *pool, uint64_t page_bytes, uint64_t limit)
{
	memset(pool, 0, sizeof *pool);
	pool->page_bytes = page_bytes;
	hr__store_relaxed(&pool->reservable, page_bytes ? hr__align_down(limit, page_bytes) : limit);
	pool->idle_head = pool->dead_head = HR__NO_PAGE;
	hr__lock_init(&pool->lock, HR__RANK_PAGE_POOL);
}

bool hr__page_pool_set_reservable(hr__page_pool *pool, uint64_t bytes)
{
	HR_ASSERT(pool->page_bytes == 0);
	hr__lock_take(&pool->lock);
	bool free = pool->held == 0;
	if (free) hr__store_relaxed(&pool->reservable, bytes);
	hr__lock_release(&pool->lock);
	return free;
}

/* ---- lists of ids ---- */

static inline hr__page_id pop(hr__page_pool *pool, uint32_t *head)
{
	hr__page_id id = *head;
	*head = *next_of(pool, id);
	return id;
}

static inline void push(hr__page_pool *pool, uint32_t *head, hr__page_id id)
{
	*next_of(pool, id) = *head;
	*head = id;
}

/* Pushes the last page first, so that take returns a run of contiguous pages in the order in which it was given back. */
static void push_idle(hr__page_pool *pool, const hr__page_id *pages, uint32_t count)
{
	while (count-- > 0) {
		push(pool, &pool->idle_head, pages[count]);
		pool->idle_count++;
	}
}

/* ---- claiming room ---- */

static inline void set_reserved(hr__page_pool *pool, uint64_t bytes)
{
	hr__store_relaxed(&pool->reserved, bytes);
}

typedef enum room {
	ROOM,         /* enough room */
	NO_ROOM,      /* exceeds the limit */
	SHRINK_FIRST, /* idle pages must be destroyed first to make room for plain memory */
	WAIT          /* wait for pages that are being destroyed */
} room;

/* Whether [bytes] more can be handed out, of which [fresh] do not exist yet. */
static room room_for(const hr__page_pool *pool, uint64_t bytes, uint64_t fresh)
{
	HR_ASSERT(hr__lock_is_mine(&pool->lock));
	uint64_t reservable = hr__load_relaxed(&pool->reservable);
	if (bytes > reservable - hr__load_relaxed(&pool->reserved)) return NO_ROOM;
	if (fresh <= reservable - pool->held) return ROOM;
	HR_ASSERT(pool->idle_count > 0 || pool->destroying > 0);
	return pool->idle_count > 0 ? SHRINK_FIRST : WAIT;
}

static hr_status limit_reached(const hr__device *device, uint64_t bytes)
{
	hr__sizes size = HR__SIZES(bytes, hr__device_limit(device), hr__page_pool_reserved(device), hr__page_pool_available(device));
	return hr__fail(HR_OUT_OF_MEMORY,
	                "%s: %s requested, but of its limit of %s, %s are reserved and %s are left; free memory, or raise %s",
	                device->name, size.text[0], size.text[1], size.text[2], size.text[3],
	                hr__device_limit_setting(device));
}

static hr_status device_full(const hr__device *device, uint64_t bytes)
{
	hr__sizes size = HR__SIZES(bytes, hr__page_pool_reserved(device), hr__device_limit(device));
	return hr__fail_in(HR_OUT_OF_MEMORY, "%s: %s requested with %s of %s reserved, but the %s is full", device->name, size.text[0],
	                   size.text[1], size.text[2],
	                   device->pinned_for ? "host itself" : "device itself");
}

/* ---- destroying idle pages ---- */

/* Destroys up to [most] idle pages, one at a time so that take can use the others; adds their number to *destroyed. A page that the
 * device fails to destroy becomes idle again, and ends the loop. */
static hr_status destroy_idle(hr__device *device, uint32_t most, uint32_t *destroyed)
{
	hr__page_pool *pool = &device->pool;
	for (uint32_t i = 0; i < most; i++) {
		hr__lock_take(&pool->lock);
		if (pool->idle_count == 0) {
			hr__lock_release(&pool->lock);
			break;
		}
		hr__page_id id = pop(pool, &pool->idle_head);
		pool->idle_count--;
		pool->destroying++;
		CHECK_POOL(pool);
		hr__lock_release(&pool->lock);

		hr_status status = hr__call_page_destroy(device->physical, hr__page_pool_page(pool, id));

		hr__lock_take(&pool->lock);
		pool->destroying--;
		if (status == HR_OK) {
			push(pool, &pool->dead_head, id);
			pool->held -= pool->page_bytes;
		} else {
			push_idle(pool, &id, 1);
		}
		CHECK_POOL(pool);
		hr__lock_release(&pool->lock);
		if (status != HR_OK) return status;
		(*destroyed)++;
	}
	return HR_OK;
}

uint64_t hr__page_pool_shrink(hr__device *device)
{
	uint32_t destroyed = 0;
	destroy_idle(device, UINT32_MAX, &destroyed); /* a page that the device fails to destroy stays idle */
	return (uint64_t)destroyed * device->pool.page_bytes;
}

/* Destroys the idle pages of all logical devices of the card, for use when the card itself is full. */
static uint64_t shrink_all_parts(hr__device *device)
{
	uint64_t bytes = 0;
	for (uint32_t i = 0; i < device->physical->part_count; i++) {
		hr__device *part = device->physical->parts[i];
		if (hr__load_acquire(&part->ready)) bytes += hr__page_pool_shrink(part);
	}
	return bytes;
}

void hr__page_pool_destroy(hr__device *device)
{
	hr__page_pool *pool = &device->pool;
	uint32_t destroyed = 0;
	while (destroy_idle(device, UINT32_MAX, &destroyed) != HR_OK) { /* leak the page that failed; it is the first of the list */
		pop(pool, &pool->idle_head);
		pool->idle_count--;
		pool->held -= pool->page_bytes;
	}
	for (uint32_t i = 0; i < pool->block_count; i++) hr__os()->free(pool->blocks[i].pages, pool->blocks[i].bytes);
	hr__page_pool_init(pool, 0, 0);
}

/* ---- pages ---- */

/* Claims [count] ids under the lock: first *idle idle ones, then ids that need a page created. */
static room claim_pages(hr__page_pool *pool, uint32_t count, hr__page_id *pages, uint32_t *idle, hr_status *status)
{
	uint32_t recycled = count < pool->idle_count ? count : pool->idle_count, fresh = count - recycled;
	uint64_t bytes = pool->page_bytes * (uint64_t)count, fresh_bytes = pool->page_bytes * (uint64_t)fresh;
	room answer = room_for(pool, bytes, fresh_bytes);
	*status = HR_OK;
	if (answer == SHRINK_FIRST) answer = WAIT; /* the claim will use the idle pages, so what blocks it are pages being destroyed */
	HR_ASSERT(answer != WAIT || pool->destroying > 0);
	if (answer != ROOM) return answer;
	*status = grow_table(pool, fresh);
	if (*status != HR_OK) return ROOM;
	for (uint32_t i = 0; i < recycled; i++) pages[i] = pop(pool, &pool->idle_head);
	for (uint32_t i = recycled; i < count; i++)
		pages[i] = pool->dead_head != HR__NO_PAGE ? pop(pool, &pool->dead_head) : pool->made++;
	pool->idle_count -= recycled;
	set_reserved(pool, hr__load_relaxed(&pool->reserved) + bytes);
	pool->held += fresh_bytes;
	CHECK_POOL(pool);
	*idle = recycled;
	return ROOM;
}

static hr_status claim_pages_waiting(hr__device *device, uint32_t count, hr__page_id *pages, uint32_t *idle)
{
	hr__page_pool *pool = &device->pool;
	for (unsigned attempt = 0;; attempt++) {
		hr_status status;
		hr__lock_take(&pool->lock);
		room answer = claim_pages(pool, count, pages, idle, &status);
		hr__lock_release(&pool->lock);
		if (answer == ROOM) return status;
		if (answer == NO_ROOM) return limit_reached(device, pool->page_bytes * (uint64_t)count);
		hr__lock_wait(attempt);
	}
}

static hr_status create_page(hr__device *device, hr__page_id id)
{
	hr_page *entry = entry_of(&device->pool, id);
	hr_status status = hr__call_page_create(device->physical, entry);
	if (status == HR_OUT_OF_MEMORY && shrink_all_parts(device) > 0) status = hr__call_page_create(device->physical, entry);
	return status;
}

/* Undoes a claim: pages before [idle] were idle, those from there to [made] were just created, the rest have no page. A page that
 * cannot be destroyed becomes idle. */
static void unclaim_pages(hr__device *device, const hr__page_id *pages, uint32_t count, uint32_t idle, uint32_t made)
{
	hr__page_pool *pool = &device->pool;
	uint32_t kept = made;
	while (kept > idle && hr__call_page_destroy(device->physical, hr__page_pool_page(pool, pages[kept - 1])) == HR_OK) kept--;
	hr__lock_take(&pool->lock);
	for (uint32_t i = count; i-- > kept;) push(pool, &pool->dead_head, pages[i]);
	push_idle(pool, pages, kept);
	set_reserved(pool, hr__load_relaxed(&pool->reserved) - pool->page_bytes * (uint64_t)count);
	pool->held -= pool->page_bytes * (uint64_t)(count - kept);
	CHECK_POOL(pool);
	hr__lock_release(&pool->lock);
}

hr_status hr__page_pool_take(hr__device *device, uint32_t count, hr__page_id *pages)
{
	uint32_t idle = 0, made;
	if (count == 0) return HR_OK;
	if (!device->pool.page_bytes) return hr__fail(HR_UNSUPPORTED, "%s has no pages", device->name);
	hr_status status = claim_pages_waiting(device, count, pages, &idle);
	if (status != HR_OK) return status;
	for (made = idle; made < count; made++) {
		status = create_page(device, pages[made]);
		if (status != HR_OK) break;
	}
	if (status == HR_OK) return HR_OK;

	char why[512]; /* undoing may fail too, and must not replace this message */
	snprintf(why, sizeof why, "%s", hr_last_message());
	unclaim_pages(device, pages, count, idle, made);
	hr__fail(status, "%s", why);
	return status == HR_OUT_OF_MEMORY ? device_full(device, device->pool.page_bytes * (uint64_t)count) : status;
}

void hr__page_pool_give(hr__device *device, const hr__page_id *pages, uint32_t count)
{
	hr__page_pool *pool = &device->pool;
	if (count == 0) return;
	hr__lock_take(&pool->lock);
	HR_ASSERT(hr__load_relaxed(&pool->reserved) >= pool->page_bytes * (uint64_t)count);
	push_idle(pool, pages, count);
	set_reserved(pool, hr__load_relaxed(&pool->reserved) - pool->page_bytes * (uint64_t)count);
	CHECK_POOL(pool);
	hr__lock_release(&pool->lock);
}

/* ---- plain memory ---- */

static void unclaim_plain(hr__page_pool *pool, uint64_t bytes)
{
	hr__lock_take(&pool->lock);
	HR_ASSERT(hr__load_relaxed(&pool->reserved) >= bytes);
	set_reserved(pool, hr__load_relaxed(&pool->reserved) - bytes);
	pool->held -= bytes;
	CHECK_POOL(pool);
	hr__lock_release(&pool->lock);
}

static room claim_plain(hr__page_pool *pool, uint64_t bytes, uint32_t *in_the_way)
{
	hr__lock_take(&pool->lock);
	room answer = room_for(pool, bytes, bytes);
	if (answer == ROOM) {
		set_reserved(pool, hr__load_relaxed(&pool->reserved) + bytes);
		pool->held += bytes;
		CHECK_POOL(pool);
	} else if (answer == SHRINK_FIRST) {
		uint64_t over = bytes - (hr__load_relaxed(&pool->reservable) - pool->held);
		uint64_t pages = over / pool->page_bytes + (over % pool->page_bytes != 0);
		*in_the_way = pages < pool->idle_count ? (uint32_t)pages : pool->idle_count;
	}
	hr__lock_release(&pool->lock);
	return answer;
}

static hr_status claim_plain_waiting(hr__device *device, uint64_t bytes)
{
	uint32_t in_the_way = 0, destroyed = 0;
	hr_status status = HR_OK;
	for (unsigned attempt = 0; status == HR_OK; attempt++) {
		switch (claim_plain(&device->pool, bytes, &in_the_way)) {
		case ROOM: return HR_OK;
		case NO_ROOM: return limit_reached(device, bytes);
		case SHRINK_FIRST: status = destroy_idle(device, in_the_way, &destroyed); break;
		case WAIT: hr__lock_wait(attempt); break;
		}
	}
	return hr__fail_in(status, "%s: an unused page could not be destroyed", device->name);
}

static hr_status get_plain(hr__device *device, uint64_t bytes, uint64_t *address)
{
	if (device->pinned_for) return hr__pinned_alloc(device, bytes, address); /* destroying pages of the card would not help */
	hr_status status = hr__call_plain_alloc(device->physical, bytes, address);
	if (status == HR_OUT_OF_MEMORY && shrink_all_parts(device) > 0) status = hr__call_plain_alloc(device->physical, bytes, address);
	return status;
}

hr_status hr__page_pool_plain_alloc(hr__device *device, uint64_t bytes, uint64_t *address)
{
	if (!hr__device_has_plain(device)) return hr__fail(HR_UNSUPPORTED, "%s allocates in pages only", device->name);
	if (bytes == 0) return hr__fail(HR_INVALID_ARGUMENT, "%s: 0 bytes cannot be allocated", device->name);
	hr_status status = claim_plain_waiting(device, bytes);
	if (status != HR_OK) return status;
	status = get_plain(device, bytes, address);
	if (status == HR_OK) return HR_OK;
	unclaim_plain(&device->pool, bytes);
	return status == HR_OUT_OF_MEMORY ? device_full(device, bytes) : status;
}

hr_status hr__page_pool_plain_free(hr__device *device, uint64_t address, uint64_t bytes)
{
	hr_status status = device->pinned_for ? hr__pinned_free(device, address, bytes)
	                                      : hr__call_plain_free(device->physical, address, bytes);
	if (status == HR_OK) unclaim_plain(&device->pool, bytes);
	return status;
}

/* ---- pages of host memory ---- */

hr_status hr__host_pages_check(hr__device *device)
{
	hr_page page;
	hr_status status = hr__call_host_page_create(device->physical, &page);
	return status == HR_OK ? hr__call_host_page_destroy(device->physical, page) : status;
}

void hr__host_pages_give(hr__device *device, const hr_page *pages, uint32_t count)
{
	for (uint32_t i = 0; i < count; i++) hr__call_host_page_destroy(device->physical, pages[i]);
	unclaim_plain(&device->physical->pinned->pool, device->pool.page_bytes * (uint64_t)count);
}

hr_status hr__host_pages_take(hr__device *device, uint32_t count, hr_page *pages)
{
	hr__device *pinned = device->physical->pinned;
	uint64_t bytes = device->pool.page_bytes * (uint64_t)count;
	HR_ASSERT(pinned && count > 0);
	hr_status status = claim_plain_waiting(pinned, bytes);
	if (status != HR_OK) return status;
	for (uint32_t made = 0; made < count; made++) {
		status = hr__call_host_page_create(device->physical, &pages[made]);
		if (status == HR_OK) continue;
		char why[512];
		snprintf(why, sizeof why, "%s", hr_last_message());
		while (made-- > 0) hr__call_host_page_destroy(device->physical, pages[made]);
		unclaim_plain(&pinned->pool, bytes);
		hr__fail(status, "%s", why);
		/* HR_NO_HOST_MEMORY means that the library's own records found no memory; here host memory is what was requested. */
		return status == HR_OUT_OF_MEMORY || status == HR_NO_HOST_MEMORY ? device_full(pinned, bytes) : status;
	}
	return HR_OK;
}

hr_status hr__device_map_host(hr__device *device, uint64_t address, const hr_page *pages, uint32_t count)
{
	return hr__call_map(device->physical, address, pages, count);
}

/* ---- facts ---- */

uint64_t hr__page_pool_reserved(const hr__device *device)
{
	return hr__load_relaxed(&device->pool.reserved);
}

uint64_t hr__page_pool_available(const hr__device *device)
{
	/* Two separate loads: reserved can have dropped, and the limit been lowered, between them. */
	uint64_t reserved = hr__load_relaxed(&device->pool.reserved), reservable = hr__load_relaxed(&device->pool.reservable);
	return reserved < reservable ? reservable - reserved : 0;
}

uint64_t hr__page_pool_metadata(const hr__device *device)
{
	return sizeof device->pool + hr__load_relaxed(&device->pool.metadata);
}

/* ---- addresses ---- */

static bool whole_pages(const hr__device *device, uint64_t address, uint64_t bytes)
{
	uint64_t page = device->pool.page_bytes;
	return page && bytes && (address | bytes) % page == 0;
}

hr_status hr__device_reserve(hr__device *device, uint64_t bytes, uint64_t *address)
{
	if (!whole_pages(device, 0, bytes)) {
		return hr__fail(HR_INVALID_ARGUMENT, "%s: %llu bytes of addresses are not a number of whole pages", device->name,
		                (unsigned long long)bytes);
	}
	return hr__call_reserve(device->physical, bytes, address);
}

hr_status hr__device_release(hr__device *device, uint64_t address, uint64_t bytes)
{
	HR_ASSERT(whole_pages(device, address, bytes));
	return hr__call_release(device->physical, address, bytes);
}

hr_status hr__device_map(hr__device *device, uint64_t address, const hr__page_id *pages, uint32_t count)
{
	hr_page few[MAP_BATCH], *native = few;
	void *many = NULL;
	size_t bytes = sizeof(hr_page) * (size_t)count;
	if (count == 0) return HR_OK;
	HR_ASSERT(whole_pages(device, address, device->pool.page_bytes));
	if (count > MAP_BATCH) { /* one call for all pages, so that it is all or none */
		int error = hr__os()->alloc(bytes, &many);
		if (error) return hr__os_fail(error, "mapping %u page%s", count, hr__plural(count));
		native = many;
	}
	for (uint32_t i = 0; i < count; i++) native[i] = hr__page_pool_page(&device->pool, pages[i]);
	hr_status status = hr__call_map(device->physical, address, native, count);
	if (many) hr__os()->free(many, bytes);
	return status;
}

hr_status hr__device_unmap(hr__device *device, uint64_t address, uint32_t count)
{
	if (count == 0) return HR_OK;
	HR_ASSERT(whole_pages(device, address, device->pool.page_bytes));
	return hr__call_unmap(device->physical, address, count);
}
