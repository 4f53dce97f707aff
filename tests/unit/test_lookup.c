/* test_lookup.c - from an address to its chunk: no entry is lost under any sequence of changes; readers without a lock see no wrong
 * chunk. */
#include "core/memory/bfc/lookup.h"
#include "core/os/os.h"
#include "test.h"

#define RECORDS 20000u

typedef struct table {
	hr__lookup lookup;
	hr__chunk *chunks; /* chunks[i] has the address of entry i */
} table;

static void open_table(table *t)
{
	void *memory;
	CHECK_EQ(hr__os()->alloc(RECORDS * sizeof(hr__chunk), &memory), 0);
	t->chunks = memory;
	CHECK_STATUS(HR_OK, hr__lookup_init(&t->lookup, t->chunks));
}

static void close_table(table *t)
{
	hr__lookup_destroy(&t->lookup);
	hr__os()->free(t->chunks, RECORDS * sizeof(hr__chunk));
}

static void insert(table *t, hr__chunk_id id, uint64_t address)
{
	hr__lookup_table *retired = NULL;
	hr__store_relaxed(&t->chunks[id].address, address);
	if (!hr__lookup_has_room(&t->lookup)) {
		uint64_t before = hr__lookup_bytes(&t->lookup);
		CHECK_STATUS(HR_OK, hr__lookup_grow(&t->lookup, &retired));
		CHECK_GT(hr__lookup_bytes(&t->lookup), before);
		CHECK(hr__lookup_has_room(&t->lookup));
	}
	hr__lookup_free(retired);
	hr__lookup_insert(&t->lookup, address, id);
}

static hr__chunk_id find(const table *t, uint64_t address)
{
	return hr__lookup_find(&t->lookup, t->chunks, address);
}

/* Addresses like those of allocators: a few strides, so that many collide. */
static uint64_t address_of(hr__chunk_id id, uint64_t stride)
{
	return UINT64_C(0x100000000000) + id * stride;
}

static void test_lookup_finds_what_was_inserted_and_nothing_else(void)
{
	static const uint64_t strides[] = { 16, 256, 4096, UINT64_C(2) << 20, UINT64_C(1) << 33 };
	static bool in[RECORDS];
	for (size_t s = 0; s < sizeof strides / sizeof *strides; s++) {
		table t;
		uint64_t seed = hr_test_seed() + s, live = 0;
		memset(in, 0, sizeof in);
		open_table(&t);
		CHECK_EQ(find(&t, address_of(1, strides[s])), 0);
		for (uint64_t i = 0; i < hr_test_scaled(200000); i++) {
			/* Alternates between almost empty and full, so that full tables are tested too. */
			uint64_t most = (i / 20000) % 2 ? RECORDS - 1 : 200;
			hr__chunk_id id = (hr__chunk_id)hr_rand_below(&seed, most) + 1;
			if (in[id]) hr__lookup_remove(&t.lookup, address_of(id, strides[s]), id);
			else insert(&t, id, address_of(id, strides[s]));
			live += in[id] ? (uint64_t)-1 : 1;
			in[id] = !in[id];
			CHECK_EQ(t.lookup.count, live);
			hr__chunk_id other = (hr__chunk_id)hr_rand_below(&seed, most) + 1;
			CHECK_EQ(find(&t, address_of(other, strides[s])), in[other] ? other : 0);
			CHECK_EQ(find(&t, address_of(other, strides[s]) + 8), 0);
		}
		for (hr__chunk_id id = 1; id < RECORDS; id++) CHECK_EQ(find(&t, address_of(id, strides[s])), in[id] ? id : 0);
		close_table(&t);
	}
}

static void test_lookup_grows_to_any_size_without_losing_any(void)
{
	table t;
	open_table(&t);
	for (hr__chunk_id id = 1; id < RECORDS; id++) insert(&t, id, address_of(id, 256));
	for (hr__chunk_id id = 1; id < RECORDS; id++) CHECK_EQ(find(&t, address_of(id, 256)), id);
	CHECK_LE(hr__lookup_bytes(&t.lookup), RECORDS * 17); /* at least a quarter full */
	for (hr__chunk_id id = 1; id < RECORDS; id++) hr__lookup_remove(&t.lookup, address_of(id, 256), id);
	for (hr__chunk_id id = 1; id < RECORDS; id++) CHECK_EQ(find(&t, address_of(id, 256)), 0);
	CHECK_EQ(t.lookup.count, 0);
	close_table(&t);
}

/* ---- one thread writes, others read ---- */

#define STEADY 8u
#define CROWD (STEADY + 20u)

typedef struct race {
	table table;
	uint64_t addresses[CROWD + 1];
	_Atomic(bool) over;
	_Atomic(uint64_t) found;
} race;

/* Addresses that all hash to the last few slots of the table, and so are stored far from them. */
static void crowd(race *r)
{
	uint64_t address = UINT64_C(0x100000000000);
	const hr__lookup_table *first = hr__load_relaxed(&r->table.lookup.table);
	for (hr__chunk_id id = 1; id <= CROWD; id++) {
		do address += 256;
		while (hr__lookup_hash(address) >> first->shift < first->mask - 3);
		r->addresses[id] = address;
		hr__store_relaxed(&r->table.chunks[id].address, address);
	}
}

static void read_or_write(void *argument, unsigned index)
{
	race *r = argument;
	uint64_t seed = hr_test_seed() * 10 + index;
	if (index == 0) { /* adds and removes others around the constant entries, which must stay where they are */
		for (uint64_t i = 0; i < hr_test_scaled(400000); i++) {
			hr__chunk_id id = (hr__chunk_id)(STEADY + 1 + hr_rand_below(&seed, 20));
			bool there = find(&r->table, r->addresses[id]) != 0;
			if (there) hr__lookup_remove(&r->table.lookup, r->addresses[id], id);
			else hr__lookup_insert(&r->table.lookup, r->addresses[id], id);
		}
		atomic_store(&r->over, true);
		return;
	}
	do { /* at least once: on one processor the writer may finish before a reader runs */
		hr__chunk_id id = (hr__chunk_id)hr_rand_below(&seed, STEADY) + 1;
		CHECK_EQ(find(&r->table, r->addresses[id]), id);
		atomic_fetch_add(&r->found, 1);
	} while (!atomic_load(&r->over));
}

static void test_lookup_shows_a_reader_his_own_chunk_always(void)
{
	static race r;
	open_table(&r.table);
	crowd(&r);
	for (hr__chunk_id id = 1 + STEADY; id <= CROWD; id += 2) hr__lookup_insert(&r.table.lookup, r.addresses[id], id);
	for (hr__chunk_id id = 1; id <= STEADY; id++) hr__lookup_insert(&r.table.lookup, r.addresses[id], id);
	hr_test_threads(3, read_or_write, &r);
	printf("# found %llu times\n", (unsigned long long)r.found);
	CHECK_GT(r.found, 0);
	for (hr__chunk_id id = 1; id <= STEADY; id++) CHECK_EQ(find(&r.table, r.addresses[id]), id);
	close_table(&r.table);
}

TEST_MAIN(T(test_lookup_finds_what_was_inserted_and_nothing_else), T(test_lookup_grows_to_any_size_without_losing_any),
          T(test_lookup_shows_a_reader_his_own_chunk_always))
