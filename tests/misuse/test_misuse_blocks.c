/* test_misuse_blocks.c - mistakes with requests and blocks. Each test is a small program that makes one. */
#include "support_misuse.h"

#define ADDRESS(block) ((unsigned long long)(uintptr_t)(block))

/* ---- freeing ---- */

static void test_double_free_of_a_large_block(void)
{
	hr_allocator a = allocator();
	void *block = block_of(a, 1 << 20);
	CHECK_STATUS(HR_OK, hr_free(a, block, 0));
	EXPECT(HR_NOT_ALLOCATED, hr_free(a, block, 0), "SIM:0_bfc has no block at %#llx: it was freed already, or comes from another allocator",
	       ADDRESS(block));
	still_works(a, 0);
}

static void test_double_free_of_a_block_in_the_cache(void)
{
	hr_allocator a = allocator();
	void *block = block_of(a, 100);
	CHECK_STATUS(HR_OK, hr_free(a, block, 0));
	EXPECT(HR_NOT_ALLOCATED, hr_free(a, block, 0), "SIM:0_bfc has no block at %#llx: it was freed already", ADDRESS(block));
	still_works(a, 0);
}

static void test_double_free_after_a_trim(void)
{
	hr_allocator a = allocator();
	void *block = block_of(a, 100);
	CHECK_STATUS(HR_OK, hr_free(a, block, 0));
	CHECK_STATUS(HR_OK, hr_allocator_trim(a, NULL));
	EXPECT(HR_NOT_ALLOCATED, hr_free(a, block, 0), "SIM:0_bfc has no block at %#llx: it was freed already, or comes from another allocator",
	       ADDRESS(block));
	still_works(a, 0);
}

static void test_double_free_with_a_direct_allocator(void)
{
	hr_allocator_options options;
	hr_allocator a;
	hr_allocator_options_init(&options);
	options.kind = "direct";
	CHECK_STATUS(HR_OK, hr_allocator_create(device(), &options, &a));
	void *block = block_of(a, 1000);
	CHECK_STATUS(HR_OK, hr_free(a, block, 0));
	EXPECT(HR_NOT_ALLOCATED, hr_free(a, block, 0),
	       "SIM:0_direct has no block at %#llx: it was freed already, or comes from another allocator", ADDRESS(block));
	still_works(a, 0);
}

static void test_free_of_an_interior_pointer(void)
{
	hr_allocator a = allocator();
	char *block = block_of(a, 1 << 20);
	EXPECT(HR_NOT_ALLOCATED, hr_free(a, block + 256, 0),
	       "SIM:0_bfc has no block at %#llx: it was freed already, or comes from another allocator", ADDRESS(block + 256));
	EXPECT(HR_NOT_ALLOCATED, hr_free(a, block + 1, 0),
	       "SIM:0_bfc has no block at %#llx: it was freed already, or comes from another allocator", ADDRESS(block + 1));
	still_works(a, 1);
}

static void test_free_of_the_end_of_a_block(void)
{
	hr_allocator a = allocator();
	char *block = block_of(a, 300);
	EXPECT(HR_NOT_ALLOCATED, hr_free(a, block + 512 * 1024, 0),
	       "SIM:0_bfc has no block at %#llx: it was freed already, or comes from another allocator", ADDRESS(block + 512 * 1024));
	still_works(a, 1);
}

static void test_free_of_memory_from_malloc(void)
{
	hr_allocator a = allocator();
	void *block = malloc(64);
	EXPECT(HR_NOT_ALLOCATED, hr_free(a, block, 0), "SIM:0_bfc has no block at %#llx: it was freed already, or comes from another allocator",
	       ADDRESS(block));
	free(block);
	still_works(a, 0);
}

static void test_free_of_a_variable(void)
{
	hr_allocator a = allocator();
	int variable = 0;
	EXPECT(HR_NOT_ALLOCATED, hr_free(a, &variable, 0),
	       "SIM:0_bfc has no block at %#llx: it was freed already, or comes from another allocator", ADDRESS(&variable));
	still_works(a, 0);
}

static void test_free_with_another_allocator(void)
{
	hr_allocator a = allocator(), other;
	hr_allocator_options options;
	hr_device sim;
	hr_allocator_options_init(&options);
	options.name = "the other";
	CHECK_STATUS(HR_OK, hr_device_find("SIM:0", &sim));
	CHECK_STATUS(HR_OK, hr_allocator_create(sim, &options, &other));
	void *block = block_of(a, 1000);
	EXPECT(HR_NOT_ALLOCATED, hr_free(other, block, 0),
	       "the other has no block at %#llx: it was freed already, or comes from another allocator", ADDRESS(block));
	still_works(a, 1);
	still_works(other, 0);
}

static void test_free_after_close(void)
{
	hr_allocator a = allocator();
	void *block = block_of(a, 1000);
	CHECK_STATUS(HR_OK, hr_allocator_destroy_all(a));
	EXPECT(HR_INVALID_HANDLE, hr_free(a, block, 0), "no allocator has the handle %#llx: it was destroyed, or never created", (unsigned long long)a.id);
}

static void test_free_on_a_stream_that_never_was(void)
{
	hr_allocator a = allocator();
	void *block = block_of(a, 1000);
	EXPECT(HR_INVALID_ARGUMENT, hr_free(a, block, 7), "hr_free: SIM:0 has no stream 7");
	EXPECT(HR_INVALID_ARGUMENT, hr_free(a, block, 64), "hr_free: SIM:0 has no stream 64");
	EXPECT(HR_INVALID_ARGUMENT, hr_free(a, block, UINT32_MAX), "hr_free: SIM:0 has no stream 4294967295");
	still_works(a, 1);
}

static void test_free_of_null_is_allowed(void)
{
	hr_allocator a = allocator();
	CHECK_STATUS(HR_OK, hr_free(a, NULL, 0));
	block_of(a, 1000);
	CHECK_STATUS(HR_OK, hr_free(a, NULL, 0));
	still_works(a, 1);
}

/* ---- requests ---- */

static void test_alloc_after_close(void)
{
	hr_allocator a = allocator();
	void *out = &a;
	block_of(a, 1000);
	CHECK_STATUS(HR_OK, hr_allocator_destroy_all(a));
	EXPECT(HR_INVALID_HANDLE, hr_alloc_bytes(a, 100, &out), "no allocator has the handle %#llx: it was destroyed, or never created",
	       (unsigned long long)a.id);
	CHECK_EQ(out, &a);
}

static void test_alloc_with_a_zero_handle(void)
{
	void *out;
	EXPECT(HR_INVALID_HANDLE, hr_alloc_bytes((hr_allocator){ 0 }, 100, &out), "the allocator handle is zero: it was never set");
}

static void test_alloc_with_a_made_up_handle(void)
{
	hr_allocator a = allocator();
	void *out;
	EXPECT(HR_INVALID_HANDLE, hr_alloc_bytes((hr_allocator){ a.id + 256 }, 100, &out),
	       "no allocator has the handle %#llx: it was destroyed, or never created", (unsigned long long)a.id + 256);
	EXPECT(HR_INVALID_HANDLE, hr_alloc_bytes((hr_allocator){ UINT64_MAX }, 100, &out),
	       "no allocator has the handle 0xffffffffffffffff: it was destroyed, or never created");
}

static void test_alloc_of_zero_bytes(void)
{
	hr_allocator a = allocator();
	void *out = &a;
	for (int i = 0; i < 2; i++) { /* the first call of a thread uses another path */
		EXPECT(HR_INVALID_ARGUMENT, hr_alloc_bytes(a, 0, &out), "SIM:0_bfc: the request is for 0 bytes; request at least 1");
		CHECK_EQ(out, &a);
		still_works(a, 0);
	}
}

static void test_alloc_of_size_max(void)
{
	hr_allocator a = allocator();
	void *out = &a;
	for (int i = 0; i < 2; i++) {
		EXPECT(HR_INVALID_ARGUMENT, hr_alloc_bytes(a, SIZE_MAX, &out),
		       "SIM:0_bfc: 18446744073709551615 bytes were requested; the maximum is 2^48");
		CHECK_EQ(out, &a);
		still_works(a, 0);
	}
}

static void test_alloc_of_a_byte_too_many(void)
{
	hr_allocator a = allocator();
	void *out;
	EXPECT(HR_INVALID_ARGUMENT, hr_alloc_bytes(a, (UINT64_C(1) << 48) + 1, &out),
	       "SIM:0_bfc: 281474976710657 bytes were requested; the maximum is 2^48");
	EXPECT(HR_OUT_OF_MEMORY, hr_alloc_bytes(a, UINT64_C(1) << 48, &out),
	       "SIM:0_bfc cannot allocate 256.0 TiB: the request alone exceeds the 1.0 GiB that SIM:0 has; request less");
	still_works(a, 0);
}

static void test_alloc_of_more_than_there_is(void)
{
	hr_allocator a = allocator();
	void *out;
	block_of(a, 900 * MIB);
	EXPECT(HR_OUT_OF_MEMORY, hr_alloc_bytes(a, 200 * MIB, &out),
	       "SIM:0_bfc cannot allocate 200.0 MiB: 900.0 MiB of 1.0 GiB are in use; 0 B are free in 0 blocks, the largest 0 B, and the "
	       "device can "
	       "give 124.0 MiB more; free memory or request less");
	still_works(a, 1);
}

static void test_alignment_that_is_not_a_power_of_two(void)
{
	hr_allocator a = allocator();
	hr_request request = HR_REQUEST(100);
	void *out;
	request.alignment = 3;
	for (int i = 0; i < 2; i++) {
		EXPECT(HR_INVALID_ARGUMENT, hr_alloc(a, &request, &out), "SIM:0_bfc: alignment 3 is not a power of two");
		still_works(a, 0);
	}
}

static void test_alignment_that_is_too_large(void)
{
	hr_allocator a = allocator();
	hr_request request = HR_REQUEST(100);
	void *out;
	request.alignment = (size_t)1 << 41;
	EXPECT(HR_INVALID_ARGUMENT, hr_alloc(a, &request, &out), "SIM:0_bfc: alignment 2199023255552 is above 2^40");
	request.alignment = (size_t)1 << 63;
	EXPECT(HR_INVALID_ARGUMENT, hr_alloc(a, &request, &out), "SIM:0_bfc: alignment 9223372036854775808 is above 2^40");
	still_works(a, 0);
}

static void test_alignment_that_no_address_has(void)
{
	hr_allocator a = allocator();
	hr_request request = HR_REQUEST(100);
	void *out;
	request.alignment = (size_t)1 << 40; /* allowed, but the allocator does not have that many addresses */
	hr_status status = hr_alloc(a, &request, &out);
	if (status == HR_OK) CHECK_EQ((uintptr_t)out % request.alignment, 0);
	else CHECK_STATUS(HR_OUT_OF_MEMORY, status);
	still_works(a, status == HR_OK);
}

static void test_request_without_struct_size(void)
{
	hr_allocator a = allocator();
	hr_request request = { .bytes = 100 };
	void *out;
	for (int i = 0; i < 2; i++) {
		EXPECT(HR_INVALID_ARGUMENT, hr_alloc(a, &request, &out),
		       "hr_alloc: hr_request.struct_size is 0; set it with HR_REQUEST()");
		still_works(a, 0);
	}
}

static void test_null_request(void)
{
	hr_allocator a = allocator();
	void *out;
	for (int i = 0; i < 2; i++) {
		EXPECT(HR_INVALID_ARGUMENT, hr_alloc(a, NULL, &out), "hr_alloc: the request is NULL");
		still_works(a, 0);
	}
}

static void test_null_out(void)
{
	hr_allocator a = allocator();
	hr_request request = HR_REQUEST(100);
	for (int i = 0; i < 2; i++) {
		EXPECT(HR_INVALID_ARGUMENT, hr_alloc(a, &request, NULL), "hr_alloc: out is NULL");
		still_works(a, 0);
	}
}

static void test_alloc_on_a_stream_that_never_was(void)
{
	hr_allocator a = allocator();
	hr_request request = HR_REQUEST(100);
	void *out;
	request.stream = 5;
	for (int i = 0; i < 2; i++) {
		EXPECT(HR_INVALID_ARGUMENT, hr_alloc(a, &request, &out),
		       "SIM:0_bfc: SIM:0 has no stream 5; create it with hr_stream_create");
		still_works(a, 0);
	}
}

static void test_alloc_on_a_destroyed_stream(void)
{
	hr_allocator a = allocator();
	hr_request request = HR_REQUEST(100);
	hr_device sim;
	void *out;
	CHECK_STATUS(HR_OK, hr_device_find("SIM:0", &sim));
	CHECK_STATUS(HR_OK, hr_stream_create(sim, &request.stream));
	CHECK_STATUS(HR_OK, hr_alloc(a, &request, &out));
	CHECK_STATUS(HR_OK, hr_stream_destroy(sim, request.stream));
	EXPECT(HR_INVALID_ARGUMENT, hr_alloc(a, &request, &out), "SIM:0_bfc: SIM:0 has no stream 1; create it with hr_stream_create");
	EXPECT(HR_INVALID_ARGUMENT, hr_free(a, out, request.stream), "hr_free: SIM:0 has no stream 1");
	EXPECT(HR_INVALID_ARGUMENT, hr_allocation_record_stream(a, out, request.stream), "hr_allocation_record_stream: SIM:0 has no stream 1");
	EXPECT(HR_INVALID_ARGUMENT, hr_stream_destroy(sim, request.stream), "SIM:0 has no stream 1; create it with hr_stream_create");
	CHECK_STATUS(HR_OK, hr_free(a, out, HR_STREAM_DEFAULT)); /* memory that was used on it can still be freed */
	still_works(a, 0);
}

/* ---- queries of blocks ---- */

static void test_info_about_an_address_without_a_block(void)
{
	hr_allocator a = allocator();
	hr_allocation_info info = { .struct_size = sizeof info };
	void *block = block_of(a, 100);
	EXPECT(HR_NOT_ALLOCATED, hr_allocation_get_info(a, &info, &info),
	       "SIM:0_bfc has no block at %#llx: it was freed already, or comes from another allocator", ADDRESS(&info));
	CHECK_STATUS(HR_OK, hr_free(a, block, 0));
	EXPECT(HR_NOT_ALLOCATED, hr_allocation_get_info(a, block, &info),
	       "SIM:0_bfc has no block at %#llx: it was freed already, or comes from another allocator", ADDRESS(block));
	EXPECT(HR_NOT_ALLOCATED, hr_allocation_get_info(a, NULL, &info),
	       "SIM:0_bfc has no block at 0: it was freed already, or comes from another allocator");
	still_works(a, 0);
}

static void test_info_without_struct_size(void)
{
	hr_allocator a = allocator();
	hr_allocation_info info = { 0 };
	void *block = block_of(a, 100);
	EXPECT(HR_INVALID_ARGUMENT, hr_allocation_get_info(a, block, &info),
	       "hr_allocation_get_info: hr_allocation_info.struct_size is 0; call hr_allocation_info_init first");
	EXPECT(HR_INVALID_ARGUMENT, hr_allocation_get_info(a, block, NULL), "hr_allocation_get_info: hr_allocation_info is NULL");
	still_works(a, 1);
}

static void test_record_stream_of_an_address_without_a_block(void)
{
	hr_allocator a = allocator();
	void *block = block_of(a, 100);
	CHECK_STATUS(HR_OK, hr_free(a, block, 0));
	EXPECT(HR_NOT_ALLOCATED, hr_allocation_record_stream(a, block, 0),
	       "SIM:0_bfc has no block at %#llx: it was freed already, or comes from another allocator", ADDRESS(block));
	still_works(a, 0);
}

static void test_names_for_an_address_without_a_block(void)
{
	hr_allocator a = allocator();
	hr_name tag = hr_name_intern("weights");
	void *block = block_of(a, 100), *inside = (char *)block + 1;
	EXPECT(HR_NOT_ALLOCATED, hr_allocation_set_names(a, inside, 0, tag),
	       "SIM:0_bfc has no block at %#llx: it was freed already, or comes from another allocator", ADDRESS(inside));
	CHECK_STATUS(HR_OK, hr_allocation_set_names(a, block, hr_name_intern("encoder"), tag));
	CHECK_STATUS(HR_OK, hr_allocation_set_names(a, block, 0, 0));
	hr_allocation_info info;
	hr_allocation_info_init(&info);
	CHECK_STATUS(HR_OK, hr_allocation_get_info(a, block, &info));
	CHECK_EQ(info.tag, tag);
	CHECK_EQ(info.scope, hr_name_intern("encoder"));
	CHECK_STATUS(HR_OK, hr_free(a, block, 0));
	EXPECT(HR_NOT_ALLOCATED, hr_allocation_set_names(a, block, 0, tag),
	       "SIM:0_bfc has no block at %#llx: it was freed already, or comes from another allocator", ADDRESS(block));
	still_works(a, 0);
}

/* ---- custom allocators that break their contract ---- */

static struct {
	void *gives;
	hr_status alloc_status, free_status;
	int freed;
} custom;

static hr_status custom_alloc(void *state, size_t bytes, size_t alignment, hr_stream stream, void **out)
{
	(void)state;
	(void)bytes;
	(void)alignment;
	(void)stream;
	if (custom.alloc_status == HR_OK) *out = custom.gives;
	return custom.alloc_status;
}

static hr_status custom_free(void *state, void *address, size_t bytes, hr_stream stream)
{
	(void)state;
	(void)address;
	(void)bytes;
	(void)stream;
	custom.freed++;
	return custom.free_status;
}

static hr_allocator custom_allocator(void)
{
	hr_custom_allocator table = { .struct_size = sizeof table, .alloc = custom_alloc, .free = custom_free };
	hr_allocator_options options;
	hr_allocator a;
	hr_device sim = device();
	CHECK_STATUS(HR_OK, hr_allocator_register("mine", &table, NULL));
	hr_allocator_options_init(&options);
	options.kind = "mine";
	CHECK_STATUS(HR_OK, hr_allocator_create(sim, &options, &a));
	return a;
}

static void nothing_is_allocated(hr_allocator a)
{
	hr_stats stats;
	hr_stats_init(&stats);
	CHECK_STATUS(HR_OK, hr_allocator_get_stats(a, &stats));
	CHECK_EQ(stats.num_live, 0);
	CHECK_EQ(stats.bytes_in_use, 0);
	CHECK_EQ(stats.bytes_reserved, 0);
	CHECK_STATUS(HR_OK, hr_allocator_check(a));
}

static void test_custom_allocator_that_gives_a_misaligned_address(void)
{
	hr_allocator a = custom_allocator();
	void *out;
	custom.gives = (void *)0x10010;
	EXPECT(HR_CORRUPT, hr_alloc_bytes(a, 100, &out),
	       "the custom allocator \"mine\" gave address 0x10010, which is not a multiple of 256");
	CHECK_EQ(custom.freed, 1); /* the block is returned to it */
	nothing_is_allocated(a);
}

static void test_custom_allocator_that_gives_null(void)
{
	hr_allocator a = custom_allocator();
	void *out;
	EXPECT(HR_CORRUPT, hr_alloc_bytes(a, 100, &out),
	       "the custom allocator \"mine\" gave address (nil), which is not a multiple of 256");
	CHECK_EQ(custom.freed, 0);
	nothing_is_allocated(a);
}

static void test_custom_allocator_that_gives_an_address_twice(void)
{
	hr_allocator a = custom_allocator();
	void *out, *again = &a;
	custom.gives = (void *)0x10000;
	CHECK_STATUS(HR_OK, hr_alloc_bytes(a, 100, &out));
	EXPECT(HR_CORRUPT, hr_alloc_bytes(a, 100, &again),
	       "the custom allocator \"mine\" gave address 0x10000, which is allocated already");
	CHECK_EQ(again, &a);
	CHECK_EQ(custom.freed, 0); /* the first block is still there */
	CHECK_STATUS(HR_OK, hr_free(a, out, 0));
	nothing_is_allocated(a);
}

static void test_custom_allocator_that_cannot_allocate(void)
{
	hr_allocator a = custom_allocator();
	void *out;
	custom.alloc_status = HR_OUT_OF_MEMORY;
	EXPECT(HR_OUT_OF_MEMORY, hr_alloc_bytes(a, 100, &out), "SIM:0_mine: the custom allocator \"mine\" could not give 100 bytes");
	nothing_is_allocated(a);
}

static void test_custom_allocator_that_cannot_free(void)
{
	hr_allocator a = custom_allocator();
	void *out;
	custom.gives = (void *)0x10000;
	CHECK_STATUS(HR_OK, hr_alloc_bytes(a, 100, &out));
	custom.free_status = HR_DEVICE_ERROR;
	EXPECT(HR_DEVICE_ERROR, hr_free(a, out, 0), "SIM:0_mine: the custom allocator \"mine\" could not free the block at 0x10000");
	CHECK_STATUS(HR_OK, hr_allocator_check(a));
	custom.free_status = HR_OK;
	CHECK_STATUS(HR_OK, hr_free(a, out, 0)); /* the failed call changed nothing */
	nothing_is_allocated(a);
}

static void test_custom_allocator_above_its_limit(void)
{
	hr_allocator a = custom_allocator();
	void *out;
	custom.gives = (void *)0x10000;
	EXPECT(HR_OUT_OF_MEMORY, hr_alloc_bytes(a, 1025 * MIB, &out),
	       "SIM:0_mine cannot allocate 1,074,790,400 B: 0 B of its limit of 1,073,741,824 B are in use; free memory or raise the limit");
	nothing_is_allocated(a);
}

TEST_MAIN(T(test_double_free_of_a_large_block), T(test_double_free_of_a_block_in_the_cache), T(test_double_free_after_a_trim),
          T(test_double_free_with_a_direct_allocator), T(test_free_of_an_interior_pointer), T(test_free_of_the_end_of_a_block),
          T(test_free_of_memory_from_malloc), T(test_free_of_a_variable), T(test_free_with_another_allocator),
          T(test_free_after_close), T(test_free_on_a_stream_that_never_was), T(test_free_of_null_is_allowed),
          T(test_alloc_after_close), T(test_alloc_with_a_zero_handle), T(test_alloc_with_a_made_up_handle),
          T(test_alloc_of_zero_bytes), T(test_alloc_of_size_max), T(test_alloc_of_a_byte_too_many),
          T(test_alloc_of_more_than_there_is), T(test_alignment_that_is_not_a_power_of_two), T(test_alignment_that_is_too_large),
          T(test_alignment_that_no_address_has), T(test_request_without_struct_size), T(test_null_request), T(test_null_out),
          T(test_alloc_on_a_stream_that_never_was), T(test_alloc_on_a_destroyed_stream), T(test_info_about_an_address_without_a_block),
          T(test_info_without_struct_size), T(test_record_stream_of_an_address_without_a_block), T(test_names_for_an_address_without_a_block),
          T(test_custom_allocator_that_gives_a_misaligned_address), T(test_custom_allocator_that_gives_null),
          T(test_custom_allocator_that_gives_an_address_twice), T(test_custom_allocator_that_cannot_allocate),
          T(test_custom_allocator_that_cannot_free), T(test_custom_allocator_above_its_limit))
