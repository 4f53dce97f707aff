/* test_oom_holders.c - holders, compared with a sum over all blocks. */
#include "test.h"

#define KIB UINT64_C(1024)
#define NAMES 300u
#define BLOCKS 2000u

static hr_device device;
static hr_name names[NAMES];

static struct {
	void *address;
	hr_request request;
	uint64_t bytes; /* including rounding */
} blocks[BLOCKS];
static uint32_t count;

static void open_device(void)
{
	char text[32];
	CHECK_STATUS(HR_OK, hr_device_find("SIM:0", &device));
	for (uint32_t i = 0; i < NAMES; i++) {
		snprintf(text, sizeof text, "name_%u", i);
		names[i] = i ? hr_name_intern(text) : HR_NAME_NONE;
	}
}

/* ---- a custom allocator that returns ascending addresses ---- */

static hr_status custom_alloc(void *state, size_t bytes, size_t alignment, hr_stream stream, void **out)
{
	static uint64_t next = 1 << 20;
	(void)state;
	(void)stream;
	next = (next + alignment - 1) & ~(uint64_t)(alignment - 1);
	*out = (void *)(uintptr_t)next;
	next += bytes;
	return HR_OK;
}

static hr_status custom_free(void *state, void *address, size_t bytes, hr_stream stream)
{
	(void)state;
	(void)address;
	(void)bytes;
	(void)stream;
	return HR_OK;
}

static hr_allocator open_allocator(const char *kind)
{
	hr_allocator_options options;
	hr_allocator allocator;
	hr_allocator_options_init(&options);
	options.kind = kind;
	CHECK_STATUS(HR_OK, hr_allocator_create(device, &options, &allocator));
	return allocator;
}

static void allocate(hr_allocator allocator, uint64_t *random)
{
	hr_allocation_info info = { .struct_size = sizeof info };
	hr_request request = HR_REQUEST(1 + hr_rand(random) % (hr_rand(random) % 8 ? 4 * KIB : 900 * KIB));
	request.op = names[hr_rand(random) % NAMES];
	request.scope = names[hr_rand(random) % 20];
	request.tag = hr_rand(random) % 5 ? names[hr_rand(random) % 3] : UINT32_MAX - 7; /* not a valid name */
	request.dtype = HR_DTYPE_FLOAT32;
	CHECK_STATUS(HR_OK, hr_alloc(allocator, &request, &blocks[count].address));
	CHECK_STATUS(HR_OK, hr_allocation_get_info(allocator, blocks[count].address, &info));
	blocks[count].request = request;
	blocks[count++].bytes = info.bytes;
}

static hr_name name_of(uint32_t block, hr_holder_kind kind)
{
	const hr_request *request = &blocks[block].request;
	hr_name name = kind == HR_BY_OP ? request->op : kind == HR_BY_SCOPE ? request->scope : request->tag;
	return name == UINT32_MAX - 7 ? HR_NAME_OTHER : name;
}

/* What a name holds, from a scan of every block. */
static hr_holder naive(hr_name name, hr_holder_kind kind)
{
	hr_holder sum = { .name = name };
	for (uint32_t i = 0; i < count; i++) {
		if (name_of(i, kind) != name) continue;
		sum.bytes += (int64_t)blocks[i].bytes;
		sum.count++;
	}
	return sum;
}

static void check_holders(hr_allocator allocator)
{
	static hr_holder all[NAMES + 2], some[NAMES + 2];
	size_t found, part;
	for (int kind = HR_BY_OP; kind <= HR_BY_TAG; kind++) {
		uint32_t blocks_seen = 0;
		CHECK_STATUS(HR_OK, hr_allocator_get_holders(allocator, (hr_holder_kind)kind, all, NAMES + 2, &found));
		for (size_t i = 0; i < found; i++) {
			hr_holder expected = naive(all[i].name, (hr_holder_kind)kind);
			CHECK_EQ(all[i].bytes, expected.bytes);
			CHECK_EQ(all[i].count, expected.count);
			CHECK_GT(all[i].count, 0);
			if (i) CHECK(all[i - 1].bytes > all[i].bytes || (all[i - 1].bytes == all[i].bytes && all[i - 1].name < all[i].name));
			blocks_seen += all[i].count;
		}
		CHECK_EQ(blocks_seen, count);
		/* With less capacity, the first ones are returned. */
		for (size_t capacity = 0; capacity <= found; capacity += 1 + capacity / 3) {
			CHECK_STATUS(HR_OK, hr_allocator_get_holders(allocator, (hr_holder_kind)kind, some, capacity, &part));
			CHECK_EQ(part, capacity);
			CHECK_BYTES(some, all, capacity * sizeof *some);
		}
	}
}

static void check_largest(hr_allocator allocator)
{
	hr_allocation_info largest[70];
	size_t found;
	CHECK_STATUS(HR_OK, hr_allocator_get_largest(allocator, largest, 70, &found));
	CHECK_EQ(found, count < 64 ? count : 64);
	uint32_t above = 0;
	for (uint32_t i = 0; i < count && found; i++) above += blocks[i].bytes > largest[found - 1].bytes;
	CHECK_LT(above, found + (found == 0)); /* no larger one was left out */
	for (size_t i = 0; i < found; i++) {
		hr_allocation_info info = { .struct_size = sizeof info };
		CHECK_EQ(largest[i].struct_size, sizeof info);
		CHECK_STATUS(HR_OK, hr_allocation_get_info(allocator, largest[i].address, &info));
		CHECK_EQ(largest[i].bytes, info.bytes);
		CHECK_EQ(largest[i].requested, info.requested);
		CHECK_EQ(largest[i].op, info.op);
		CHECK_EQ(largest[i].scope, info.scope);
		CHECK_EQ(largest[i].tag, info.tag);
		CHECK_EQ(largest[i].shape, info.shape);
		CHECK_EQ((int)largest[i].dtype, (int)info.dtype);
		CHECK_EQ(largest[i].streams, info.streams);
		if (i) CHECK_LE(largest[i].bytes, largest[i - 1].bytes);
		for (size_t j = 0; j < i; j++) CHECK_NE(largest[i].address, largest[j].address);
	}
}

static void check_kind(const char *kind)
{
	uint64_t random = hr_test_seed();
	hr_allocator allocator = open_allocator(kind);
	check_holders(allocator);
	check_largest(allocator);
	for (int round = 0; round < 12; round++) {
		while (count < BLOCKS && hr_rand(&random) % 200) allocate(allocator, &random);
		while (count && hr_rand(&random) % 100) {
			uint32_t at = (uint32_t)(hr_rand(&random) % count);
			CHECK_STATUS(HR_OK, hr_free(allocator, blocks[at].address, HR_STREAM_DEFAULT));
			blocks[at] = blocks[--count];
		}
		check_holders(allocator);
		check_largest(allocator);
	}
	CHECK_STATUS(HR_OK, hr_shutdown());
}

static void test_holders_of_bfc_are_the_sum_over_blocks(void)
{
	open_device();
	check_kind("bfc");
}

static void test_holders_of_direct_are_the_sum_over_blocks(void)
{
	open_device();
	check_kind("direct");
}

static void test_holders_of_a_custom_allocator_are_the_sum_over_blocks(void)
{
	hr_custom_allocator table = { .struct_size = sizeof table, .alloc = custom_alloc, .free = custom_free };
	open_device();
	CHECK_STATUS(HR_OK, hr_allocator_register("counting", &table, NULL));
	check_kind("counting");
}

/* Blocks that are allocated or freed meanwhile may be counted or not; all others are. */
static hr_allocator shared;
static _Atomic(bool) done;

static void churn_or_look(void *argument, unsigned index)
{
	(void)argument;
	if (index == 0) {
		for (uint64_t i = 0; i < hr_test_scaled(300); i++) {
			hr_holder holders[8];
			size_t found;
			CHECK_STATUS(HR_OK, hr_allocator_get_holders(shared, HR_BY_OP, holders, 8, &found));
			CHECK_GE(found, 1);
			CHECK_EQ(holders[0].name, names[1]);
			CHECK_EQ(holders[0].bytes, 6000 * 64 * (int64_t)KIB);
			CHECK_EQ(holders[0].count, 6000);
		}
		atomic_store(&done, true);
		return;
	}
	uint64_t random = index;
	while (!atomic_load(&done)) {
		void *some[16];
		for (int i = 0; i < 16; i++) {
			hr_request request = HR_REQUEST(1 + hr_rand(&random) % (80 * KIB));
			request.op = names[1 + index];
			CHECK_STATUS(HR_OK, hr_alloc(shared, &request, &some[i]));
		}
		for (int i = 0; i < 16; i++) CHECK_STATUS(HR_OK, hr_free(shared, some[i], HR_STREAM_DEFAULT));
	}
}

static void test_holders_can_be_read_while_threads_allocate(void)
{
	void *block;
	open_device();
	shared = open_allocator("bfc");
	for (int i = 0; i < 6000; i++) {
		hr_request request = HR_REQUEST(64 * KIB);
		request.op = names[1];
		CHECK_STATUS(HR_OK, hr_alloc(shared, &request, &block));
	}
	hr_test_threads(3, churn_or_look, NULL);
	CHECK_STATUS(HR_OK, hr_allocator_check(shared));
	CHECK_STATUS(HR_OK, hr_shutdown());
}

static void test_mistakes_are_reported(void)
{
	size_t found;
	hr_holder holder;
	open_device();
	hr_allocator allocator = open_allocator("bfc"), never = { 0 };
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_allocator_get_holders(allocator, HR_BY_OP, NULL, 1, &found));
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_allocator_get_holders(allocator, HR_BY_OP, &holder, 1, NULL));
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_allocator_get_holders(allocator, (hr_holder_kind)3, &holder, 1, &found));
	CHECK_STATUS(HR_INVALID_HANDLE, hr_allocator_get_holders(never, HR_BY_OP, &holder, 1, &found));
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr_allocator_get_largest(allocator, NULL, 1, &found));
	CHECK_STATUS(HR_INVALID_HANDLE, hr_allocator_get_largest(never, NULL, 0, &found));
	CHECK_STATUS(HR_OK, hr_shutdown());
}

TEST_MAIN(T(test_holders_of_bfc_are_the_sum_over_blocks), T(test_holders_of_direct_are_the_sum_over_blocks),
          T(test_holders_of_a_custom_allocator_are_the_sum_over_blocks), T(test_holders_can_be_read_while_threads_allocate),
          T(test_mistakes_are_reported))
