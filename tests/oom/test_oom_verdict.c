/* test_oom_verdict.c - a verdict agrees with a naive model of the device, and with what the engine then does.
 *
 * Situations are random: pages of several sizes or none, one to three shards, small pools and thread caches or not, limits of the
 * allocator, of the logical device and of the card, other allocators on the device, alignments, stitching on and off, tensors that
 * can be evicted, with Large Model Support on and off. Each request is judged twice: by hr_allocator_would_fit, and by a model that
 * was written only from the text at the top of verdict.c. The model copies what hr_allocator_visit shows into an array with one
 * letter for each unit of memory, and trims, repacks and compares in that array.
 *
 * Then the request is made. hr_alloc must do exactly what the verdict says it does by itself; with stitching off, the advice is
 * followed; a request that fails leaves the same verdict; and if more memory is needed, freeing exactly that much suffices and
 * freeing less does not.
 *
 * SHOW=1 in the environment prints every verdict. */
#include "core/device/device.h"
#include "fault_os.h"
#include "headroom_backend.h"
#include "test.h"

#define KIB UINT64_C(1024)
#define NONE UINT64_MAX
#define HELPERS 2u
#define BLOCKS 4096u
#define REGIONS 256u
#define OTHERS 2u

/* ---- a card on which another process holds memory ---- */

static hr_simulated_options card_options;
static uint64_t stolen; /* bytes held by other processes */

static hr_status card_memory_info(void *device, uint64_t *free_bytes, uint64_t *total_bytes)
{
	hr_status status = hr__backend_simulated.memory_info(device, free_bytes, total_bytes);
	if (!status) *free_bytes -= stolen < *free_bytes ? stolen : *free_bytes;
	return status;
}

static hr_status card_has(void *device, uint64_t bytes)
{
	uint64_t free_bytes, total_bytes;
	hr_status status = card_memory_info(device, &free_bytes, &total_bytes);
	return !status && bytes > free_bytes ? hr_backend_set_error(HR_OUT_OF_MEMORY, "the card is full") : status;
}

static hr_status card_page_create(void *device, hr_page *page)
{
	hr_status status = card_has(device, card_options.page_bytes);
	return status ? status : hr__backend_simulated.page_create(device, page);
}

static hr_status card_plain_alloc(void *device, uint64_t bytes, uint64_t *address)
{
	hr_status status = card_has(device, bytes);
	return status ? status : hr__backend_simulated.plain_alloc(device, bytes, address);
}

static hr_status card_count(void *config, uint32_t *out)
{
	(void)config;
	*out = 1;
	return HR_OK;
}

/* ---- the situation ---- */

static struct {
	uint64_t random;
	uint64_t page, unit; /* unit of mapping, 0 = none; unit of sizes */
	hr_device device, parts[2];
	uint32_t part_count;
	hr_allocator mine, others[OTHERS];
	uint32_t other_count;
	uint64_t limit; /* of [mine] */
	bool thread_cache, stitch, allow_growth;
	uint32_t home; /* shard of the main thread's small blocks */
	bool tensors, lms; /* there are tensors; they can be evicted */
	hr_name leaver;    /* tag of evictable tensors */
	struct {
		void *address;
		uint64_t bytes;
		hr_allocator of;
		hr_tensor tensor; /* used instead of address */
		bool pinned;
	} blocks[BLOCKS];
	uint32_t count;
	uint64_t judged, kinds[HR_VERDICT_KINDS], tiers[HR_TIER_PHYSICAL + 1];
} here;

static uint64_t below(uint64_t bound)
{
	return hr_rand(&here.random) % bound;
}

static bool take(hr_allocator allocator, uint64_t bytes, uint64_t alignment)
{
	hr_request request = HR_REQUEST(bytes);
	void *block;
	request.alignment = alignment;
	if (here.count == BLOCKS || hr_alloc(allocator, &request, &block)) return false;
	hr_allocation_info info = { .struct_size = sizeof info };
	CHECK_STATUS(HR_OK, hr_allocation_get_info(allocator, block, &info));
	here.blocks[here.count].address = block;
	here.blocks[here.count].tensor.id = 0;
	here.blocks[here.count].bytes = info.bytes;
	here.blocks[here.count++].of = allocator;
	return true;
}

/* A tensor in [mine]: pinned, not evictable, or evictable. */
static void add_tensor(uint64_t bytes)
{
	hr_tensor_options options;
	hr_tensor tensor;
	bool pinned = below(3) == 0, stays = below(8) == 0;
	if (here.count == BLOCKS) return;
	hr_tensor_options_init(&options);
	options.bytes = bytes;
	options.never_evict = stays;
	options.tag = pinned || stays ? hr_name_intern("stays") : here.leaver;
	CHECK_STATUS(HR_OK, hr_tensor_create(here.mine, &options, &tensor));
	if (hr_tensor_pin(tensor, HR_OVERWRITE, HR_STREAM_DEFAULT)) {
		CHECK_STATUS(HR_OK, hr_tensor_destroy(tensor));
		return;
	}
	if (!pinned) CHECK_STATUS(HR_OK, hr_tensor_unpin(tensor, HR_STREAM_DEFAULT));
	here.blocks[here.count].tensor = tensor;
	here.blocks[here.count].pinned = pinned;
	here.blocks[here.count].bytes = bytes;
	here.blocks[here.count++].of = here.mine;
}

static uint64_t give(uint32_t at)
{
	uint64_t bytes = here.blocks[at].bytes;
	if (here.blocks[at].tensor.id) {
		if (here.blocks[at].pinned) CHECK_STATUS(HR_OK, hr_tensor_unpin(here.blocks[at].tensor, HR_STREAM_DEFAULT));
		CHECK_STATUS(HR_OK, hr_tensor_destroy(here.blocks[at].tensor));
		here.blocks[at] = here.blocks[--here.count];
		return bytes;
	}
	CHECK_STATUS(HR_OK, hr_free(here.blocks[at].of, here.blocks[at].address, HR_STREAM_DEFAULT));
	here.blocks[at] = here.blocks[--here.count];
	return bytes;
}

/* ---- threads with shards of their own, alive as long as the situation ---- */

static struct {
	pthread_t id[HELPERS];
	uint32_t count;
	pthread_mutex_t mutex;
	pthread_cond_t changed;
	void (*job)(void);
	uint32_t turn; /* index of the running thread; HELPERS = none */
	bool end;
} helpers = { .mutex = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER, .turn = HELPERS };

static void *help(void *argument)
{
	uint32_t self = (uint32_t)(uintptr_t)argument;
	pthread_mutex_lock(&helpers.mutex);
	while (!helpers.end) {
		if (helpers.turn == self) {
			helpers.job();
			helpers.turn = HELPERS;
			pthread_cond_broadcast(&helpers.changed);
		}
		pthread_cond_wait(&helpers.changed, &helpers.mutex);
	}
	pthread_mutex_unlock(&helpers.mutex);
	return NULL;
}

static void start_helpers(uint32_t count)
{
	helpers.end = false;
	for (helpers.count = 0; helpers.count < count; helpers.count++)
		CHECK_EQ(pthread_create(&helpers.id[helpers.count], NULL, help, (void *)(uintptr_t)helpers.count), 0);
}

static void let_help(uint32_t helper, void (*job)(void))
{
	pthread_mutex_lock(&helpers.mutex);
	helpers.job = job;
	helpers.turn = helper;
	pthread_cond_broadcast(&helpers.changed);
	while (helpers.turn != HELPERS) pthread_cond_wait(&helpers.changed, &helpers.mutex);
	pthread_mutex_unlock(&helpers.mutex);
}

static void end_helpers(void)
{
	pthread_mutex_lock(&helpers.mutex);
	helpers.end = true;
	pthread_cond_broadcast(&helpers.changed);
	pthread_mutex_unlock(&helpers.mutex);
	for (uint32_t i = 0; i < helpers.count; i++) pthread_join(helpers.id[i], NULL);
}

/* ---- the model: one letter for each unit ---- */

typedef struct strip {
	uint64_t address, units;
	bool small;
	char *cells; /* L live, F free, C cached, H unmapped; a digit is an evictable tensor, and differs from that of its neighbour */
	uint32_t painted;
} strip;

typedef struct picture {
	strip strips[REGIONS];
	uint32_t count;
} picture;

static bool paint(void *context, const hr_chunk_view *chunk)
{
	static const char letters[] = {
		[HR_CHUNK_FREE] = 'F', [HR_CHUNK_IN_USE] = 'L', [HR_CHUNK_CACHED] = 'C', [HR_CHUNK_UNMAPPED] = 'H'
	};
	strip *at = context;
	uint64_t first = ((uintptr_t)chunk->address - at->address) / here.unit;
	char letter = letters[chunk->kind];
	if (letter == 'L' && here.leaver && chunk->tag == here.leaver) letter = (char)('0' + at->painted++ % 10);
	memset(at->cells + first, letter, chunk->bytes / here.unit);
	return true;
}

static void look(hr_allocator allocator, picture *out)
{
	hr_region_info info = { .struct_size = sizeof info };
	for (out->count = 0; hr_allocator_get_region(allocator, out->count, &info) == HR_OK; out->count++) {
		CHECK_LT(out->count, REGIONS);
		strip *at = &out->strips[out->count];
		*at = (strip){ (uintptr_t)info.base, info.reserved_addresses / here.unit, info.small_blocks,
			           malloc(info.reserved_addresses / here.unit), 0 };
		CHECK_STATUS(HR_OK, hr_allocator_visit(allocator, out->count, paint, at));
	}
}

static void forget(picture *seen)
{
	for (uint32_t i = 0; i < seen->count; i++) free(seen->strips[i].cells);
}

static bool all_are(const strip *at, uint64_t first, uint64_t count, char letter)
{
	for (uint64_t i = 0; i < count; i++)
		if (at->cells[first + i] != letter) return false;
	return true;
}

static void replace(strip *at, char from, char to)
{
	for (uint64_t i = 0; i < at->units; i++)
		if (at->cells[i] == from) at->cells[i] = to;
}

static bool is_tensor(char cell)
{
	return cell >= '0' && cell <= '9';
}

static void replace_tensors(picture *seen, char to)
{
	for (uint32_t s = 0; s < seen->count; s++)
		for (char digit = '0'; digit <= '9'; digit++) replace(&seen->strips[s], digit, to);
}

static picture copy_of(const picture *seen)
{
	picture copy = *seen;
	for (uint32_t s = 0; s < seen->count; s++) {
		copy.strips[s].cells = malloc(seen->strips[s].units);
		memcpy(copy.strips[s].cells, seen->strips[s].cells, seen->strips[s].units);
	}
	return copy;
}

/* Units that are released together: a page, or a whole region. */
static uint64_t part_of(const strip *at)
{
	return here.page ? here.page / here.unit : at->units;
}

static uint64_t whole_parts(const strip *at, uint64_t first, uint64_t end)
{
	uint64_t part = part_of(at), count = 0;
	for (uint64_t i = (first + part - 1) / part * part; i + part <= end; i += part) count += all_are(at, i, part, 'F');
	return count;
}

/* Releases whole free parts; returns their bytes. */
static uint64_t release(strip *at)
{
	uint64_t part = part_of(at), bytes = 0;
	for (uint64_t i = 0; i + part <= at->units; i += part) {
		if (!all_are(at, i, part, 'F')) continue;
		memset(at->cells + i, 'H', part);
		bytes += part * here.unit;
	}
	return bytes;
}

static uint64_t count_of(const picture *seen, char letter)
{
	uint64_t units = 0;
	for (uint32_t s = 0; s < seen->count; s++)
		for (uint64_t i = 0; i < seen->strips[s].units; i++) units += seen->strips[s].cells[i] == letter;
	return units * here.unit;
}

/* End of the run of [letter] that begins at [i]. */
static uint64_t row_end(const strip *at, uint64_t i, char letter)
{
	while (i < at->units && at->cells[i] == letter) i++;
	return i;
}

static uint64_t row_begin(const strip *at, uint64_t i, char letter)
{
	while (i > 0 && at->cells[i - 1] == letter) i--;
	return i;
}

/* The first unit from [i] on whose address is a multiple of the alignment. */
static uint64_t aligned(const strip *at, uint64_t i, uint64_t alignment)
{
	while (alignment && (at->address + i * here.unit) % alignment) i++;
	return i;
}

struct wish {
	uint64_t size, alignment; /* alignment 0 = any */
	bool small;
};

static bool holds(const picture *seen, const struct wish *wish)
{
	for (uint32_t s = 0; s < seen->count; s++) {
		const strip *at = &seen->strips[s];
		for (uint64_t i = 0, end; i<at->units; i = end> i ? end : i + 1) {
			end = row_end(at, i, 'F');
			uint64_t start = aligned(at, i, wish->alignment);
			if (end > i && start < end && (end - start) * here.unit >= wish->size) return true;
		}
	}
	return false;
}

/* Pages to map for the block that begins at the first aligned unit from [from] on and must end by [end]; *first and *stop get its
 * extent. NONE if it does not fit. */
static uint64_t pages_at(const strip *at, const struct wish *wish, uint64_t from, uint64_t end, uint64_t *first, uint64_t *stop)
{
	uint64_t part = part_of(at), pages = 0;
	*first = aligned(at, from, wish->alignment);
	*stop = *first + wish->size / here.unit;
	if (*stop > end) return NONE;
	for (uint64_t p = *first / part; p * part < *stop; p++) pages += at->cells[p * part] == 'H';
	return pages ? pages : NONE;
}

/* The fewest pages to map, over all holes of the strip: with nothing released if [spare] is NONE; else from [spare] free pages,
 * less the whole ones beside the hole that the block builds on. */
static uint64_t fewest_pages(const strip *at, const struct wish *wish, uint64_t spare)
{
	uint64_t best = NONE;
	for (uint64_t hole = 0, behind; hole < at->units; hole = behind) {
		behind = row_end(at, hole, 'H');
		if (behind == hole) {
			behind = hole + 1;
			continue;
		}
		for (int alone = 0; alone < (spare == NONE ? 1 : 2); alone++) {
			uint64_t first, stop, from = alone ? hole : row_begin(at, hole, 'F'), end = alone ? behind : row_end(at, behind, 'F');
			uint64_t pages = pages_at(at, wish, from, end, &first, &stop);
			if (pages == NONE) continue;
			uint64_t built_on = (first < hole ? whole_parts(at, from, hole) : 0) +
			                    (stop > behind ? whole_parts(at, behind, end) : 0);
			if (spare != NONE && pages > spare - built_on) continue;
			if (pages < best) best = pages;
		}
	}
	return best;
}

/* The fewest live units in a window of one mapped stretch that has enough free units. Up to [grows] units of a hole after the
 * stretch count as free. */
static uint64_t fewest_moved(const strip *at, uint64_t wanted, uint64_t grows)
{
	uint64_t best = NONE;
	for (uint64_t i = 0; i < at->units; i++) {
		uint64_t live = 0, free_units = 0, j = i;
		/* A window begins at the begin of a free run; any other is longer without need. */
		if (at->cells[i] != 'F' || (i > 0 && at->cells[i - 1] == 'F')) continue;
		for (; j < at->units && at->cells[j] != 'H'; j++) {
			live += at->cells[j] == 'L';
			free_units += at->cells[j] == 'F';
			if (free_units * here.unit >= wanted) break;
		}
		if (j < at->units && at->cells[j] == 'H') {
			uint64_t hole = row_end(at, j, 'H') - j;
			free_units += hole < grows ? hole : grows;
		}
		if (free_units * here.unit >= wanted && live < best) best = live;
	}
	/* A window that begins after the last free run moves nothing and has only the units that grow. */
	return best == NONE ? NONE : best * here.unit;
}

/* The fewest bytes of tensors in a run of free units and whole tensors that holds the block. */
static uint64_t fewest_leaving(const strip *at, const struct wish *wish)
{
	uint64_t best = NONE;
	for (uint64_t i = 0; i < at->units; i++) {
		if (i > 0 && at->cells[i] == at->cells[i - 1]) continue; /* start of a chunk */
		uint64_t tensors = 0;
		for (uint64_t j = i, end; j < at->units && (at->cells[j] == 'F' || is_tensor(at->cells[j])); j = end) {
			end = row_end(at, j, at->cells[j]);
			if (is_tensor(at->cells[j])) tensors += end - j;
			uint64_t start = aligned(at, i, wish->alignment);
			if (start + wish->size / here.unit <= end && tensors < best) best = tensors;
		}
	}
	return best == NONE ? NONE : best * here.unit;
}

struct room {
	uint64_t mine, device, card;
};

static uint64_t least(const struct room *room)
{
	uint64_t bytes = room->mine < room->device ? room->mine : room->device, unit = here.page ? here.page : here.unit;
	return (bytes < room->card ? bytes : room->card) / unit * unit;
}

static struct room room_now(uint64_t *total)
{
	hr_stats stats;
	hr_device_info info = { .struct_size = sizeof info }, part = info;
	hr_stats_init(&stats);
	CHECK_STATUS(HR_OK, hr_allocator_get_stats(here.mine, &stats));
	CHECK_STATUS(HR_OK, hr_device_get_info(here.device, &info));
	uint64_t reserved = 0, limit = here.page ? info.limit_bytes / here.page * here.page : info.limit_bytes;
	for (uint32_t i = 0; i < here.part_count; i++) {
		CHECK_STATUS(HR_OK, hr_device_get_info(here.parts[i], &part));
		reserved += part.reserved_bytes;
	}
	*total = info.total_bytes;
	/* Memory that we hold without using it counts as free on the card. */
	uint64_t idle = info.total_bytes - info.free_bytes - info.other_bytes - reserved;
	return (struct room){ here.limit - (uint64_t)stats.bytes_reserved, limit - info.reserved_bytes, info.free_bytes + idle };
}

static hr_tier fullest(const struct room *room, uint64_t total)
{
	hr_device_info info = { .struct_size = sizeof info };
	CHECK_STATUS(HR_OK, hr_device_get_info(here.device, &info));
	uint64_t device_limit = here.page ? info.limit_bytes / here.page * here.page : info.limit_bytes;
	if (here.limit < device_limit && room->mine <= room->device && room->mine <= room->card) return HR_TIER_ALLOCATOR;
	return info.limit_bytes < total && room->device <= room->card ? HR_TIER_DEVICE : HR_TIER_PHYSICAL;
}

static hr_tier outermost(uint64_t total)
{
	return fullest(&(struct room){ 0, 0, NONE }, total);
}

/* The strip that grows for the main thread; NONE if its shard has no addresses yet. Each shard has a strip for large blocks, then
 * one for small ones. */
static uint64_t home_of(const picture *seen, bool small)
{
	/* Large blocks of threads that take turns are all in shard 0. */
	uint64_t at = small ? 2 * here.home + 1 : 0;
	return here.page && at < seen->count ? at : NONE;
}

/* Whether the main thread's cache has a block of that size: cached blocks of a shard belong to its thread, and with a single shard
 * there is a single thread. */
static bool find_kept(void *context, const hr_chunk_view *chunk)
{
	uint64_t *size = context;
	if (chunk->kind == HR_CHUNK_CACHED && chunk->bytes == *size) *size = 0;
	return *size != 0;
}

static bool is_kept(const picture *seen, uint64_t size)
{
	for (uint32_t s = 0; s < seen->count; s++)
		if (!here.page || s == 2 * here.home || s == 2 * here.home + 1)
			CHECK_STATUS(HR_OK, hr_allocator_visit(here.mine, s, find_kept, &size));
	return size == 0;
}

/* Whether the strip has addresses for the block at all. */
static bool has_address(const strip *at, const struct wish *wish)
{
	return aligned(at, 0, wish->alignment) + wish->size / here.unit <= at->units;
}

/* HR_FITS_WITH_LMS in the trimmed state: bytes, or NONE. */
static uint64_t model_of_leaving(const picture *trimmed, const struct wish *wish, uint64_t home, uint64_t whole, struct room left)
{
	uint64_t row = NONE, leavers = 0, unit = here.page ? here.page : here.unit, there = count_of(trimmed, 'F') + least(&left);
	for (uint32_t s = 0; s < trimmed->count; s++) {
		uint64_t one = fewest_leaving(&trimmed->strips[s], wish);
		if (one < row) row = one;
		for (uint64_t i = 0; i < trimmed->strips[s].units; i++) leavers += is_tensor(trimmed->strips[s].cells[i]) ? here.unit : 0;
	}
	if (!leavers || row != NONE) return row;
	picture gone = copy_of(trimmed);
	replace_tensors(&gone, 'F');
	for (uint32_t s = 0; s < gone.count; s++) {
		uint64_t bytes = gone.strips[s].small || !here.page ? release(&gone.strips[s]) : 0;
		left.mine += bytes;
		left.device += bytes;
		left.card += bytes;
	}
	uint64_t room = least(&left), spare = room / unit;
	for (uint32_t s = 0; s < gone.count && here.page; s++) spare += whole_parts(&gone.strips[s], 0, gone.strips[s].units);
	bool fits = holds(&gone, wish);
	if (fits) CHECK(!here.page); /* else a run would have been found */
	else if (!here.page) fits = whole <= room;
	else if (home == NONE) fits = whole <= room || (here.stitch && whole / here.page <= spare);
	else
		fits = fewest_pages(&gone.strips[home], wish, NONE) <= room / here.page ||
		       (here.stitch && fewest_pages(&gone.strips[home], wish, spare) != NONE);
	forget(&gone);
	uint64_t missing = wish->size > there ? (wish->size - there + unit - 1) / unit * unit : unit;
	return !fits ? NONE : missing < leavers ? missing : leavers;
}

/* Implements the whole introduction of verdict.c, for "bfc". */
static hr_verdict model(const struct wish *wish)
{
	picture now, other;
	uint64_t total, part_bytes = here.page, given = 0, pages;
	hr_verdict verdict = { .struct_size = sizeof verdict };
	uint64_t whole = here.page ? (wish->size + here.page - 1) / here.page * here.page : wish->size + wish->alignment;
	look(here.mine, &now);
	struct room room = room_now(&total);
	uint64_t home = home_of(&now, wish->small);

	bool kept = wish->small && is_kept(&now, wish->size);
	for (uint32_t s = 0; s < now.count; s++) replace(&now.strips[s], 'C', 'c'); /* counts neither as free nor as live yet */
	pages = home != NONE ? fewest_pages(&now.strips[home], wish, NONE) : whole / (part_bytes ? part_bytes : 1);
	if (kept || holds(&now, wish) || (here.page ? pages <= least(&room) / here.page : whole <= least(&room))) {
		verdict.kind = HR_FITS;
		goto done;
	}
	/* the trimmed state */
	for (uint32_t s = 0; s < now.count; s++) {
		replace(&now.strips[s], 'c', 'F');
		if (now.strips[s].small || !here.page) given += release(&now.strips[s]);
	}
	room.mine += given;
	room.device += given;
	room.card += given;
	for (uint32_t i = 0; i < here.other_count && room.mine; i++) {
		look(here.others[i], &other);
		for (uint32_t s = 0; s < other.count; s++) {
			replace(&other.strips[s], 'C', 'F');
			uint64_t bytes = release(&other.strips[s]);
			room.device += bytes;
			room.card += bytes;
		}
		forget(&other);
	}
	pages = home != NONE ? fewest_pages(&now.strips[home], wish, NONE) : whole / (part_bytes ? part_bytes : 1);
	if (holds(&now, wish) || (here.page ? pages <= least(&room) / here.page : whole <= least(&room))) {
		verdict.kind = HR_FITS_AFTER_TRIM;
		goto done;
	}
	if (here.page) {
		uint64_t spare = least(&room) / here.page;
		for (uint32_t s = 0; s < now.count; s++) spare += whole_parts(&now.strips[s], 0, now.strips[s].units);
		pages = home != NONE ? fewest_pages(&now.strips[home], wish, spare) : whole / here.page <= spare ? whole / here.page : NONE;
		if (pages != NONE) {
			verdict.kind = HR_FITS_AFTER_STITCH;
			verdict.pages = pages - least(&room) / here.page;
			goto done;
		}
	}
	uint64_t leaving = model_of_leaving(&now, wish, home, whole, room);
	if (leaving != NONE) {
		verdict.kind = HR_FITS_WITH_LMS;
		verdict.bytes = leaving;
		if (wish->size > count_of(&now, 'F') + least(&room)) verdict.tier = fullest(&room, total);
		goto done;
	}
	replace_tensors(&now, 'L');
	uint64_t moved = NONE, free_bytes = count_of(&now, 'F') + least(&room),
			 slack = wish->alignment ? wish->alignment - here.unit : 0;
	for (uint32_t s = 0; s < now.count; s++) {
		uint64_t one = fewest_moved(&now.strips[s], wish->size + slack, s == home ? least(&room) / here.unit : 0);
		if (one < moved) moved = one;
	}
	if (moved != NONE) {
		verdict.kind = HR_FITS_AFTER_DEFRAG;
		verdict.bytes = moved;
	} else if (whole > here.limit) {
		verdict.kind = HR_NEVER_FITS;
		verdict.bytes = whole - here.limit;
		verdict.tier = outermost(total);
	} else if (home != NONE && !has_address(&now.strips[home], wish)) {
		verdict.kind = HR_NEVER_FITS;
	} else if (free_bytes >= wish->size) {
		verdict.kind = HR_FITS_AFTER_DEFRAG;
		verdict.bytes = count_of(&now, 'L');
	} else {
		verdict.kind = HR_NEEDS_MORE;
		verdict.bytes = wish->size - free_bytes;
		verdict.tier = fullest(&room, total);
	}
done:
	forget(&now);
	return verdict;
}

/* ---- judging ---- */

static hr_verdict ask(const struct wish *wish)
{
	hr_verdict verdict = { .struct_size = sizeof verdict };
	hr_request request = HR_REQUEST(wish->size);
	request.alignment = wish->alignment;
	CHECK_STATUS(HR_OK, hr_allocator_would_fit(here.mine, &request, &verdict));
	return verdict;
}

static hr_verdict judge(const struct wish *wish)
{
	hr_verdict expected = model(wish), got = ask(wish);
	if (getenv("SHOW"))
		printf("# %llu: size %llu alignment %llu: %d bytes %llu pages %llu tier %d: %s | %s\n", (unsigned long long)here.judged,
		       (unsigned long long)wish->size, (unsigned long long)wish->alignment, (int)got.kind, (unsigned long long)got.bytes,
		       (unsigned long long)got.pages, (int)got.tier, got.text, got.advice);
	CHECK_EQ((int)got.kind, (int)expected.kind);
	/* tests/lms/test_defrag.c has an oracle for the bytes that defragmentation moves, and checks that it moves them. */
	if (got.kind == HR_FITS_AFTER_DEFRAG && strstr(got.text, "tensors of")) CHECK(here.tensors && got.bytes > 0);
	else CHECK_EQ(got.bytes, expected.bytes);
	CHECK_EQ(got.pages, expected.pages);
	CHECK_EQ((int)got.tier, (int)expected.tier);
	CHECK(got.text[0] != 0);
	here.judged++;
	here.kinds[got.kind]++;
	here.tiers[got.tier]++;
	return got;
}

/* The verdict that corresponds to what the engine did for a request. */
static hr_verdict_kind done_between(const hr_stats *before, const hr_stats *after)
{
	if (after->bytes_reclaimed != before->bytes_reclaimed) return HR_FITS_WITH_LMS;
	if (after->num_stitches != before->num_stitches) return HR_FITS_AFTER_STITCH;
	return after->num_trims != before->num_trims ? HR_FITS_AFTER_TRIM : HR_FITS;
}

/* Frees blocks of [mine] until exactly [bytes] are free, and skips larger ones. True if the sum is exact. */
static bool free_exactly(const struct wish *wish, uint64_t bytes)
{
	for (uint32_t i = here.count; i-- > 0 && bytes;) {
		if (i >= here.count || here.blocks[i].of.id != here.mine.id || here.blocks[i].bytes > bytes) continue;
		hr_verdict before = bytes < 8 * here.unit || below(8) == 0 ? judge(wish) : ask(wish);
		CHECK_EQ((int)before.kind, (int)HR_NEEDS_MORE);
		CHECK_EQ(before.bytes, bytes);
		bytes -= give(i);
	}
	return bytes == 0;
}

/* The report of a failed request has the same verdict. With HR_REPORTS_TO in the environment it is saved there, for
 * test_situations.py. */
static void report(const struct wish *wish, const hr_verdict *expected)
{
	static unsigned written;
	char path[4096];
	const char *folder = getenv("HR_REPORTS_TO");
	hr_oom_options options;
	hr_oom_report made;
	hr_verdict said = { .struct_size = sizeof said };
	hr_oom_options_init(&options);
	options.report_allocations_on_oom = true;
	CHECK_STATUS(HR_OK, hr_allocator_set_oom_options(here.mine, &options));
	CHECK(!take(here.mine, wish->size, wish->alignment));
	CHECK_STATUS(HR_OK, hr_oom_get_last(&made));
	CHECK_STATUS(HR_OK, hr_oom_get_verdict(made, &said));
	CHECK_EQ((int)said.kind, (int)expected->kind);
	CHECK_EQ(said.bytes, expected->bytes);
	CHECK_EQ(said.pages, expected->pages);
	CHECK_GT(hr_oom_format_text(made, NULL, 0), 200);
	snprintf(path, sizeof path, "%s/%d-%u.json", folder ? folder : "", (int)getpid(), written++);
	if (folder) CHECK_STATUS(HR_OK, hr_oom_save(made, path));
	options.report_allocations_on_oom = false;
	CHECK_STATUS(HR_OK, hr_allocator_set_oom_options(here.mine, &options));
}

static void act(const struct wish *wish)
{
	hr_stats before, after;
	hr_verdict verdict = judge(wish);
	hr_stats_init(&before);
	hr_stats_init(&after);
	CHECK_STATUS(HR_OK, hr_allocator_get_stats(here.mine, &before));
	bool by_itself = verdict.kind <= HR_FITS_AFTER_TRIM || (verdict.kind == HR_FITS_AFTER_STITCH && here.stitch) ||
	                 (verdict.kind == HR_FITS_WITH_LMS && here.lms);
	bool taken = take(here.mine, wish->size, wish->alignment);
	/* With stitching off, evicted tensors may have made room instead of pages. */
	if (taken && verdict.kind == HR_FITS_AFTER_STITCH && !here.stitch && here.lms) return;
	CHECK_EQ(taken, by_itself);
	CHECK_STATUS(HR_OK, hr_allocator_get_stats(here.mine, &after));
	if (by_itself) {
		CHECK_EQ((int)done_between(&before, &after), (int)verdict.kind);
		if (here.page && verdict.kind != HR_FITS_WITH_LMS) CHECK_EQ(after.bytes_stitched - before.bytes_stitched, verdict.pages * here.page);
		return;
	}
	/* The engine has tried everything, and the verdict is the same, except that all evictable tensors are evicted. */
	hr_verdict later = judge(wish);
	if (here.lms) {
		CHECK(later.kind >= HR_FITS_AFTER_DEFRAG && later.kind != HR_FITS_WITH_LMS ? true
		                                                                             : later.kind == HR_FITS_AFTER_STITCH && !here.stitch);
		verdict = later;
	}
	CHECK_EQ((int)later.kind, (int)verdict.kind);
	CHECK_EQ(later.bytes, verdict.bytes);
	CHECK_EQ(later.pages, verdict.pages);
	report(wish, &verdict);
	if (verdict.kind == HR_FITS_AFTER_STITCH) {
		CHECK_CONTAINS(verdict.advice, "options.stitch");
		CHECK_STATUS(HR_OK, hr_allocator_trim(here.mine, NULL));
		CHECK(take(here.mine, wish->size, wish->alignment));
	} else if (verdict.kind == HR_FITS_WITH_LMS) {
		CHECK_CONTAINS(verdict.text, "fits with LMS");
		CHECK_CONTAINS(verdict.advice, "hr_set_lms_enabled");
		CHECK_CONTAINS(verdict.advice, "HEADROOM_LMS");
	} else if (verdict.kind == HR_NEEDS_MORE && !here.tensors && free_exactly(wish, verdict.bytes)) {
		verdict = judge(wish);
		CHECK(verdict.kind < HR_NEEDS_MORE);
	}
}

/* ---- situations ---- */

static uint64_t some_size(uint64_t most_units)
{
	switch (below(4)) {
	case 0: return here.unit;
	case 1: return (1 + below(8)) * here.unit;
	case 2: return (1 + below(here.page ? 3 * here.page / here.unit : 64)) * here.unit;
	default: return (1 + below(most_units)) * here.unit;
	}
}

/* The calling thread allocates and frees at random, in the allocator [job_of]. */
static hr_allocator job_of;
static void churn(void)
{
	uint64_t most = here.limit / here.unit / 6 + 1;
	uint32_t steps = 20 + (uint32_t)below(120);
	for (uint32_t i = 0; i < steps; i++) {
		if (below(3) || !here.count) {
			if (here.tensors && job_of.id == here.mine.id && below(2)) add_tensor(some_size(most));
			else take(job_of, some_size(most), 0);
		} else {
			uint32_t at = (uint32_t)below(here.count);
			/* A small block of another shard would not enter a cache, which is also fine. */
			give(at);
		}
	}
}

static void open_device(uint64_t pages)
{
	uint64_t limits[2];
	hr_backend table = hr__backend_simulated;
	static hr_backend kept; /* the registered table is copied, names are not */
	CHECK_STATUS(HR_OK, hr_shutdown());
	stolen = 0;
	hr_simulated_options_init(&card_options);
	card_options.page_bytes = here.page;
	card_options.memory_bytes = pages * (here.page ? here.page : 4 * KIB);
	table.name = "card";
	table.type = "CARD";
	table.count = card_count;
	table.memory_info = card_memory_info;
	table.page_create = card_page_create;
	table.plain_alloc = card_plain_alloc;
	kept = table;
	if (!here.page)
		kept.reserve = NULL, kept.release = NULL, kept.page_create = NULL, kept.page_destroy = NULL, kept.map = NULL,
		kept.unmap = NULL;
	CHECK_STATUS(HR_OK, hr_backend_register(&kept, &card_options));
	here.part_count = 1;
	if (below(3) == 0) { /* two logical devices */
		limits[0] = card_options.memory_bytes * 5 / 8;
		limits[1] = card_options.memory_bytes * 3 / 8;
		here.part_count = 2;
		CHECK_STATUS(HR_OK, hr_device_set_logical("CARD:0", limits, 2));
	}
	CHECK_STATUS(HR_OK, hr_device_find("CARD:0", &here.parts[0]));
	if (here.part_count == 2) CHECK_STATUS(HR_OK, hr_device_find("CARD:1", &here.parts[1]));
	here.device = here.parts[0];
}

static void open_allocators(void)
{
	hr_allocator_options options;
	hr_stats stats;
	hr_allocator_options_init(&options);
	options.granularity = (uint32_t)here.unit;
	options.thread_cache = here.thread_cache = below(2);
	options.stitch = here.stitch = below(2);
	options.allow_growth = here.allow_growth = below(8) != 0;
	hr_device_info info = { .struct_size = sizeof info };
	CHECK_STATUS(HR_OK, hr_device_get_info(here.device, &info));
	uint64_t most = here.page ? info.limit_bytes / here.page * here.page : info.limit_bytes;
	if (below(2)) options.limit_bytes = most / 4 + below(most * 3 / 4);
	CHECK_STATUS(HR_OK, hr_allocator_create(here.device, &options, &here.mine));
	hr_stats_init(&stats);
	CHECK_STATUS(HR_OK, hr_allocator_get_stats(here.mine, &stats));
	here.limit = (uint64_t)stats.bytes_limit;
	here.tensors = below(2);
	here.lms = here.tensors && below(2);
	here.leaver = here.tensors ? hr_name_intern("leaver") : HR_NAME_NONE;
	if (here.tensors) {
		hr_lms_options lms;
		CHECK_STATUS(HR_OK, hr_lms_options_init(&lms));
		lms.enabled = here.lms;
		lms.policy = "lru";
		lms.host_limit = 256 * KIB * KIB;
		lms.wait_ns = 0;
		CHECK_STATUS(HR_OK, hr_lms_configure(here.mine, &lms));
	}
	options.allow_growth = true;
	options.limit_bytes = 0;
	here.other_count = (uint32_t)below(OTHERS + 1);
	for (uint32_t i = 0; i < here.other_count; i++)
		CHECK_STATUS(HR_OK, hr_allocator_create(here.device, &options, &here.others[i]));
}

static struct wish some_wish(void)
{
	struct wish wish = { .size = some_size(here.limit / here.unit) };
	if (below(4) == 0) wish.size = (1 + below(here.limit / here.unit * 5 / 4)) * here.unit;
	if (below(3) == 0) wish.alignment = here.unit << (1 + below(here.page ? 8 : 4));
	/* The addresses of a shard are not known before it has them. */
	if (here.home && wish.alignment > here.page) wish.alignment = here.page;
	wish.small = here.thread_cache && wish.size <= 64 * KIB && !wish.alignment;
	return wish;
}

/* Other processes allocate some of the free memory, or free it. */
static void steal(void)
{
	hr_device_info info = { .struct_size = sizeof info };
	CHECK_STATUS(HR_OK, hr_device_get_info(here.device, &info));
	stolen = below(info.free_bytes + stolen + 1);
}

static void one_situation(uint64_t page, uint64_t pages)
{
	here.page = page;
	here.unit = below(2) ? 256 : 1024;
	here.count = 0;
	open_device(pages);
	open_allocators();
	uint32_t threads = (uint32_t)below(HELPERS + 1);
	bool several_shards = here.page && here.allow_growth && here.limit / here.page >= 64 * (threads + 1);
	if (!several_shards) threads = 0;
	start_helpers(threads);
	job_of = here.mine;
	/* Shards are assigned in the order of first use. Sometimes this thread has none at the time of the query. */
	here.home = below(4) ? 0 : threads;
	if (here.home == 0) churn();
	for (uint32_t i = 0; i < threads; i++) let_help(i, churn);
	for (uint32_t i = 0; i < here.other_count; i++) {
		job_of = here.others[i];
		churn();
	}
	/* Free memory held by other allocators. */
	if (below(2))
		for (uint32_t i = here.count; i-- > 0;)
			if (here.blocks[i].of.id != here.mine.id && below(8)) give(i);
	job_of = here.mine;
	for (int round = 0; round < 6; round++) {
		if (below(3) == 0) steal();
		struct wish wish = some_wish();
		act(&wish);
		CHECK_STATUS(HR_OK, hr_allocator_check(here.mine));
		if (below(2)) churn();
		if (threads && below(2)) let_help((uint32_t)below(threads), churn);
	}
	end_helpers();
}

static void show_counts(void)
{
	printf("# judged %llu: fits %llu, trim %llu, stitch %llu, lms %llu, defrag %llu, more %llu, never %llu; full: allocator %llu, device "
	       "%llu, card %llu\n",
	       (unsigned long long)here.judged, (unsigned long long)here.kinds[1], (unsigned long long)here.kinds[2],
	       (unsigned long long)here.kinds[3], (unsigned long long)here.kinds[HR_FITS_WITH_LMS], (unsigned long long)here.kinds[4], (unsigned long long)here.kinds[5],
	       (unsigned long long)here.kinds[6], (unsigned long long)here.tiers[1], (unsigned long long)here.tiers[2],
	       (unsigned long long)here.tiers[3]);
}

static void test_a_verdict_is_what_the_model_says_and_the_engine_does(void)
{
	static const uint64_t pages[] = { 4 * KIB, 16 * KIB, 64 * KIB };
	uint64_t situations = hr_test_scaled(HR_TEST_SANITIZED ? 60 : 180);
	here.random = hr_test_seed() + 6; /* with seed 1, a program whose judgements depend on the memory of other allocators */
	for (uint64_t i = 0; i < situations; i++) one_situation(pages[i % 3], i % 4 == 3 ? 220 : 24 + below(60));
	show_counts();
	CHECK_GE(here.judged, situations * 6);
	for (int kind = HR_FITS; kind < HR_VERDICT_KINDS; kind++) CHECK_GE(here.kinds[kind], situations / 30);
	for (int tier = HR_TIER_ALLOCATOR; tier <= HR_TIER_PHYSICAL; tier++) CHECK_GE(here.tiers[tier], 1);
	CHECK_STATUS(HR_OK, hr_shutdown());
}

static void test_a_verdict_on_a_device_without_pages_is_what_the_model_says(void)
{
	uint64_t situations = hr_test_scaled(HR_TEST_SANITIZED ? 40 : 160);
	if (situations < 100) situations = 100; /* so that every kind occurs */
	here.random = hr_test_seed() + 1000;
	for (uint64_t i = 0; i < situations; i++) one_situation(0, 300 + below(2000));
	show_counts();
	CHECK_EQ(here.kinds[HR_FITS_AFTER_STITCH], 0);
	for (int kind = HR_FITS; kind < HR_VERDICT_KINDS; kind++)
		if (kind != HR_FITS_AFTER_STITCH) CHECK_GE(here.kinds[kind], 1);
	CHECK_STATUS(HR_OK, hr_shutdown());
}

/* ---- direct and custom allocators ---- */

static hr_verdict ask_for(hr_allocator allocator, uint64_t bytes)
{
	hr_verdict verdict = { .struct_size = sizeof verdict };
	hr_request request = HR_REQUEST(bytes);
	CHECK_STATUS(HR_OK, hr_allocator_would_fit(allocator, &request, &verdict));
	return verdict;
}

static hr_allocator open_kind(const char *kind, uint64_t limit)
{
	hr_allocator_options options;
	hr_allocator allocator;
	hr_allocator_options_init(&options);
	options.kind = kind;
	options.limit_bytes = limit;
	CHECK_STATUS(HR_OK, hr_allocator_create(here.device, &options, &allocator));
	return allocator;
}

static void test_a_direct_allocator_is_judged_by_what_the_device_has(void)
{
	void *block, *other_block;
	here.page = 64 * KIB;
	here.random = 3;
	do open_device(16);
	while (here.part_count != 1);
	hr_allocator direct = open_kind("direct", 10 * here.page), other = open_kind("bfc", 0);
	hr_verdict verdict = ask_for(direct, 10 * here.page);
	CHECK_EQ((int)verdict.kind, (int)HR_FITS);
	verdict = ask_for(direct, 10 * here.page + 1);
	CHECK_EQ((int)verdict.kind, (int)HR_NEVER_FITS);
	CHECK_EQ((int)verdict.tier, (int)HR_TIER_ALLOCATOR);
	CHECK_EQ(verdict.bytes, 256);
	CHECK_CONTAINS(verdict.text, "options.limit_bytes");
	/* The other allocator holds ten of sixteen pages, all free. */
	CHECK_STATUS(HR_OK, hr_alloc_bytes(other, 10 * here.page, &other_block));
	CHECK_STATUS(HR_OK, hr_free(other, other_block, HR_STREAM_DEFAULT));
	verdict = ask_for(direct, 6 * here.page);
	CHECK_EQ((int)verdict.kind, (int)HR_FITS);
	verdict = ask_for(direct, 7 * here.page);
	CHECK_EQ((int)verdict.kind, (int)HR_FITS_AFTER_TRIM);
	CHECK_CONTAINS(verdict.advice, "hr_allocator_trim");
	CHECK_STATUS(HR_OUT_OF_MEMORY, hr_alloc_bytes(direct, 7 * here.page, &block));
	CHECK_STATUS(HR_OK, hr_allocator_trim(other, NULL));
	CHECK_STATUS(HR_OK, hr_alloc_bytes(direct, 7 * here.page, &block));
	/* Its limit leaves three pages, the card nine; the other allocator uses seven. */
	verdict = ask_for(direct, 5 * here.page);
	CHECK_EQ((int)verdict.kind, (int)HR_NEEDS_MORE);
	CHECK_EQ((int)verdict.tier, (int)HR_TIER_ALLOCATOR);
	CHECK_EQ(verdict.bytes, 2 * here.page);
	CHECK_CONTAINS(verdict.advice, "Raise options.limit_bytes by 128.0 KiB, to 786432");
	CHECK_STATUS(HR_OK, hr_alloc_bytes(other, 7 * here.page, &other_block));
	verdict = ask_for(direct, 3 * here.page);
	CHECK_EQ((int)verdict.kind, (int)HR_NEEDS_MORE);
	CHECK_EQ((int)verdict.tier, (int)HR_TIER_PHYSICAL);
	CHECK_EQ(verdict.bytes, here.page);
	CHECK_STATUS(HR_OK, hr_shutdown());
}

static hr_custom_stats custom_says;
static hr_status custom_alloc(void *state, size_t bytes, size_t alignment, hr_stream stream, void **out)
{
	(void)stream;
	(void)state;
	*out = (void *)(uintptr_t)alignment;
	return bytes > 1000 ? HR_OUT_OF_MEMORY : HR_OK;
}

static hr_status custom_free(void *state, void *address, size_t bytes, hr_stream stream)
{
	(void)state;
	(void)address;
	(void)bytes;
	(void)stream;
	return HR_OK;
}

static hr_status custom_stats(void *state, hr_custom_stats *stats)
{
	(void)state;
	*stats = custom_says;
	return HR_OK;
}

static void test_the_verdict_on_a_custom_allocator_uses_its_statistics(void)
{
	hr_custom_allocator table = { .struct_size = sizeof table, .alloc = custom_alloc, .free = custom_free };
	void *block;
	here.page = 64 * KIB;
	here.random = 3;
	open_device(16);
	CHECK_STATUS(HR_OK, hr_allocator_register("silent", &table, NULL));
	table.get_stats = custom_stats;
	CHECK_STATUS(HR_OK, hr_allocator_register("telling", &table, NULL));
	hr_allocator silent = open_kind("silent", 2 * here.page), telling = open_kind("telling", 2 * here.page);
	CHECK_STATUS(HR_OK, hr_alloc_bytes(silent, 1000, &block));
	CHECK_EQ((int)ask_for(silent, 2 * here.page - 1000).kind, (int)HR_FITS);
	hr_verdict verdict = ask_for(silent, 2 * here.page);
	CHECK_EQ((int)verdict.kind, (int)HR_NEEDS_MORE);
	CHECK_EQ(verdict.bytes, 1000);
	verdict = ask_for(silent, 2 * here.page + 1);
	CHECK_EQ((int)verdict.kind, (int)HR_NEVER_FITS);
	CHECK_EQ(verdict.bytes, 1);
	CHECK_STATUS(HR_OK, hr_alloc_bytes(telling, 1000, &block));
	custom_says = (hr_custom_stats){
		.struct_size = sizeof custom_says, .bytes_reserved = 5000, .bytes_limit = 6000, .largest_free = 2500
	};
	CHECK_EQ((int)ask_for(telling, 2500).kind, (int)HR_FITS);
	verdict = ask_for(telling, 2501);
	CHECK_EQ((int)verdict.kind, (int)HR_FITS_AFTER_DEFRAG);
	CHECK_EQ(verdict.bytes, 1000);
	verdict = ask_for(telling, 5001);
	CHECK_EQ((int)verdict.kind, (int)HR_NEEDS_MORE);
	CHECK_EQ(verdict.bytes, 1);
	CHECK_CONTAINS(verdict.text, "its own limit of 5.9 KiB");
	CHECK_STATUS(HR_OK, hr_shutdown());
}

/* Raising the limit by the advised amount makes room for the request in one piece; raising it by a page less does not. */
static void test_raising_the_limit_as_advised_is_just_enough(void)
{
	uint32_t raised = 0;
	here.page = 16 * KIB;
	here.unit = 256;
	here.random = hr_test_seed();
	for (int i = 0; i < 100; i++) {
		hr_allocator_options options;
		hr_stats stats;
		here.count = 0;
		do open_device(64);
		while (here.part_count != 1);
		hr_allocator_options_init(&options);
		options.limit_bytes = (8 + below(40)) * here.page;
		options.stitch = false;
		CHECK_STATUS(HR_OK, hr_allocator_create(here.device, &options, &here.mine));
		for (int step = 0; step < 60; step++) take(here.mine, (1 + below(options.limit_bytes / here.unit / 6)) * here.unit, 0);
		for (uint32_t at = here.count; at-- > 0;)
			if (below(3) == 0) give(at);
		struct wish wish = { .size = (1 + below(options.limit_bytes / here.unit)) * here.unit };
		if (take(here.mine, wish.size, 0)) continue;
		hr_verdict verdict = ask(&wish);
		const char *said = strstr(verdict.advice, "Raise options.limit_bytes by "), *to = said ? strstr(said, ", to ") : NULL;
		if (!said) continue;
		uint64_t limit = strtoull(to + 5, NULL, 10), pages = (wish.size + here.page - 1) / here.page;
		hr_stats_init(&stats);
		CHECK_STATUS(HR_OK, hr_allocator_get_stats(here.mine, &stats));
		CHECK_EQ(limit, (uint64_t)stats.bytes_reserved + pages * here.page);
		CHECK_LE(limit, 64 * here.page);
		raised++;
	}
	CHECK_GE(raised, 5);
	CHECK_STATUS(HR_OK, hr_shutdown());
}

/* ---- Large Model Support ---- */

/* An allocator of 16 pages, full of 32 tensors of half a page. Every eighth tensor is pinned. */
static void open_tensors(bool enabled, uint64_t host_limit)
{
	hr_lms_options lms;
	here.page = 64 * KIB;
	here.unit = 256;
	here.random = 3;
	here.count = 0;
	do open_device(32);
	while (here.part_count != 1);
	here.mine = open_kind("bfc", 16 * here.page);
	CHECK_STATUS(HR_OK, hr_lms_options_init(&lms));
	lms.enabled = enabled;
	lms.policy = "lru";
	lms.host_limit = host_limit;
	CHECK_STATUS(HR_OK, hr_lms_configure(here.mine, &lms));
	for (int i = 0; i < 32; i++) {
		hr_tensor_options options;
		hr_tensor tensor;
		hr_tensor_options_init(&options);
		options.bytes = here.page / 2;
		options.alignment = here.page / 2; /* not in the small pool */
		CHECK_STATUS(HR_OK, hr_tensor_create(here.mine, &options, &tensor));
		CHECK_STATUS(HR_OK, hr_tensor_pin(tensor, HR_OVERWRITE, HR_STREAM_DEFAULT));
		if (i % 8 != 7) CHECK_STATUS(HR_OK, hr_tensor_unpin(tensor, HR_STREAM_DEFAULT));
	}
}

static hr_stats stats_of_mine(void)
{
	hr_stats stats;
	hr_stats_init(&stats);
	CHECK_STATUS(HR_OK, hr_allocator_get_stats(here.mine, &stats));
	return stats;
}

static void test_a_request_that_fits_with_lms_moves_as_much_as_the_verdict_says(void)
{
	for (uint64_t halves = 1; halves <= 7; halves++) {
		void *block;
		open_tensors(true, 64 * KIB * KIB);
		hr_verdict verdict = ask_for(here.mine, halves * here.page / 2);
		CHECK_EQ((int)verdict.kind, (int)HR_FITS_WITH_LMS);
		CHECK_EQ(verdict.bytes, halves * here.page / 2);
		CHECK_EQ((int)verdict.tier, (int)HR_TIER_ALLOCATOR);
		CHECK_CONTAINS(verdict.text, "automatically");
		CHECK_EQ(stats_of_mine().bytes_reclaimed, 0);
		CHECK_STATUS(HR_OK, hr_alloc_bytes(here.mine, halves * here.page / 2, &block));
		CHECK_EQ((uint64_t)stats_of_mine().bytes_reclaimed, verdict.bytes);
		CHECK_STATUS(HR_OK, hr_shutdown());
	}
	/* Eight halves have no run that is free of pinned tensors, but their pages can be stitched; not all tensors are evicted. */
	void *block;
	open_tensors(true, 64 * KIB * KIB);
	hr_verdict verdict = ask_for(here.mine, 4 * here.page);
	CHECK_EQ((int)verdict.kind, (int)HR_FITS_WITH_LMS);
	CHECK_EQ(verdict.bytes, 4 * here.page);
	CHECK_STATUS(HR_OK, hr_alloc_bytes(here.mine, 4 * here.page, &block));
	CHECK_GE((uint64_t)stats_of_mine().bytes_reclaimed, verdict.bytes);
	CHECK_LE((uint64_t)stats_of_mine().bytes_reclaimed, 2 * verdict.bytes);
	CHECK_STATUS(HR_OK, hr_shutdown());
}

static void test_pages_of_fixed_tensors_count_when_they_could_leave(void)
{
	for (int pinned = 0; pinned < 2; pinned++) {
		hr_tensor_options options;
		hr_tensor fixed;
		void *block;
		open_tensors(true, 64 * KIB * KIB);
		/* None of the others can be evicted: inactive tensors are evicted already, and plain blocks take their place. */
		CHECK_STATUS(HR_OK, hr_lms_reclaim_inactive(here.mine, HR_NAME_NONE, NULL));
		hr_tensor_options_init(&options);
		options.bytes = 3 * here.page;
		options.fixed = true;
		CHECK_STATUS(HR_OK, hr_tensor_create(here.mine, &options, &fixed));
		CHECK_STATUS(HR_OK, hr_tensor_pin(fixed, HR_OVERWRITE, HR_STREAM_DEFAULT));
		while (hr_alloc_bytes(here.mine, here.page / 2, &block) == HR_OK) continue;
		if (!pinned) CHECK_STATUS(HR_OK, hr_tensor_unpin(fixed, HR_STREAM_DEFAULT));
		hr_verdict verdict = ask_for(here.mine, 3 * here.page);
		CHECK_EQ((int)verdict.kind, (int)(pinned ? HR_NEEDS_MORE : HR_FITS_WITH_LMS));
		CHECK_EQ(verdict.bytes, 3 * here.page);
		int64_t before = stats_of_mine().bytes_reclaimed;
		CHECK_STATUS(pinned ? HR_OUT_OF_MEMORY : HR_OK, hr_alloc_bytes(here.mine, 3 * here.page, &block));
		CHECK_EQ(stats_of_mine().bytes_reclaimed - before, pinned ? 0 : (int64_t)verdict.bytes);
		CHECK_STATUS(HR_OK, hr_shutdown());
	}
}

static void test_a_full_host_is_named_and_so_is_what_is_off(void)
{
	void *block;
	open_tensors(true, 128 * KIB);
	hr_verdict verdict = ask_for(here.mine, 3 * here.page);
	CHECK_EQ((int)verdict.kind, (int)HR_FITS_WITH_LMS);
	CHECK_CONTAINS(verdict.advice, "host_limit");
	CHECK_STATUS(HR_OUT_OF_MEMORY, hr_alloc_bytes(here.mine, 3 * here.page, &block));
	CHECK_CONTAINS(hr_last_message(), "host_limit");
	CHECK_STATUS(HR_OK, hr_shutdown());
	open_tensors(false, 0);
	verdict = ask_for(here.mine, 3 * here.page);
	CHECK_EQ((int)verdict.kind, (int)HR_FITS_WITH_LMS);
	CHECK_EQ(verdict.bytes, 3 * here.page);
	CHECK_CONTAINS(verdict.text, "It fits with LMS, if 192.0 KiB of idle tensors move to the host");
	CHECK_CONTAINS(verdict.advice, "hr_set_lms_enabled(true)");
	CHECK_CONTAINS(verdict.advice, "HEADROOM_LMS=1");
	CHECK_CONTAINS(verdict.advice, "Raise options.limit_bytes");
	CHECK_STATUS(HR_OUT_OF_MEMORY, hr_alloc_bytes(here.mine, 3 * here.page, &block));
	CHECK_STATUS(HR_OK, hr_shutdown());
}

TEST_MAIN(T(test_a_request_that_fits_with_lms_moves_as_much_as_the_verdict_says), T(test_pages_of_fixed_tensors_count_when_they_could_leave),
          T(test_a_full_host_is_named_and_so_is_what_is_off), T(test_a_direct_allocator_is_judged_by_what_the_device_has), T(test_the_verdict_on_a_custom_allocator_uses_its_statistics),
          T(test_raising_the_limit_as_advised_is_just_enough),
          T_WITHIN(test_a_verdict_is_what_the_model_says_and_the_engine_does, 300),
          T_WITHIN(test_a_verdict_on_a_device_without_pages_is_what_the_model_says, 300))
