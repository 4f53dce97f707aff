/* test_stream_safety.c - no stream uses memory before another stream is done with it, whatever becomes of that memory in between.
 *
 * The device is the simulated one, seen through a detector of data races. The detector keeps a vector clock for each of the backend's
 * streams, for the host and for each event:
 *
 *     work on a stream    comes after all that the host has waited for when it gives the work
 *     an event            has the clock of its stream when it is recorded
 *     a wait              joins the event's clock to that of the stream, or of the host
 *
 * For each 4 KiB of device and host memory it knows the last write and the last read by each stream. An access that does not come after a
 * conflicting one is a race, even if the times happen to be right. So a use that an allocator forgets, or remembers as older than it was,
 * fails the next access to that memory, unless something else orders the two. Because races are errors, contents can be followed in the
 * order in which work is given: each write has a number, and copies carry it along. Unmapped memory must be idle.
 *
 * The program does everything at random that leads memory from one stream to another: blocks and tensors on several streams and on the
 * host, in three contexts whose copies have streams of both kinds (core/device/epochs.h), evictions, restores, moves on the device, frees of
 * neighbours, trims, failures of the device, and streams that are destroyed and made again. Its own streams are ordered by events that
 * Headroom does not know. */
#include "core/device/internal.h"
#include "core/lms/lms.h"
#include "fixture.h"
#include "test.h"

#define KIB UINT64_C(1024)
#define CELL (4 * KIB)
#define PAGE (64 * KIB)
#define NATIVE 24u /* streams of the backend */
#define EVENTS 131072u
#define CELLS 262144u
#define UNKNOWN 0u /* a number of no write */

/* ---- the detector ---- */

typedef struct clocks {
	uint32_t of[NATIVE];
} clocks;

typedef struct cell {
	uint64_t key; /* number of the 4 KiB; 0 = unused */
	uint64_t contents;
	uint32_t writer, written;
	clocks read;
} cell;

static struct {
	clocks host, streams[NATIVE];
	cell *cells;
	clocks *events;
	const char *what; /* what the program is doing, for messages */
	bool failures;    /* calls of the device fail */
	uint64_t accesses, conflicts; /* conflicts: an access that another stream's access had to precede */
} seen;

static void join(clocks *into, const clocks *from)
{
	for (uint32_t i = 0; i < NATIVE; i++)
		if (from->of[i] > into->of[i]) into->of[i] = from->of[i];
}

static cell *cell_at(uint64_t address)
{
	uint64_t key = address / CELL, at = (key * UINT64_C(0x9E3779B97F4A7C15)) >> 32;
	for (;; at++) {
		cell *found = &seen.cells[at % CELLS];
		if (!found->key) found->key = key;
		if (found->key == key) return found;
	}
}

static void check_after(const clocks *now, const cell *used, uint32_t stream, uint32_t clock, const char *what)
{
	seen.conflicts += clock > 0;
	if (now->of[stream] >= clock) return;
	printf("# race at %#llx: %s, while stream %u of the backend still uses it (%s)\n", (unsigned long long)(used->key * CELL), what, stream,
	       seen.what);
	CHECK_GE(now->of[stream], clock);
}

static void check_after_all(const clocks *now, const cell *used, uint32_t except, bool write, const char *what)
{
	if (used->writer != except) check_after(now, used, used->writer, used->written, what);
	for (uint32_t i = 0; i < NATIVE && write; i++)
		if (i != except) check_after(now, used, i, used->read.of[i], what);
}

enum access { READ, READ_IN_VAIN, WRITE }; /* in vain: what is read is not used, so it may be overwritten meanwhile */

/* An access by work that the stream was just given. */
static void access_by(hr_native_stream stream, uint64_t address, uint64_t bytes, enum access access, const char *what)
{
	CHECK_EQ((address | bytes) % CELL, 0);
	const clocks *now = &seen.streams[stream];
	for (uint64_t at = address; at < address + bytes; at += CELL) {
		cell *used = cell_at(at);
		check_after_all(now, used, (uint32_t)stream, access == WRITE, what);
		if (access == READ) used->read.of[stream] = now->of[stream];
		if (access != WRITE) continue;
		used->read = (clocks){ { 0 } };
		used->writer = (uint32_t)stream;
		used->written = now->of[stream];
	}
	seen.accesses++;
}

/* The host, or something that is in no stream's order, uses the memory now. */
static void access_by_host(uint64_t address, uint64_t bytes, bool write, const char *what)
{
	CHECK_EQ((address | bytes) % CELL, 0);
	for (uint64_t at = address; at < address + bytes; at += CELL) check_after_all(&seen.host, cell_at(at), NATIVE, write, what);
	seen.accesses++;
}

static void forget(uint64_t address, uint64_t bytes)
{
	for (uint64_t at = address; at < address + bytes; at += CELL) {
		cell *used = cell_at(at);
		*used = (cell){ .key = used->key };
	}
}

static void set_contents(uint64_t address, uint64_t bytes, uint64_t contents)
{
	for (uint64_t at = address; at < address + bytes; at += CELL) cell_at(at)->contents = contents;
}

static void check_contents(uint64_t address, uint64_t bytes, uint64_t contents)
{
	for (uint64_t at = address; at < address + bytes && contents != UNKNOWN; at += CELL) CHECK_EQ(cell_at(at)->contents, contents);
}

/* Work begins on a stream. */
static void begin_work(hr_native_stream stream)
{
	CHECK_LT(stream, NATIVE);
	join(&seen.streams[stream], &seen.host);
	seen.streams[stream].of[stream]++;
}

static hr_status seen_open(void *config, uint32_t index, void **device, hr_backend_caps *caps)
{
	hr_status status = hr__backend_simulated.open(config, index, device, caps);
	caps->closed_streams = false; /* the program orders its streams by itself, too */
	return status;
}

static hr_status seen_unmap(void *device, uint64_t address, uint32_t count)
{
	access_by_host(address, count * PAGE, true, "pages are unmapped");
	hr_status status = hr__backend_simulated.unmap(device, address, count);
	if (!status) forget(address, count * PAGE);
	return status;
}

static hr_status seen_host_free(void *device, void *block, uint64_t bytes)
{
	uint64_t whole = bytes / CELL * CELL;
	access_by_host((uintptr_t)block, whole, true, "host memory is freed");
	hr_status status = hr__backend_simulated.host_free(device, block, bytes);
	if (!status) forget((uintptr_t)block, whole);
	return status;
}

static hr_status seen_stream_create(void *device, hr_native_stream *stream)
{
	hr_status status = hr__backend_simulated.stream_create(device, stream);
	if (status) return status;
	CHECK_LT(*stream, NATIVE);
	uint32_t clock = seen.streams[*stream].of[*stream]; /* of the stream that had the number before */
	seen.streams[*stream] = seen.host;
	seen.streams[*stream].of[*stream] = clock;
	return HR_OK;
}

static hr_status seen_stream_synchronize(void *device, hr_native_stream stream)
{
	hr_status status = hr__backend_simulated.stream_synchronize(device, stream);
	if (!status) join(&seen.host, &seen.streams[stream]);
	return status;
}

static hr_status seen_event_create(void *device, hr_native_event *event)
{
	hr_status status = hr__backend_simulated.event_create(device, event);
	if (status) return status;
	CHECK_LT(*event, EVENTS);
	seen.events[*event] = (clocks){ { 0 } };
	return HR_OK;
}

static hr_status seen_event_record(void *device, hr_native_event event, hr_native_stream stream)
{
	hr_status status = hr__backend_simulated.event_record(device, event, stream);
	if (!status) seen.events[event] = seen.streams[stream];
	return status;
}

static hr_status seen_event_query(void *device, hr_native_event event)
{
	hr_status status = hr__backend_simulated.event_query(device, event);
	if (!status) join(&seen.host, &seen.events[event]);
	return status;
}

static hr_status seen_event_synchronize(void *device, hr_native_event event)
{
	hr_status status = hr__backend_simulated.event_synchronize(device, event);
	if (!status) join(&seen.host, &seen.events[event]);
	return status;
}

static hr_status seen_stream_wait_event(void *device, hr_native_stream stream, hr_native_event event)
{
	hr_status status = hr__backend_simulated.stream_wait_event(device, stream, event);
	if (!status) join(&seen.streams[stream], &seen.events[event]);
	return status;
}

static hr_status seen_copy(void *device, uint64_t to, uint64_t from, uint64_t bytes, hr_copy_kind kind, hr_native_stream stream)
{
	static const char *const names[] = { [HR_COPY_TO_DEVICE] = "a copy to the device",
		                                 [HR_COPY_TO_HOST] = "a copy to the host",
		                                 [HR_COPY_ON_DEVICE] = "a copy on the device" };
	hr_status status = hr__backend_simulated.copy(device, to, from, bytes, kind, stream);
	if (status) return status;
	begin_work(stream);
	/* A move on the device that fails later has begun to copy the tensor, which stays where it was. */
	access_by(stream, from, bytes, seen.failures && kind == HR_COPY_ON_DEVICE ? READ_IN_VAIN : READ, names[kind]);
	access_by(stream, to, bytes, WRITE, names[kind]);
	for (uint64_t at = 0; at < bytes; at += CELL) cell_at(to + at)->contents = cell_at(from + at)->contents;
	return HR_OK;
}

static hr_status seen_compute(void *device, uint64_t ns, hr_native_stream stream)
{
	begin_work(stream);
	return hr__backend_simulated.compute(device, ns, stream);
}

static hr_status seen_host_call(void *device, void (*run)(void *), void *argument, hr_native_stream stream)
{
	begin_work(stream);
	return hr__backend_simulated.host_call(device, run, argument, stream);
}

static void register_detector(void)
{
	static hr_simulated_options options;
	hr_backend backend = hr__backend_simulated;
	hr_simulated_options_init(&options);
	options.memory_bytes = 64 * 1024 * KIB;
	options.page_bytes = PAGE;
	backend.name = "seen";
	backend.type = "SEEN";
	backend.open = seen_open;
	backend.unmap = seen_unmap;
	backend.host_free = seen_host_free;
	backend.stream_create = seen_stream_create;
	backend.stream_synchronize = seen_stream_synchronize;
	backend.event_create = seen_event_create;
	backend.event_record = seen_event_record;
	backend.event_query = seen_event_query;
	backend.event_synchronize = seen_event_synchronize;
	backend.stream_wait_event = seen_stream_wait_event;
	backend.copy = seen_copy;
	backend.compute = seen_compute;
	backend.host_call = seen_host_call;
	seen.cells = calloc(CELLS, sizeof *seen.cells);
	seen.events = calloc(EVENTS, sizeof *seen.events);
	CHECK(seen.cells && seen.events);
	CHECK_STATUS(HR_OK, hr_backend_register(&backend, &options));
}

/* ---- the program ---- */

#define CONTEXTS 3u
#define STREAMS 5u
#define THINGS 24u
#define LIMIT (2048 * KIB)

struct tensor {
	hr_tensor handle;
	uint64_t bytes, contents; /* contents: UNKNOWN = anything */
	hr_stream home;           /* its last writer; other streams wait for it */
	uint64_t readers;         /* other streams that have read it since; its next writer waits for them */
	bool fixed;
};

struct block {
	uint64_t address, bytes, contents, readers;
	hr_stream home;
};

struct context {
	hr_allocator allocator;
	struct tensor tensors[THINGS];
	struct block blocks[THINGS];
	uint32_t tensor_count, block_count;
};

static struct {
	uint64_t random, last_write;
	hr_device handle;
	hr__device *device;
	hr_stream streams[STREAMS];
	struct context contexts[CONTEXTS];
	uint64_t failed;
} here;

static uint64_t below(uint64_t bound)
{
	return hr_rand_below(&here.random, bound);
}

static hr_stream any_stream(void)
{
	return here.streams[below(STREAMS)];
}

static hr_native_stream native_of(hr_stream stream)
{
	hr_native_stream native;
	CHECK_STATUS(HR_OK, hr__stream_native(here.device, stream, &native));
	return native;
}

/* From now until it returned, one call of the device may fail. */
static void begin_failing(void)
{
	if (seen.failures && !below(6)) hr_backend_fail_nth(1 + below(12), !below(4), HR_DEVICE_ERROR);
}

static hr_status end_failing(hr_status status)
{
	hr_backend_fail_nth(0, false, HR_OK);
	here.failed += status == HR_DEVICE_ERROR;
	if (status == HR_DEVICE_ERROR) CHECK(seen.failures);
	return status;
}

/* Makes [waiter] wait for all work of [other] in a way that Headroom does not see. */
static void order_unseen(hr_stream waiter, hr_stream other)
{
	hr__physical *physical = here.device->physical;
	hr_native_event event;
	if (waiter == other) return;
	CHECK_STATUS(HR_OK, hr__call_event_create(physical, &event));
	CHECK_STATUS(HR_OK, hr__call_event_record(physical, event, native_of(other)));
	CHECK_STATUS(HR_OK, hr__call_stream_wait_event(physical, native_of(waiter), event));
	CHECK_STATUS(HR_OK, hr__call_event_destroy(physical, event));
}

/* Work on memory: it reads it, and perhaps writes it. [contents] are those before and after. */
static void work_on(hr_stream stream, uint64_t address, uint64_t bytes, uint64_t *contents, bool write)
{
	hr_native_stream native = native_of(stream);
	CHECK_STATUS(HR_OK, hr__device_compute(here.device, stream, 1000 + below(300000)));
	check_contents(address, bytes, *contents);
	access_by(native, address, bytes, write ? WRITE : READ, "work of the program");
	if (write) set_contents(address, bytes, *contents = ++here.last_write);
}

static void work_on_host(uint64_t address, uint64_t bytes, uint64_t *contents, bool write)
{
	check_contents(address, bytes, *contents);
	access_by_host(address, bytes, write, "the host uses memory");
	if (write) set_contents(address, bytes, *contents = ++here.last_write);
}

static void use_memory(hr_stream stream, uint64_t address, uint64_t bytes, uint64_t *contents, bool write)
{
	if (stream == HR_STREAM_HOST) work_on_host(address, bytes, contents, write);
	else work_on(stream, address, bytes, contents, write);
}

static uint64_t any_size(void)
{
	return CELL * (below(3) ? 1 + below(24) : 1 + below(100));
}

/* ---- blocks ---- */

static void alloc_block(struct context *c, uint64_t bytes)
{
	if (c->block_count == THINGS) return;
	struct block *made = &c->blocks[c->block_count];
	hr_request request = HR_REQUEST(bytes);
	void *at;
	request.stream = below(8) ? any_stream() : HR_STREAM_HOST;
	seen.what = "hr_alloc";
	begin_failing();
	hr_status status = end_failing(hr_alloc(c->allocator, &request, &at));
	if (status) {
		CHECK(status == HR_OUT_OF_MEMORY || status == HR_DEVICE_ERROR);
		return;
	}
	*made = (struct block){ (uintptr_t)at, request.bytes, UNKNOWN, 0, request.stream };
	c->block_count++;
	/* Memory that was never used still passes on what its stream waited for. */
	if (below(4)) use_memory(made->home, made->address, made->bytes, &made->contents, true);
}

static void use_block(struct context *c)
{
	if (!c->block_count) return;
	struct block *used = &c->blocks[below(c->block_count)];
	hr_stream stream = any_stream();
	if (used->home != HR_STREAM_HOST) order_unseen(stream, used->home);
	CHECK_STATUS(HR_OK, hr_allocation_record_stream(c->allocator, (void *)(uintptr_t)used->address, stream));
	seen.what = "use of a block";
	bool write = !used->readers && below(2);
	work_on(stream, used->address, used->bytes, &used->contents, write);
	if (used->home == HR_STREAM_HOST) used->home = stream;
	else if (write) order_unseen(used->home, stream);
	else used->readers |= hr__stream_bit(stream); /* from now on it is only read */
}

static void free_block(struct context *c)
{
	if (!c->block_count) return;
	struct block *gone = &c->blocks[below(c->block_count)];
	seen.what = "hr_free";
	/* The streams of the request and of hr_allocation_record_stream are known. */
	hr_stream last = below(2) ? gone->home : HR_STREAM_HOST;
	CHECK_STATUS(HR_OK, hr_free(c->allocator, (void *)(uintptr_t)gone->address, last));
	*gone = c->blocks[--c->block_count];
}

/* ---- tensors ---- */

/* The address is taken only sometimes, so that tensors with pins are moved as well. */
static void use_tensor(struct tensor *used, hr_access access, hr_stream stream)
{
	void *at;
	if (used->contents == UNKNOWN) access = HR_OVERWRITE;
	seen.what = access == HR_READ ? "pin to read" : access == HR_WRITE ? "pin to write" : "pin to overwrite";
	begin_failing();
	hr_status status = end_failing(hr_tensor_pin(used->handle, access, stream));
	if (status) {
		CHECK(status == HR_OUT_OF_MEMORY || status == HR_DEVICE_ERROR);
		if (access == HR_OVERWRITE) used->contents = UNKNOWN;
		return;
	}
	if (access == HR_OVERWRITE) used->contents = UNKNOWN;
	if (stream != HR_STREAM_HOST) {
		order_unseen(stream, used->home);
		for (uint32_t i = 0; i < STREAMS && access != HR_READ; i++)
			if (used->readers & hr__stream_bit(here.streams[i])) order_unseen(stream, here.streams[i]);
	}
	if (access == HR_OVERWRITE || below(8)) {
		CHECK_STATUS(HR_OK, hr_tensor_get_address(used->handle, &at));
		use_memory(stream, (uintptr_t)at, used->bytes, &used->contents, access != HR_READ);
	}
	CHECK_STATUS(HR_OK, hr_tensor_unpin(used->handle, stream));
	if (access != HR_READ) used->readers = 0;
	if (access == HR_READ && stream != used->home) used->readers |= hr__stream_bit(stream);
	else if (access != HR_READ && stream != HR_STREAM_HOST) used->home = stream;
}

static void make_tensor(struct context *c)
{
	if (c->tensor_count == THINGS) return;
	struct tensor *made = &c->tensors[c->tensor_count];
	hr_tensor_options options;
	hr_tensor_options_init(&options);
	*made = (struct tensor){ .bytes = any_size(), .home = any_stream(), .fixed = !below(8) };
	if (made->fixed) made->bytes = (made->bytes + PAGE - 1) / PAGE * PAGE;
	options.bytes = made->bytes;
	options.fixed = made->fixed;
	CHECK_STATUS(HR_OK, hr_tensor_create(c->allocator, &options, &made->handle));
	c->tensor_count++;
	use_tensor(made, HR_OVERWRITE, made->home);
}

static struct tensor *any_tensor(struct context *c)
{
	return c->tensor_count ? &c->tensors[below(c->tensor_count)] : NULL;
}

static void destroy_tensor(struct context *c)
{
	struct tensor *gone = any_tensor(c);
	if (!gone) return;
	seen.what = "hr_tensor_destroy";
	begin_failing();
	if (!end_failing(hr_tensor_destroy(gone->handle))) *gone = c->tensors[--c->tensor_count];
}

/* Several tensors at a time, as ops have them. */
static void run_op(struct context *c)
{
	hr_pin pins[3];
	struct tensor *used[3];
	hr_stream stream = any_stream();
	uint32_t count = 0;
	void *at;
	for (uint32_t i = 0; i < c->tensor_count && count < 3; i++) {
		struct tensor *each = &c->tensors[(i + c->tensor_count / 2) % c->tensor_count];
		if (each->home != stream || each->readers || each->contents == UNKNOWN) continue;
		pins[count] = (hr_pin){ each->handle, count ? HR_READ : HR_WRITE };
		used[count++] = each;
	}
	if (!count) return;
	seen.what = "an op";
	begin_failing();
	if (end_failing(hr_tensor_pin_all(pins, count, stream))) return;
	for (uint32_t i = 0; i < count; i++) {
		CHECK_STATUS(HR_OK, hr_tensor_get_address(used[i]->handle, &at));
		work_on(stream, (uintptr_t)at, used[i]->bytes, &used[i]->contents, !i);
	}
	CHECK_STATUS(HR_OK, hr_tensor_unpin_all(pins, count, stream));
}

/* ---- streams and the rest ---- */

/* Destroys a stream and makes another, which may get its slot. */
static void replace_stream(void)
{
	uint32_t at = 1 + (uint32_t)below(STREAMS - 1);
	hr_stream gone = here.streams[at];
	seen.what = "hr_stream_destroy";
	CHECK_STATUS(HR_OK, hr_stream_destroy(here.handle, gone));
	CHECK_STATUS(HR_OK, hr_stream_create(here.handle, &here.streams[at]));
	for (uint32_t i = 0; i < CONTEXTS; i++) {
		struct context *c = &here.contexts[i];
		for (uint32_t k = 0; k < c->tensor_count; k++) {
			if (c->tensors[k].home == gone) c->tensors[k].home = here.streams[at];
			c->tensors[k].readers &= ~hr__stream_bit(gone);
		}
		for (uint32_t k = 0; k < c->block_count; k++)
			if (c->blocks[k].home == gone) c->blocks[k].home = HR_STREAM_HOST; /* its work is done */
	}
}

/* As the learned policy does, in advance: the tensor stays. */
static hr_status copy_to_host(hr_tensor named)
{
	hr_status status = HR_OK;
	hr__tensor *tensor = hr__tensor_of(named, &status);
	uint64_t word = hr__load_acquire(&tensor->word);
	if (hr__word_place(word) != HR__PLACE_RESIDENT || !hr__state_begin_eviction(tensor, word)) return HR_OK;
	status = hr__move_copy_to_host(tensor);
	hr__state_end_eviction(tensor, HR__PLACE_RESIDENT);
	return status;
}

static void other_call(struct context *c)
{
	struct tensor *of = any_tensor(c);
	uint64_t bytes;
	hr_status status = HR_OK;
	uint64_t which = below(11);
	begin_failing();
	if (which < 3 && of) {
		seen.what = "hr_tensor_evict";
		status = hr_tensor_evict(of->handle);
	} else if (which < 5 && of) {
		seen.what = "hr_tensor_prefetch";
		status = hr_tensor_prefetch(of->handle);
	} else if (which == 5) {
		seen.what = "hr_allocator_trim";
		status = hr_allocator_trim(c->allocator, &bytes);
	} else if (which == 6) {
		seen.what = "hr_lms_reclaim_inactive";
		status = hr_lms_reclaim_inactive(c->allocator, 0, &bytes);
	} else if (which > 7 && of) {
		seen.what = "a copy in advance";
		status = copy_to_host(of->handle);
	} else if (which == 7) {
		seen.what = "hr_lms_set_limit";
		status = hr_lms_set_limit(c->allocator, LIMIT / 4 * (2 + below(3)));
	}
	end_failing(status);
}

static void step(void)
{
	struct context *c = &here.contexts[below(CONTEXTS)];
	struct tensor *used = any_tensor(c);
	uint64_t which = below(64);
	if (which < 12) alloc_block(c, any_size());
	else if (which < 15) use_block(c);
	else if (which < 26) free_block(c);
	else if (which < 33) make_tensor(c);
	else if (which < 38) destroy_tensor(c);
	else if (which < 44) run_op(c);
	else if (which < 54 && used) use_tensor(used, (hr_access)(1 + below(3)), used->home);
	else if (which < 57 && used) use_tensor(used, (hr_access)(1 + below(3)), any_stream());
	else if (which < 58 && used) use_tensor(used, (hr_access)(1 + below(3)), HR_STREAM_HOST);
	else if (which < 63) other_call(c);
	else if (below(2)) CHECK_STATUS(HR_OK, hr__device_compute(here.device, any_stream(), below(20000000)));
	else if (!below(4)) replace_stream();
}

static void set_up(const char *policy, bool failures, bool defrag, uint64_t limit)
{
	const char *policies[CONTEXTS] = { policy, "learned", policy };
	memset(&here, 0, sizeof here);
	here.random = hr_test_seed() + 2 * failures + defrag;
	seen.failures = failures;
	register_detector();
	here.handle = fixture_device("SEEN:0");
	CHECK_STATUS(HR_OK, hr__device_named("SEEN:0", &here.device));
	for (uint32_t i = 1; i < STREAMS; i++) CHECK_STATUS(HR_OK, hr_stream_create(here.handle, &here.streams[i]));
	for (uint32_t i = 0; i < CONTEXTS; i++) {
		hr_lms_options options = fixture_lms_options(policies[i], 1024 * 1024 * KIB);
		hr_allocator_options allocator = fixture_allocator_options(limit);
		options.defrag = defrag;
		options.wait_ns = 0;
		allocator.stitch = !defrag; /* moving is tried where stitching is not enough */
		CHECK_STATUS(HR_OK, hr_allocator_create(here.handle, &allocator, &here.contexts[i].allocator));
		CHECK_STATUS(HR_OK, hr_lms_configure(here.contexts[i].allocator, &options));
	}
}

static void tear_down(void)
{
	for (uint32_t i = 0; i < CONTEXTS; i++) {
		hr_lms_stats stats = fixture_lms_stats(here.contexts[i].allocator);
		CHECK_STATUS(HR_OK, hr_lms_check(here.contexts[i].allocator));
		CHECK_STATUS(HR_OK, hr_allocator_check(here.contexts[i].allocator));
		CHECK_GT(stats.num_evictions, 0);
		CHECK_GT(stats.num_restores, 0);
		seen.what = "hr_allocator_destroy_all";
		CHECK_STATUS(HR_OK, hr_allocator_destroy_all(here.contexts[i].allocator));
	}
	CHECK_GT(seen.conflicts, seen.accesses);
	CHECK_STATUS(HR_OK, hr_shutdown());
	free(seen.cells);
	free(seen.events);
}

static void run(bool failures, bool defrag, uint64_t steps)
{
	set_up("lru", failures, defrag, LIMIT);
	for (uint64_t i = 0; i < steps; i++) step();
	if (failures) CHECK_GT(here.failed, 0);
	tear_down();
}

static void test_no_memory_is_used_before_its_last_user_is_done(void)
{
	run(false, false, hr_test_scaled(12000));
}

static void test_moves_on_the_device_lose_no_use(void)
{
	run(false, true, hr_test_scaled(8000));
}

static void test_failures_of_the_device_lose_no_use(void)
{
	run(true, true, hr_test_scaled(8000));
}

/* ---- training steps ---- */

#define LAYERS 10u

/* Reads the first tensor, if there is one, and writes the second. */
static void layer_op(struct tensor *read, struct tensor *written, hr_access access, hr_stream stream)
{
	hr_pin pins[] = { { written->handle, access }, { read ? read->handle : written->handle, HR_READ } };
	struct tensor *used[] = { read, written };
	void *at;
	seen.what = "an op of a step";
	CHECK_STATUS(HR_OK, hr_tensor_pin_all(pins, read ? 2 : 1, stream));
	for (uint32_t i = 0; i < 2; i++) {
		if (!used[i]) continue;
		CHECK_STATUS(HR_OK, hr_tensor_get_address(used[i]->handle, &at));
		work_on(stream, (uintptr_t)at, used[i]->bytes, &used[i]->contents, i);
	}
	CHECK_STATUS(HR_OK, hr_tensor_unpin_all(pins, read ? 2 : 1, stream));
}

static void make_at(struct context *c, uint32_t at, hr_stream home)
{
	c->tensors[at] = (struct tensor){ .bytes = CELL * (8 + at % 5 * 4), .home = home };
	c->tensors[at].handle = fixture_tensor(c->allocator, c->tensors[at].bytes);
}

/* Some ops of other sizes, which make free chunks join and split. */
static void disturb(struct context *c)
{
	for (uint64_t i = below(3); i > 0; i--) {
		if (below(2)) alloc_block(c, CELL * (1 + below(12)));
		else free_block(c);
	}
	while (c->block_count > 4) free_block(c);
}

/* All contexts advance layer by layer, on streams of their own: weights are 0 to LAYERS - 1, activations follow. */
static void train(void)
{
	for (uint32_t i = 0; i < CONTEXTS; i++) CHECK_STATUS(HR_OK, hr_step_begin(here.contexts[i].allocator));
	for (uint32_t layer = 0; layer < LAYERS; layer++)
		for (uint32_t i = 0; i < CONTEXTS; i++) {
			struct context *c = &here.contexts[i];
			make_at(c, LAYERS + layer, here.streams[i]);
			layer_op(&c->tensors[layer ? LAYERS + layer - 1 : 0], &c->tensors[LAYERS + layer], HR_OVERWRITE, here.streams[i]);
			disturb(c);
		}
	for (uint32_t layer = LAYERS; layer-- > 0;)
		for (uint32_t i = 0; i < CONTEXTS; i++) {
			struct context *c = &here.contexts[i];
			layer_op(&c->tensors[LAYERS + layer], &c->tensors[layer], HR_WRITE, here.streams[i]);
			seen.what = "hr_tensor_destroy";
			CHECK_STATUS(HR_OK, hr_tensor_destroy(c->tensors[LAYERS + layer].handle));
			disturb(c);
		}
	for (uint32_t i = 0; i < CONTEXTS; i++) CHECK_STATUS(HR_OK, hr_step_end(here.contexts[i].allocator));
}

static void test_planned_moves_lose_no_use(void)
{
	set_up("learned", false, false, 768 * KIB);
	for (uint32_t i = 0; i < CONTEXTS; i++)
		for (uint32_t layer = 0; layer < LAYERS; layer++) {
			make_at(&here.contexts[i], layer, here.streams[i]);
			layer_op(NULL, &here.contexts[i].tensors[layer], HR_OVERWRITE, here.streams[i]);
		}
	for (uint64_t step = hr_test_scaled(60); step > 0; step--) train();
	for (uint32_t i = 0; i < CONTEXTS; i++) {
		hr_lms_stats stats = fixture_lms_stats(here.contexts[i].allocator);
		CHECK_GT(stats.num_planned_evictions, 0);
		CHECK_GT(stats.num_prefetches, 0);
	}
	tear_down();
}

/* ---- tensors that own pages ---- */

/* A tensor of whole pages that was last written on [stream], while another stream got its memory, and was then copied to the host. */
static struct tensor copied_pages(struct context *c, hr_stream stream)
{
	struct tensor made = { .bytes = 2 * PAGE, .home = here.streams[3] };
	hr_tensor_options options;
	hr_tensor_options_init(&options);
	options.bytes = made.bytes;
	options.fixed = true;
	CHECK_STATUS(HR_OK, hr_tensor_create(c->allocator, &options, &made.handle));
	use_tensor(&made, HR_OVERWRITE, here.streams[3]);
	use_tensor(&made, HR_OVERWRITE, stream);
	CHECK_STATUS(HR_OK, copy_to_host(made.handle));
	return made;
}

static void test_the_host_reads_pages_that_were_copied_after_their_last_use(void)
{
	set_up("lru", false, false, LIMIT);
	struct tensor tensor = copied_pages(&here.contexts[0], here.streams[1]);
	void *at;
	CHECK_STATUS(HR_OK, hr_tensor_pin(tensor.handle, HR_READ, HR_STREAM_HOST));
	CHECK_STATUS(HR_OK, hr_tensor_get_address(tensor.handle, &at));
	work_on_host((uintptr_t)at, tensor.bytes, &tensor.contents, false);
	CHECK_STATUS(HR_OK, hr_tensor_unpin(tensor.handle, HR_STREAM_HOST));
}

static struct tensor recipe_input;

static hr_status recompute(void *user, const hr_recompute *call)
{
	struct tensor *output = user;
	void *to, *from;
	CHECK_STATUS(HR_OK, hr_tensor_get_address(call->inputs[0], &from));
	CHECK_STATUS(HR_OK, hr_tensor_get_address(call->outputs[0], &to));
	work_on(call->stream, (uintptr_t)from, recipe_input.bytes, &recipe_input.contents, false);
	work_on(call->stream, (uintptr_t)to, output->bytes, &output->contents, true);
	return HR_OK;
}

static void test_a_recipe_reads_pages_that_were_copied_after_their_last_use(void)
{
	set_up("lru", false, false, LIMIT);
	struct context *c = &here.contexts[0];
	struct tensor output = { .bytes = PAGE, .home = here.streams[2] };
	recipe_input = copied_pages(c, here.streams[1]);
	output.handle = fixture_tensor(c->allocator, output.bytes);
	use_tensor(&output, HR_OVERWRITE, output.home);
	hr_recipe recipe;
	hr_recipe_init(&recipe);
	recipe.recompute = recompute;
	recipe.user = &output;
	recipe.inputs = &recipe_input.handle;
	recipe.outputs = &output.handle;
	recipe.input_count = recipe.output_count = 1;
	CHECK_STATUS(HR_OK, hr_tensor_set_recipe(&recipe));
	CHECK_STATUS(HR_OK, hr_tensor_drop(output.handle));
	output.contents = UNKNOWN;
	CHECK_STATUS(HR_OK, hr_tensor_pin(output.handle, HR_READ, output.home));
	CHECK_NE(output.contents, UNKNOWN);
	CHECK_STATUS(HR_OK, hr_tensor_unpin(output.handle, output.home));
}

/* ---- the copies' slots ---- */

static void test_contexts_get_slots_of_both_kinds(void)
{
	set_up("lru", false, false, LIMIT);
	uint32_t last = 0;
	for (uint32_t i = 0; i < CONTEXTS; i++) {
		hr__lms *lms;
		CHECK_STATUS(HR_OK, hr__lms_of(here.contexts[i].allocator, &lms));
		last += (hr__stream_bit(lms->in_stream) & HR__COPY_STREAMS) != 0;
		last += (hr__stream_bit(lms->out_stream) & HR__COPY_STREAMS) != 0;
	}
	CHECK_EQ(last, 4);
}

TEST_MAIN(T(test_no_memory_is_used_before_its_last_user_is_done), T(test_moves_on_the_device_lose_no_use),
          T(test_failures_of_the_device_lose_no_use), T(test_planned_moves_lose_no_use),
          T(test_the_host_reads_pages_that_were_copied_after_their_last_use),
          T(test_a_recipe_reads_pages_that_were_copied_after_their_last_use),
          T(test_contexts_get_slots_of_both_kinds))
