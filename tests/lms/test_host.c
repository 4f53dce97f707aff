/* test_host.c - the host tier: contents survive in pinned memory and in the file, limits hold, nothing leaks.
 *
 * Runs on the emulated device, on the host itself (no streams), on the CUDA backend with the stand-in driver of tests/fake_cuda
 * ($HEADROOM_FAKE_CUDA), and on the simulated device, which has only the pinned tier. File calls go through a table of the test's
 * own on top of the system's table: it tracks the length of the file, and injects disk errors. */
#include <dirent.h>
#include <sys/stat.h>

#include "fixture.h"
#include "core/device/internal.h"
#include "fake_cuda/load.h"
#include "fault_os.h"
#include "core/lms/host/host.h"
#include "test.h"

#define KIB UINT64_C(1024)
#define MIB (KIB * KIB)
#define GIB (KIB * MIB)
#define PAGE ((uint64_t)hr__os_page_size())

/* ---- devices ---- */

typedef struct subject {
	const char *name;
	void (*set_up)(void);
	bool streams;
	bool real; /* backed by memory */
} subject;

static void set_up_cuda(void)
{
	fake_cuda_load("whole");
}

static void set_up_emulated(void)
{
	fixture_configure_emulated(64 * MIB, 64 * KIB, 0);
}

static void set_up_nothing(void)
{
}

static const subject emulated = { "GPU:0", set_up_emulated, true, true };
static const subject simulated = { "SIM:0", set_up_nothing, true, false };
static const subject cpu = { "CPU:0", set_up_nothing, false, true };
static const subject cuda = { "GPU:0", set_up_cuda, true, true };

static const subject *now;
static hr__device *device;
static hr_device handle;
static hr_allocator on_card;

/* ---- the disk ---- */

static struct {
	hr__os_table table;
	const hr__os_table *under;
	_Atomic(uint64_t) length;                                         /* of the file */
	_Atomic(int) create_error, extend_error, write_error, read_error; /* 0 = it works */
	_Atomic(uint64_t) missing;                                        /* bytes that a read is short by */
	_Atomic(uint64_t) writes, reads;                                  /* since they were set to 0 */
	_Atomic(uint64_t) calls_before_write;                             /* calls of the device before the first write */
} disk;

static int disk_create(const char *path, int *fd)
{
	int error = atomic_load(&disk.create_error);
	if (error == EEXIST) atomic_store(&disk.create_error, 0); /* the next name is free */
	if (!error) atomic_store(&disk.length, 0);
	return error ? error : disk.under->file_create(path, fd);
}

static int disk_extend(int fd, uint64_t bytes)
{
	int error = atomic_load(&disk.extend_error);
	if (!error) error = disk.under->file_extend(fd, bytes);
	if (!error) atomic_store(&disk.length, bytes);
	return error;
}

static _Atomic(bool) gate;

static int disk_write(int fd, const void *from, size_t bytes, uint64_t offset)
{
	int error = atomic_load(&disk.write_error);
	CHECK_LE(offset + bytes, atomic_load(&disk.length)); /* only within allocated disk space */
	if (atomic_fetch_add(&disk.writes, 1) == 0) atomic_store(&disk.calls_before_write, hr_backend_calls());
	return error ? error : disk.under->file_write(fd, from, bytes, offset);
}

static int disk_read(int fd, void *to, size_t bytes, uint64_t offset, size_t *got)
{
	int error = atomic_load(&disk.read_error);
	uint64_t missing = atomic_load(&disk.missing);
	if (atomic_fetch_add(&disk.reads, 1) == 1) atomic_store(&gate, true); /* the second */
	if (!error) error = disk.under->file_read(fd, to, bytes - (missing < bytes ? missing : bytes), offset, got);
	return error;
}

/* On top of the current table. */
static void lay_disk_over(void)
{
	disk.under = hr__os();
	disk.table = *disk.under;
	disk.table.file_create = disk_create;
	disk.table.file_extend = disk_extend;
	disk.table.file_write = disk_write;
	disk.table.file_read = disk_read;
	hr__os_replace(&disk.table);
}

static char directory[256];

static void make_directory(void)
{
	const char *parent = getenv("TMPDIR");
	snprintf(directory, sizeof directory, "%.200s/headroom-host-XXXXXX", parent ? parent : "/tmp");
	CHECK(mkdtemp(directory) != NULL);
}

/* Counts entries of the directory; [remove] deletes them. */
static int entries(bool remove)
{
	char path[600];
	int count = 0;
	DIR *open = opendir(directory);
	CHECK(open != NULL);
	for (const struct dirent *entry; (entry = readdir(open)) != NULL;) {
		if (entry->d_name[0] == '.') continue;
		count++;
		snprintf(path, sizeof path, "%s/%s", directory, entry->d_name);
		if (remove) CHECK_EQ(unlink(path), 0);
	}
	closedir(open);
	return count;
}

/* ---- beginning and end ---- */

static void begin(const subject *on)
{
	now = on;
	hr_fault_os_install();
	lay_disk_over();
	now->set_up();
	CHECK_STATUS(HR_OK, hr__device_named(now->name, &device));
	handle = hr__device_handle(device);
	CHECK_STATUS(HR_OK, hr_allocator_create(handle, NULL, &on_card));
	if (!directory[0]) make_directory();
}

/* Nothing is held, on the disk neither. */
static void end_round(void)
{
	CHECK_STATUS(HR_OK, hr_allocator_destroy(on_card));
	CHECK_STATUS(HR_OK, hr_shutdown());
	CHECK(hr_fault_os_is_clean());
	hr_fault_os_uninstall();
	if (now != &cuda) return;
	fake_cuda_live live;
	fake.get_live(&live);
	CHECK_EQ(live.retained + live.reservations + live.handles + live.mappings + live.plain + live.registered + live.streams +
	             live.events,
	         0);
}

static void end(void)
{
	end_round();
	CHECK_EQ(rmdir(directory), 0); /* it is empty */
	directory[0] = 0;
}

static hr__host *open_host(uint64_t limit, bool spills, uint64_t spill_limit)
{
	hr__host *host = NULL;
	hr__host_options options = { .limit = limit, .spill_dir = spills ? directory : NULL, .spill_limit = spill_limit };
	CHECK_STATUS(HR_OK, hr__host_open(device, &options, &host));
	CHECK_EQ(entries(false), 0);
	CHECK_STATUS(HR_OK, hr__host_check(host));
	return host;
}

static void close_host(hr__host *host)
{
	hr__device *pinned;
	hr__host_usage usage = hr__host_get_usage(host);
	CHECK_STATUS(HR_OK, hr__host_check(host));
	CHECK_EQ(usage.pinned_bytes, 0);
	CHECK_EQ(usage.spilled_bytes, 0);
	CHECK_STATUS(HR_OK, hr__host_close(host));
	CHECK_STATUS(HR_OK, hr__device_pinned(device, 0, &pinned));
	CHECK_EQ(hr__page_pool_reserved(pinned), 0);
}

static hr_stream new_stream(void)
{
	hr_stream stream = HR_STREAM_DEFAULT;
	if (now->streams) CHECK_STATUS(HR_OK, hr_stream_create(handle, &stream));
	return stream;
}

/* ---- contents ---- */

static void make_pattern(uint64_t seed, unsigned char *out, uint64_t bytes)
{
	uint64_t state = seed * 0x9E3779B97F4A7C15u + 1;
	for (uint64_t i = 0; i < bytes; i += 8) {
		state = state * 6364136223846793005u + 1442695040888963407u;
		uint64_t word = state ^ state >> 29;
		memcpy(out + i, &word, bytes - i < 8 ? bytes - i : 8);
	}
}

static void *block_of(uint64_t bytes)
{
	void *block = NULL;
	CHECK_STATUS(HR_OK, hr_alloc_bytes(on_card, bytes, &block));
	return block;
}

static unsigned char *scratch(uint64_t bytes)
{
	unsigned char *memory = malloc(bytes);
	CHECK(memory != NULL);
	return memory;
}

/* Writes the pattern of [seed] to device memory and waits for it. */
static void put(void *block, uint64_t bytes, uint64_t seed, hr_stream stream)
{
	unsigned char *pattern = scratch(bytes);
	make_pattern(seed, pattern, bytes);
	CHECK_STATUS(HR_OK, hr_stream_copy(handle, block, pattern, bytes, HR_COPY_TO_DEVICE, stream));
	CHECK_STATUS(HR_OK, hr_stream_synchronize(handle, stream));
	free(pattern);
}

static bool holds(const void *block, uint64_t bytes, uint64_t seed, hr_stream stream)
{
	unsigned char *pattern = scratch(bytes), *found = scratch(bytes);
	make_pattern(seed, pattern, bytes);
	memset(found, 0, bytes);
	CHECK_STATUS(HR_OK, hr_stream_copy(handle, found, block, bytes, HR_COPY_TO_HOST, stream));
	CHECK_STATUS(HR_OK, hr_stream_synchronize(handle, stream));
	bool same = !now->real || memcmp(found, pattern, bytes) == 0;
	free(pattern);
	free(found);
	return same;
}

static uint64_t address_of(const void *block)
{
	return (uint64_t)(uintptr_t)block;
}

static hr_status store_block(hr__host *host, uint64_t address, uint64_t bytes, hr_stream stream, hr__host_copy *copy)
{
	hr_request request = HR_REQUEST(bytes);
	request.stream = stream;
	return hr__host_store(host, address, &request, copy);
}

/* Stores the pattern of [seed], then wipes the device memory, in stream order. */
static hr_status store(hr__host *host, void *block, uint64_t bytes, uint64_t seed, hr_stream stream, hr__host_copy *copy)
{
	put(block, bytes, seed, stream);
	hr_status status = store_block(host, address_of(block), bytes, stream, copy);
	CHECK_STATUS(HR_OK, hr_stream_fill(handle, block, 0xee, bytes, stream));
	return status;
}

static void check_load(hr__host *host, const hr__host_copy *copy, void *block, uint64_t seed, hr_stream stream)
{
	CHECK_STATUS(HR_OK, hr_stream_fill(handle, block, 0xdd, copy->bytes, stream));
	CHECK_STATUS(HR_OK, hr__host_load(host, copy, address_of(block), stream));
	CHECK(holds(block, copy->bytes, seed, stream));
}

static bool is_zero(const hr__host_copy *copy)
{
	return !copy->address && !copy->offset && !copy->bytes && !copy->room;
}

/* ---- both tiers ---- */

#define COPIES 24

static const uint64_t sizes[] = { 1, 255, 4 * KIB, 4 * KIB + 1, 64 * KIB, 100000, 300 * KIB, MIB };

static uint64_t size_of(int i)
{
	return sizes[(unsigned)i % (sizeof sizes / sizeof sizes[0])];
}

/* [limit] of pinned memory for 5 MiB of copies. */
static void check_tiers(const subject *on, uint64_t limit, bool spills)
{
	hr__host_copy copies[COPIES] = { { 0 } };
	int64_t pinned = 0, spilled = 0;
	begin(on);
	hr__host *host = open_host(limit, spills, 0);
	hr_stream stream = new_stream();
	void *block = block_of(MIB);
	for (int i = 0; i < COPIES; i++) {
		CHECK_STATUS(HR_OK, store(host, block, size_of(i), (uint64_t)i, stream, &copies[i]));
		CHECK_EQ(copies[i].bytes, size_of(i));
		*(copies[i].address ? &pinned : &spilled) += (int64_t)copies[i].bytes;
		hr__host_usage usage = hr__host_get_usage(host);
		CHECK_EQ(usage.pinned_bytes, pinned);
		CHECK_EQ(usage.spilled_bytes, spilled);
		CHECK_LE(usage.reserved_bytes, limit);
		CHECK_LE(usage.pinned_bytes, usage.reserved_bytes);
		CHECK_EQ(entries(false), 0);
	}
	CHECK_EQ(spilled > 0, limit < 5 * MIB);
	CHECK_STATUS(HR_OK, hr__host_check(host));
	for (int i = COPIES - 1; i >= 0; i--) check_load(host, &copies[i], block, (uint64_t)i, stream);
	for (int i = 0; i < COPIES; i += 2) {
		check_load(host, &copies[i], block, (uint64_t)i, stream); /* the copy stays valid */
		hr__host_drop(host, &copies[i], stream);
		CHECK(is_zero(&copies[i]));
		hr__host_drop(host, &copies[i], stream); /* has no effect */
	}
	for (int i = 1; i < COPIES; i += 2) {
		check_load(host, &copies[i], block, (uint64_t)i, stream);
		hr__host_drop(host, &copies[i], stream);
	}
	hr__host_usage usage = hr__host_get_usage(host);
	CHECK_EQ(usage.peak_pinned_bytes, pinned);
	CHECK_EQ(usage.peak_spilled_bytes, spilled);
	close_host(host);
	CHECK_STATUS(HR_OK, hr_free(on_card, block, stream));
	end();
}

static void check_tiers_on(const subject *on)
{
	check_tiers(on, 8 * MIB, false);
	check_tiers(on, 8 * MIB, true);
	check_tiers(on, 2 * MIB, true); /* some in each tier */
	check_tiers(on, PAGE, true);    /* only one buffer */
}

static void test_contents_survive_in_both_tiers(void)
{
	check_tiers_on(&emulated);
	check_tiers_on(&cpu);
}

static void test_contents_survive_on_the_stand_in_driver(void)
{
	check_tiers_on(&cuda);
}

/* Pinned memory of any size: a ring of one to four buffers, of one or more pages each. */
static void test_the_ring_fits_into_any_pool(void)
{
	static const uint64_t pages[] = { 1, 2, 3, 4, 5, 7, 16, 63, 64, 65, 1000 };
	for (size_t i = 0; i < sizeof pages / sizeof pages[0]; i++) {
		hr__host_copy small = { 0 }, large = { 0 };
		begin(&emulated);
		hr__host *host = open_host(pages[i] * PAGE + 7, true, 0);
		CHECK_LE(hr__host_get_usage(host).reserved_bytes, pages[i] * PAGE);
		uint64_t bytes = pages[i] * PAGE * 3 + 5; /* larger than all pinned memory */
		void *block = block_of(bytes);
		CHECK_STATUS(HR_OK, store(host, block, bytes, 1, 0, &large));
		CHECK_EQ(large.address, 0);
		CHECK_STATUS(HR_OK, store(host, block, 1, 2, 0, &small));
		check_load(host, &small, block, 2, 0);
		check_load(host, &large, block, 1, 0);
		hr__host_drop(host, &small, 0);
		hr__host_drop(host, &large, 0);
		close_host(host);
		CHECK_STATUS(HR_OK, hr_free(on_card, block, 0));
		end();
	}
}

static void test_the_simulated_device_has_pinned_memory_only(void)
{
	hr__host_copy copies[8] = { { 0 } };
	hr__host *none = NULL;
	begin(&simulated);
	CHECK_STATUS(HR_UNSUPPORTED, hr__host_open(device, &(hr__host_options){ .limit = 8 * GIB, .spill_dir = directory }, &none));
	CHECK_CONTAINS(hr_last_message(), "SIM:0");
	CHECK_CONTAINS(hr_last_message(), "spill_dir");
	CHECK(none == NULL);
	hr__host *host = open_host(8 * GIB, false, 0); /* more than this machine may have */
	void *block = block_of(GIB);
	hr_stream stream = new_stream();
	for (int i = 0; i < 8; i++) {
		CHECK_STATUS(HR_OK, store_block(host, address_of(block), GIB, stream, &copies[i]));
		CHECK_EQ(hr__host_get_usage(host).pinned_bytes, (uint64_t)(i + 1) * GIB);
		CHECK_STATUS(HR_OK, hr__host_load(host, &copies[i], address_of(block), stream));
	}
	CHECK_EQ(hr__host_get_usage(host).reserved_bytes, 8 * GIB);
	hr__host_copy more = { 0 };
	CHECK_STATUS(HR_OUT_OF_MEMORY, store_block(host, address_of(block), 1, stream, &more));
	CHECK_CONTAINS(hr_last_message(), "the host pool of SIM:0 is full");
	CHECK_CONTAINS(hr_last_message(), "raise host_limit");
	CHECK(is_zero(&more));
	for (int i = 0; i < 8; i++) hr__host_drop(host, &copies[i], stream);
	close_host(host);
	CHECK_STATUS(HR_OK, hr_free(on_card, block, stream));
	end();
}

/* ---- full ---- */

static void test_a_full_pool_without_a_file_says_so(void)
{
	hr__host_copy all = { 0 }, more = { 0 };
	begin(&emulated);
	hr__host *host = open_host(MIB, false, 0);
	void *block = block_of(2 * MIB);
	CHECK_STATUS(HR_OK, store(host, block, MIB, 1, 0, &all));
	CHECK_STATUS(HR_OUT_OF_MEMORY, store(host, block, 1, 2, 0, &more));
	CHECK_CONTAINS(hr_last_message(), "the host pool of GPU:0 is full");
	CHECK_CONTAINS(hr_last_message(), "raise host_limit");
	CHECK(is_zero(&more));
	CHECK_STATUS(HR_OUT_OF_MEMORY, store(host, block, 2 * MIB, 2, 0, &more));
	CHECK_CONTAINS(hr_last_message(), "exceeds its limit of 1.0 MiB; raise host_limit");
	check_load(host, &all, block, 1, 0);
	CHECK_EQ(hr__host_get_usage(host).peak_pinned_bytes, MIB);
	CHECK_STATUS(HR_IN_USE, hr__host_close(host));
	CHECK_CONTAINS(hr_last_message(), "1.0 MiB in pinned memory, 0 B in the file");
	hr__host_drop(host, &all, 0);
	close_host(host);
	CHECK_STATUS(HR_OK, hr__host_close(NULL));
	CHECK_STATUS(HR_OK, hr_free(on_card, block, 0));
	end();
}

static void test_a_full_file_says_so(void)
{
	hr__host_copy copies[4] = { { 0 } }, more = { 0 };
	begin(&emulated);
	hr__host *host = open_host(4 * PAGE, true, 4 * MIB + 100); /* the ring uses the whole pool */
	void *block = block_of(5 * MIB);
	for (int i = 0; i < 4; i++) CHECK_STATUS(HR_OK, store(host, block, MIB - 1, (uint64_t)i, 0, &copies[i]));
	CHECK_STATUS(HR_OUT_OF_MEMORY, store(host, block, 1, 9, 0, &more));
	CHECK_CONTAINS(hr_last_message(), directory);
	CHECK_CONTAINS(hr_last_message(), "4,194,304 B of its spill_limit of 4,194,404 B are in use");
	CHECK_CONTAINS(hr_last_message(), "raise spill_limit");
	CHECK_STATUS(HR_OUT_OF_MEMORY, store(host, block, 5 * MIB, 9, 0, &more));
	CHECK_CONTAINS(hr_last_message(), "5.0 MiB requested");
	CHECK_STATUS(HR_IN_USE, hr__host_close(host));
	CHECK_CONTAINS(hr_last_message(), "4.0 MiB in the file");
	/* Freed space is reused, and two adjacent ranges as one. */
	hr__host_drop(host, &copies[1], 0);
	CHECK_STATUS(HR_OUT_OF_MEMORY, store(host, block, MIB + 1, 9, 0, &more));
	hr__host_drop(host, &copies[2], 0);
	CHECK_STATUS(HR_OK, store(host, block, 2 * MIB, 9, 0, &more));
	check_load(host, &more, block, 9, 0);
	check_load(host, &copies[0], block, 0, 0);
	check_load(host, &copies[3], block, 3, 0);
	CHECK_EQ(atomic_load(&disk.length), 4 * MIB);
	CHECK_STATUS(HR_OK, hr__host_check(host));
	hr__host_drop(host, &more, 0);
	hr__host_drop(host, &copies[0], 0);
	hr__host_drop(host, &copies[3], 0);
	close_host(host);
	CHECK_STATUS(HR_OK, hr_free(on_card, block, 0));
	end();
}

/* Free space in the middle was not used, in favour of the end of the file, which then could not grow. */
static void test_a_full_disk_keeps_existing_copies(void)
{
	hr__host_copy copies[3] = { { 0 } }, more = { 0 };
	begin(&emulated);
	hr__host *host = open_host(4 * PAGE, true, 4 * MIB);
	void *block = block_of(4 * MIB);
	for (int i = 0; i < 3; i++) CHECK_STATUS(HR_OK, store(host, block, MIB, (uint64_t)i, 0, &copies[i]));
	static const int full[] = { ENOSPC, EDQUOT, EFBIG };
	for (size_t i = 0; i < 3; i++) {
		atomic_store(&disk.extend_error, full[i]);
		CHECK_STATUS(HR_OUT_OF_MEMORY, store(host, block, MIB, 9, 0, &more));
		CHECK_CONTAINS(hr_last_message(), directory);
		CHECK_CONTAINS(hr_last_message(), "is full: 1.0 MiB requested, spill_limit is 4.0 MiB");
		CHECK_CONTAINS(hr_last_message(), hr__os_error(full[i]));
		CHECK(is_zero(&more));
	}
	hr__host_drop(host, &copies[0], 0);
	hr__host_drop(host, &copies[1], 0);
	CHECK_STATUS(HR_OK, store(host, block, 64 * KIB, 9, 0, &more)); /* the end would have been the better place */
	CHECK_EQ(more.offset, 0);
	check_load(host, &more, block, 9, 0);
	hr__host_drop(host, &more, 0);
	/* Space that was allocated, but is missing when it is written. */
	atomic_store(&disk.extend_error, 0);
	atomic_store(&disk.write_error, ENOSPC);
	CHECK_STATUS(HR_OUT_OF_MEMORY, store(host, block, MIB, 9, 0, &more));
	CHECK_CONTAINS(hr_last_message(), "make room there, or raise host_limit");
	atomic_store(&disk.write_error, 0);
	CHECK_EQ(hr__host_get_usage(host).spilled_bytes, MIB);
	CHECK_STATUS(HR_OK, hr__host_check(host));
	check_load(host, &copies[2], block, 2, 0);
	hr__host_drop(host, &copies[2], 0);
	close_host(host);
	/* Unset options are reported as such. */
	host = open_host(4 * PAGE, true, 0);
	atomic_store(&disk.extend_error, ENOSPC);
	CHECK_STATUS(HR_OUT_OF_MEMORY, store(host, block, MIB, 9, 0, &more));
	CHECK_CONTAINS(hr_last_message(), "spill_limit is not set");
	atomic_store(&disk.extend_error, 0);
	close_host(host);
	CHECK_STATUS(HR_OK, hr_free(on_card, block, 0));
	end();
}

static void test_a_disk_failure_is_reported(void)
{
	hr__host_copy kept = { 0 }, more = { 0 };
	begin(&emulated);
	hr__host *host = open_host(4 * PAGE, true, 0);
	void *block = block_of(MIB);
	CHECK_STATUS(HR_OK, store(host, block, 100000, 1, 0, &kept));
	atomic_store(&disk.write_error, EIO);
	CHECK_STATUS(HR_IO, store(host, block, 100000, 2, 0, &more));
	CHECK_CONTAINS(hr_last_message(), "could not be written: EIO");
	CHECK_CONTAINS(hr_last_message(), directory);
	atomic_store(&disk.write_error, 0);
	atomic_store(&disk.extend_error, EIO);
	CHECK_STATUS(HR_IO, store(host, block, MIB, 2, 0, &more));
	CHECK_CONTAINS(hr_last_message(), "could not be extended: EIO");
	atomic_store(&disk.extend_error, 0);
	CHECK(is_zero(&more));
	atomic_store(&disk.read_error, EIO);
	CHECK_STATUS(HR_IO, hr__host_load(host, &kept, address_of(block), 0));
	CHECK_CONTAINS(hr_last_message(), "could not be read: EIO");
	atomic_store(&disk.read_error, 0);
	atomic_store(&disk.missing, 1);
	CHECK_STATUS(HR_IO, hr__host_load(host, &kept, address_of(block), 0));
	CHECK_CONTAINS(hr_last_message(), "is too short: 1 byte missing at offset ");
	atomic_store(&disk.missing, 0);
	check_load(host, &kept, block, 1, 0);
	CHECK_EQ(hr__host_get_usage(host).spilled_bytes, 100000);
	hr__host_drop(host, &kept, 0);
	close_host(host);
	CHECK_STATUS(HR_OK, hr_free(on_card, block, 0));
	end();
}

/* ---- opening ---- */

static void refuse(const char *spill_dir, const char *why)
{
	hr__host *none = NULL;
	CHECK_STATUS(HR_IO, hr__host_open(device, &(hr__host_options){ .limit = MIB, .spill_dir = spill_dir }, &none));
	CHECK_CONTAINS(hr_last_message(), "spill_dir");
	CHECK_CONTAINS(hr_last_message(), why);
	CHECK(none == NULL);
}

static void test_a_directory_that_cannot_be_written_is_refused(void)
{
	char path[300], *long_path = (char *)scratch(9000);
	begin(&emulated);
	snprintf(path, sizeof path, "%s/missing", directory);
	refuse(path, path);
	refuse(path, "ENOENT");
	snprintf(path, sizeof path, "%s/file", directory);
	int fd = open(path, O_CREAT | O_WRONLY, 0600);
	CHECK(fd >= 0);
	close(fd);
	refuse(path, path);
	refuse(path, "ENOTDIR");
	CHECK_EQ(unlink(path), 0);
	refuse("/proc/self", "/proc/self");
	refuse("", "ENOENT");
	memset(long_path, 'x', 8999);
	long_path[8999] = 0;
	refuse(long_path, "ENAMETOOLONG");
	free(long_path);
	if (geteuid() != 0) {
		CHECK_EQ(chmod(directory, 0500), 0);
		refuse(directory, "EACCES");
		CHECK_EQ(chmod(directory, 0700), 0);
	}
	/* A name that exists is skipped. */
	atomic_store(&disk.create_error, EEXIST);
	close_host(open_host(MIB, true, 0));
	end();
}

static void test_impossible_limits_are_refused(void)
{
	hr__host *none = NULL;
	begin(&emulated);
	CHECK_STATUS(HR_BAD_LIMIT, hr__host_open(device, &(hr__host_options){ .limit = 1 }, &none));
	CHECK_CONTAINS(hr_last_message(), "host_limit");
	CHECK_STATUS(HR_BAD_LIMIT,
	             hr__host_open(device, &(hr__host_options){ .limit = MIB, .spill_dir = directory, .spill_limit = 4095 }, &none));
	CHECK_CONTAINS(hr_last_message(), "spill_limit");
	/* A card has one limit for its pinned memory. */
	hr__host *first = open_host(MIB, true, 0);
	CHECK_STATUS(HR_IN_USE, hr__host_open(device, &(hr__host_options){ .limit = 2 * MIB }, &none));
	CHECK(none == NULL);
	hr__host *second = open_host(MIB, false, 0); /* two may share it if there is room */
	CHECK_STATUS(HR_OK, hr__host_close(second));
	close_host(first);
	end();
}

/* ---- streams ---- */

static void wait_at_gate(void *open)
{
	while (!atomic_load((_Atomic(bool) *)open)) nanosleep(&(struct timespec){ .tv_nsec = 100000 }, NULL);
}

/* Blocks [stream]: work queued from now on waits for the gate. */
static void hold(hr_stream stream)
{
	hr_native_stream native;
	atomic_store(&gate, false);
	CHECK_STATUS(HR_OK, hr__stream_native(device, stream, &native));
	CHECK_STATUS(HR_OK, hr__call_host_call(device->physical, wait_at_gate, &gate, native));
}

/* By then, everything that does not wait for the gate is done. */
static void *open_later(void *unused)
{
	nanosleep(&(struct timespec){ .tv_nsec = 20000000 }, NULL);
	atomic_store(&gate, true);
	return unused;
}

static pthread_t open_on_a_thread(void)
{
	pthread_t opener;
	CHECK_EQ(pthread_create(&opener, NULL, open_later, NULL), 0);
	return opener;
}

/* Blocks of one size in a pool that holds only one: the second copy gets the block of the first, which its stream is still using.
 * */
static void check_recycling(const subject *on)
{
	hr__host_copy first = { 0 }, second = { 0 };
	begin(on);
	hr__host *host = open_host(MIB, false, 0);
	hr_stream a = new_stream(), b = new_stream();
	void *blocks[3] = { block_of(MIB), block_of(MIB), block_of(MIB) };
	put(blocks[1], MIB, 2, b);
	/* Still being read: from the host to blocks[2]. */
	CHECK_STATUS(HR_OK, store(host, blocks[0], MIB, 1, a, &first));
	CHECK_STATUS(HR_OK, hr_stream_synchronize(handle, a));
	hold(a);
	CHECK_STATUS(HR_OK, hr__host_load(host, &first, address_of(blocks[2]), a)); /* neither call waits */
	uint64_t where = first.address;
	hr__host_drop(host, &first, a);
	CHECK_STATUS(HR_OK, store_block(host, address_of(blocks[1]), MIB, b, &second));
	CHECK_EQ(second.address, where);
	open_later(NULL);
	CHECK(holds(blocks[2], MIB, 1, a));
	check_load(host, &second, blocks[0], 2, b);
	hr__host_drop(host, &second, b);
	/* Still being read by one stream, and dropped by another that read it too. */
	CHECK_STATUS(HR_OK, store(host, blocks[0], MIB, 4, b, &first));
	CHECK_STATUS(HR_OK, hr_stream_synchronize(handle, b));
	hold(a);
	CHECK_STATUS(HR_OK, hr__host_load(host, &first, address_of(blocks[2]), a));
	CHECK_STATUS(HR_OK, hr__host_load(host, &first, address_of(blocks[0]), b));
	hr__host_drop(host, &first, b);
	CHECK_STATUS(HR_OK, store_block(host, address_of(blocks[1]), MIB, b, &second));
	open_later(NULL);
	CHECK(holds(blocks[2], MIB, 4, a));
	CHECK(holds(blocks[0], MIB, 4, b));
	check_load(host, &second, blocks[0], 2, b);
	hr__host_drop(host, &second, b);
	/* Still being written, and dropped on another stream than the blocked one. */
	put(blocks[0], MIB, 3, a);
	hold(a);
	CHECK_STATUS(HR_OK, store_block(host, address_of(blocks[0]), MIB, a, &first));
	hr__host_drop(host, &first, b);
	CHECK_STATUS(HR_OK, store_block(host, address_of(blocks[1]), MIB, b, &second));
	open_later(NULL);
	CHECK_STATUS(HR_OK, hr_stream_synchronize(handle, a));
	check_load(host, &second, blocks[2], 2, b);
	/* A destroyed stream. */
	CHECK_STATUS(HR_OK, hr_stream_destroy(handle, b));
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr__host_load(host, &second, address_of(blocks[2]), b));
	hr__host_drop(host, &second, b);
	CHECK_STATUS(HR_INVALID_ARGUMENT, store_block(host, address_of(blocks[2]), MIB, b, &second));
	CHECK_STATUS(HR_INVALID_ARGUMENT, store_block(host, address_of(blocks[2]), 0, a, &second));
	close_host(host);
	for (int i = 0; i < 3; i++) CHECK_STATUS(HR_OK, hr_free(on_card, blocks[i], a));
	end();
}

static void test_blocks_are_recycled_in_stream_order(void)
{
	check_recycling(&emulated);
}

static void test_blocks_are_recycled_in_stream_order_on_the_stand_in_driver(void)
{
	check_recycling(&cuda);
}

/* One buffer, which a blocked stream has not read yet: no other copy may write to it. */
static void check_ring_order(const subject *on)
{
	hr__host_copy first = { 0 }, second = { 0 }, third = { 0 };
	begin(on);
	hr__host *host = open_host(PAGE, true, 0);
	hr_stream a = new_stream(), b = new_stream();
	void *blocks[4];
	for (int i = 0; i < 4; i++) blocks[i] = block_of(PAGE);
	CHECK_STATUS(HR_OK, store(host, blocks[0], PAGE, 1, a, &first));
	CHECK_STATUS(HR_OK, store(host, blocks[1], PAGE, 2, b, &second));
	put(blocks[3], PAGE, 3, b);
	CHECK_STATUS(HR_OK, hr_stream_synchronize(handle, a));
	hold(a);
	CHECK_STATUS(HR_OK, hr__host_load(host, &first, address_of(blocks[0]), a)); /* does not wait for the copy */
	pthread_t opener = open_on_a_thread();
	CHECK_STATUS(HR_OK, hr__host_load(host, &second, address_of(blocks[1]), b)); /* the file overwrites the buffer */
	CHECK(atomic_load(&gate));
	CHECK_EQ(pthread_join(opener, NULL), 0);
	CHECK(holds(blocks[0], PAGE, 1, a));
	CHECK(holds(blocks[1], PAGE, 2, b));
	hold(a);
	CHECK_STATUS(HR_OK, hr__host_load(host, &first, address_of(blocks[2]), a));
	opener = open_on_a_thread();
	CHECK_STATUS(HR_OK, store_block(host, address_of(blocks[3]), PAGE, b, &third)); /* the device overwrites it */
	CHECK(atomic_load(&gate));
	CHECK_EQ(pthread_join(opener, NULL), 0);
	CHECK(holds(blocks[2], PAGE, 1, a));
	check_load(host, &third, blocks[2], 3, b);
	/* Closing waits for pending copies. */
	CHECK_STATUS(HR_OK, hr_stream_fill(handle, blocks[0], 0, PAGE, a));
	hold(a);
	CHECK_STATUS(HR_OK, hr__host_load(host, &first, address_of(blocks[0]), a));
	hr__host_drop(host, &first, a);
	hr__host_drop(host, &second, b);
	hr__host_drop(host, &third, b);
	opener = open_on_a_thread();
	close_host(host);
	CHECK(atomic_load(&gate));
	CHECK_EQ(pthread_join(opener, NULL), 0);
	CHECK(holds(blocks[0], PAGE, 1, a));
	for (int i = 0; i < 4; i++) CHECK_STATUS(HR_OK, hr_free(on_card, blocks[i], a));
	end();
}

static void test_buffers_are_reused_only_when_copies_are_done_with_them(void)
{
	check_ring_order(&emulated);
}

static void test_buffers_are_reused_only_then_on_the_stand_in_driver(void)
{
	check_ring_order(&cuda);
}

static void test_the_next_buffer_is_filled_meanwhile(void)
{
	hr__host_copy copy = { 0 };
	begin(&emulated);
	hr__host *host = open_host(4 * PAGE, true, 0);
	hr_stream stream = new_stream();
	void *block = block_of(2 * PAGE);
	put(block, 2 * PAGE, 1, stream);
	atomic_store(&disk.writes, 0);
	hr_backend_fail_nth(0, false, HR_OK);
	CHECK_STATUS(HR_OK, store_block(host, address_of(block), 2 * PAGE, stream, &copy));
	CHECK_EQ(atomic_load(&disk.writes), 2);
	CHECK_EQ(atomic_load(&disk.calls_before_write), 3); /* a copy, waiting for it, and the next copy */
	CHECK_STATUS(HR_OK, hr_stream_fill(handle, block, 0, 2 * PAGE, stream));
	CHECK_STATUS(HR_OK, hr_stream_synchronize(handle, stream));
	hold(stream);
	atomic_store(&disk.reads, 0);
	CHECK_STATUS(HR_OK, hr__host_load(host, &copy, address_of(block), stream)); /* the second read opens the gate */
	CHECK_EQ(atomic_load(&disk.reads), 2);
	CHECK(holds(block, 2 * PAGE, 1, stream));
	hr__host_drop(host, &copy, stream);
	close_host(host);
	CHECK_STATUS(HR_OK, hr_free(on_card, block, stream));
	end();
}

/* If the device could not copy, the result does not count as a copy. */
static void test_a_copy_that_was_not_made_is_no_copy(void)
{
	hr__host_copy copy = { 0 };
	begin(&emulated);
	hr__host *host = open_host(PAGE, true, 0);
	CHECK_STATUS(HR_DEVICE_ERROR, store_block(host, 4096, 3 * PAGE, 0, &copy));
	CHECK(is_zero(&copy));
	CHECK_EQ(hr__host_get_usage(host).spilled_bytes, 0);
	close_host(host);
	end();
}

/* ---- random order ---- */

#define LIVE 48

typedef struct entry {
	hr__host_copy copy;
	uint64_t seed;
	hr_stream stream;
} entry;

static uint64_t random_size(uint64_t *seed, uint64_t most)
{
	uint64_t size = 1 + hr_rand_below(seed, UINT64_C(1) << hr_rand_below(seed, 20));
	return size < most ? size : most;
}

/* One random step on one of [count] entries; [block] belongs to the caller and has [most] bytes. */
static void step(hr__host *host, entry *entries_of, uint64_t count, void *block, uint64_t most, hr_stream stream, uint64_t *seed)
{
	entry *one = &entries_of[hr_rand_below(seed, count)];
	if (!one->copy.bytes) {
		uint64_t bytes = random_size(seed, most);
		one->seed = hr_rand(seed);
		one->stream = stream;
		hr_status status = store(host, block, bytes, one->seed, stream, &one->copy);
		if (status != HR_OK) CHECK_STATUS(HR_OUT_OF_MEMORY, status);
		CHECK_EQ(one->copy.bytes, status == HR_OK ? bytes : 0);
		return;
	}
	if (stream != one->stream) CHECK_STATUS(HR_OK, hr_stream_wait_stream(handle, stream, one->stream));
	check_load(host, &one->copy, block, one->seed, stream);
	if (hr_rand_below(seed, 3)) hr__host_drop(host, &one->copy, stream);
}

static void check_books(hr__host *host, const entry *of, int count, uint64_t limit)
{
	int64_t pinned = 0, spilled = 0;
	for (int i = 0; i < count; i++) *(of[i].copy.address ? &pinned : &spilled) += (int64_t)of[i].copy.bytes;
	hr__host_usage usage = hr__host_get_usage(host);
	CHECK_EQ(usage.pinned_bytes, pinned);
	CHECK_EQ(usage.spilled_bytes, spilled);
	CHECK_LE(usage.pinned_bytes, usage.peak_pinned_bytes);
	CHECK_LE(usage.spilled_bytes, usage.peak_spilled_bytes);
	CHECK_LE(usage.reserved_bytes, limit);
	CHECK_STATUS(HR_OK, hr__host_check(host));
}

static void check_random(const subject *on, uint64_t limit, bool spills, uint64_t spill_limit)
{
	static entry list[LIVE];
	uint64_t seed = hr_test_seed();
	hr_stream streams[3];
	void *blocks[3];
	memset(list, 0, sizeof list);
	begin(on);
	hr__host *host = open_host(limit, spills, spill_limit);
	for (int i = 0; i < 3; i++) streams[i] = new_stream();
	for (int i = 0; i < 3; i++) blocks[i] = block_of(MIB); /* one for each stream */
	for (uint64_t i = 0; i < hr_test_scaled(2000); i++) {
		uint64_t which = hr_rand_below(&seed, 3);
		step(host, list, LIVE, blocks[which], MIB, streams[which], &seed);
		if (i % 8 == 0) check_books(host, list, LIVE, limit);
		if (spills) CHECK_LE(atomic_load(&disk.length), spill_limit);
	}
	check_books(host, list, LIVE, limit);
	for (int i = 0; i < LIVE; i++) hr__host_drop(host, &list[i].copy, list[i].stream);
	close_host(host);
	for (int i = 0; i < 3; i++) CHECK_STATUS(HR_OK, hr_free(on_card, blocks[i], streams[i]));
	end();
}

static void test_accounting_agrees_in_any_order(void)
{
	check_random(&emulated, MIB, true, 2 * MIB);
	check_random(&emulated, 7 * PAGE, true, MIB + 5000);
	check_random(&emulated, 2 * MIB, false, 0);
	check_random(&cpu, MIB, true, 2 * MIB);
	check_random(&simulated, 4 * MIB, false, 0);
}

/* ---- threads ---- */

#define THREADS 8
#define THREAD_BLOCK (128 * KIB)
#define THREAD_LIVE 8
#define POOL_LIMIT (MIB)
#define SPILL_LIMIT (2 * MIB)

static struct {
	hr__host *host;
	_Atomic(int) left;
} crowd;

/* Checks the limits until the other threads are done. */
static void watch(void)
{
	hr__device *pinned;
	CHECK_STATUS(HR_OK, hr__device_pinned(device, 0, &pinned));
	while (atomic_load(&crowd.left)) {
		hr__host_usage usage = hr__host_get_usage(crowd.host);
		CHECK_LE(usage.pinned_bytes, usage.peak_pinned_bytes);
		CHECK_LE(usage.peak_pinned_bytes, POOL_LIMIT);
		CHECK_LE(usage.reserved_bytes, POOL_LIMIT);
		CHECK_LE(usage.peak_spilled_bytes, SPILL_LIMIT);
		CHECK_LE(hr__page_pool_reserved(pinned), POOL_LIMIT);
		CHECK_LE(atomic_load(&disk.length), SPILL_LIMIT);
		CHECK_EQ(entries(false), 0);
		nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
	}
}

static void run_thread(void *unused, unsigned index)
{
	(void)unused;
	if (index == THREADS) {
		watch();
		return;
	}
	entry mine[THREAD_LIVE];
	memset(mine, 0, sizeof mine);
	uint64_t seed = hr_test_seed() * 1000 + index;
	hr_stream stream = new_stream();
	void *block = block_of(THREAD_BLOCK);
	for (uint64_t i = 0; i < hr_test_scaled(1500); i++) step(crowd.host, mine, THREAD_LIVE, block, THREAD_BLOCK, stream, &seed);
	for (int i = 0; i < THREAD_LIVE; i++) hr__host_drop(crowd.host, &mine[i].copy, stream);
	CHECK_STATUS(HR_OK, hr_free(on_card, block, stream));
	atomic_fetch_sub(&crowd.left, 1);
}

static void check_threads(const subject *on)
{
	begin(on);
	crowd.host = open_host(POOL_LIMIT, true, SPILL_LIMIT);
	atomic_store(&crowd.left, THREADS);
	hr_test_threads(THREADS + 1, run_thread, NULL);
	CHECK_GT(hr__host_get_usage(crowd.host).peak_spilled_bytes, 0);
	close_host(crowd.host);
	end();
}

static void test_threads_share_it(void)
{
	check_threads(&emulated);
}

static void test_threads_share_it_on_the_stand_in_driver(void)
{
	check_threads(&cuda);
}

/* ---- faults ---- */

#define FAULT_COPIES 6
#define FAULT_LIMIT (8 * PAGE) /* the ring uses four of them */
#define FAULT_BLOCK (5 * PAGE / 2)

static struct {
	bool backend, forever, close_armed;
	int error;
	hr_status status;
	uint64_t nth, calls; /* which call fails, and how many there were */
} fault;

static void arm(uint64_t nth)
{
	if (fault.backend) hr_backend_fail_nth(nth, fault.forever, fault.status);
	else hr_fault_os_fail_nth(nth, fault.forever, fault.error);
}

static void disarm(void)
{
	fault.calls = fault.backend ? hr_backend_calls() : hr_fault_os_calls();
	arm(0);
}

/* Statuses that a failed call may return. */
static bool is_sensible(hr_status status)
{
	if (!hr_last_message()[0]) return false;
	if (fault.backend) return status == fault.status || status == HR_OUT_OF_MEMORY;
	return status == HR_IO || status == HR_NO_HOST_MEMORY || status == HR_OUT_OF_MEMORY;
}

typedef struct party {
	void *block, *back; /* source and target: one for each stream */
	hr_stream stream;
	hr__host_copy copy;
} party;

/* Uses every call; some of them are refused. */
static void use_it(hr__host *host, party *parties)
{
	for (int round = 0; round < 2; round++) {
		for (int i = round; i < FAULT_COPIES; i += 1 + round) {
			party *one = &parties[i];
			if (one->copy.bytes) continue;
			hr_status status = store_block(host, address_of(one->block), FAULT_BLOCK, one->stream, &one->copy);
			if (status != HR_OK) CHECK(is_sensible(status) && is_zero(&one->copy));
		}
		for (int i = 0; i < FAULT_COPIES; i++) {
			if (!parties[i].copy.bytes) continue;
			hr_status status = hr__host_load(host, &parties[i].copy, address_of(parties[i].back), parties[i].stream);
			if (status != HR_OK) CHECK(is_sensible(status));
		}
		for (int i = 1; i < FAULT_COPIES && !round; i += 2) hr__host_drop(host, &parties[i].copy, parties[i].stream);
	}
}

static void check_what_is_left(hr__host *host, party *parties)
{
	CHECK_STATUS(HR_OK, hr__host_check(host));
	for (int i = 0; i < FAULT_COPIES; i++) {
		party *one = &parties[i];
		if (!one->copy.bytes) /* the device works again */
			CHECK_STATUS(HR_OK, store_block(host, address_of(one->block), FAULT_BLOCK, one->stream, &one->copy));
		check_load(host, &one->copy, one->back, (uint64_t)i, one->stream);
	}
	for (int i = 0; i < FAULT_COPIES; i++) hr__host_drop(host, &parties[i].copy, parties[i].stream);
	close_host(host);
}

static void drop_all(hr__host *host, party *parties)
{
	for (int i = 0; i < FAULT_COPIES; i++) hr__host_drop(host, &parties[i].copy, parties[i].stream);
	CHECK_STATUS(HR_OK, hr__host_close(host));
}

/* Runs all of it with call [fault.nth] failing. */
static void scenario(void)
{
	party parties[FAULT_COPIES] = { { 0 } };
	hr__host *host = NULL;
	hr_stream streams[2] = { new_stream(), new_stream() };
	void *back[2] = { block_of(FAULT_BLOCK), block_of(FAULT_BLOCK) };
	for (int i = 0; i < FAULT_COPIES; i++) {
		parties[i] = (party){ .block = block_of(FAULT_BLOCK), .back = back[i & 1], .stream = streams[i & 1] };
		put(parties[i].block, FAULT_BLOCK, (uint64_t)i, streams[i & 1]);
	}
	hr__host_options options = { .limit = FAULT_LIMIT, .spill_dir = directory };
	arm(fault.nth);
	hr_status status = hr__host_open(device, &options, &host);
	bool stayed = status != HR_OK && strstr(hr_last_message(), "cannot be removed");
	if (status != HR_OK) CHECK(is_sensible(status) && host == NULL);
	else use_it(host, parties);
	if (status == HR_OK && fault.close_armed) drop_all(host, parties);
	disarm();
	if (status == HR_OK && !fault.close_armed) check_what_is_left(host, parties);
	CHECK_EQ(entries(true), stayed);
	for (int i = 0; i < FAULT_COPIES; i++) CHECK_STATUS(HR_OK, hr_free(on_card, parties[i].block, 0));
	for (int i = 0; i < 2; i++) CHECK_STATUS(HR_OK, hr_free(on_card, back[i], streams[i]));
}

static void fail_every_call(const subject *on, bool forever, bool close_armed)
{
	fault.forever = forever;
	fault.close_armed = close_armed;
	fault.nth = 0;
	do {
		fault.nth++;
		begin(on);
		scenario();
		end_round();
	} while (fault.calls >= fault.nth); /* the fault occurred */
	CHECK_GT(fault.nth, 10);
}

static void fail_on(const subject *on)
{
	for (int forever = 0; forever < 2; forever++) {
		fault.backend = false;
		fault.error = ENOMEM;
		fail_every_call(on, forever, forever);
		fault.error = ENOSPC;
		fail_every_call(on, forever, false);
		if (on == &cpu) continue; /* this device makes no such calls */
		fault.backend = true;
		fault.status = HR_OUT_OF_MEMORY;
		fail_every_call(on, forever, false);
		fault.status = HR_DEVICE_ERROR;
		fail_every_call(on, forever, false);
		if (forever) fail_every_call(on, forever, true);
	}
	CHECK_EQ(rmdir(directory), 0);
}

static void test_nothing_is_lost_when_any_call_fails(void)
{
	fail_on(&emulated);
}

static void test_nothing_is_lost_when_any_call_fails_on_the_host_itself(void)
{
	fail_on(&cpu);
}

/* ---- fork ---- */

static void in_the_child(void *parents)
{
	hr__host_copy copy = { 0 };
	struct hr_fault_os_live before, after;
	hr_fault_os_live(&before);
	hr__host_forget(NULL);
	hr__host_forget(*(hr__host **)parents);
	hr_fault_os_live(&after);
	CHECK_EQ(after.fds, before.fds - 1); /* the disk space can be freed when the parent closes the file */
	CHECK_STATUS(HR_OK, hr_shutdown());
	hr_fault_os_uninstall();
	begin(&emulated);
	hr__host *host = open_host(MIB, true, 0); /* a new one, in the same directory */
	void *block = block_of(2 * MIB);
	CHECK_STATUS(HR_OK, store(host, block, 2 * MIB, 7, 0, &copy));
	check_load(host, &copy, block, 7, 0);
	hr__host_drop(host, &copy, 0);
	close_host(host);
	CHECK_STATUS(HR_OK, hr_free(on_card, block, 0));
	end_round();
}

static void test_a_forked_child_starts_without_it(void)
{
	hr__host_copy pinned = { 0 }, spilled = { 0 };
	begin(&emulated);
	hr__host *host = open_host(2 * MIB, true, 0);
	void *block = block_of(2 * MIB);
	CHECK_STATUS(HR_OK, store(host, block, MIB, 1, 0, &pinned));
	CHECK_STATUS(HR_OK, store(host, block, 2 * MIB, 2, 0, &spilled));
	CHECK_NE(pinned.address, 0);
	CHECK_EQ(spilled.address, 0);
	CHECK_EQ(hr_test_in_child(in_the_child, &host), 0);
	check_load(host, &pinned, block, 1, 0);
	check_load(host, &spilled, block, 2, 0);
	hr__host_drop(host, &pinned, 0);
	hr__host_drop(host, &spilled, 0);
	close_host(host);
	CHECK_STATUS(HR_OK, hr_free(on_card, block, 0));
	end();
}

TEST_MAIN(T(test_contents_survive_in_both_tiers), T(test_contents_survive_on_the_stand_in_driver),
          T(test_the_ring_fits_into_any_pool), T(test_the_simulated_device_has_pinned_memory_only),
          T(test_a_full_pool_without_a_file_says_so), T(test_a_full_file_says_so), T(test_a_full_disk_keeps_existing_copies),
          T(test_a_disk_failure_is_reported), T(test_a_directory_that_cannot_be_written_is_refused),
          T(test_impossible_limits_are_refused), T(test_blocks_are_recycled_in_stream_order),
          T(test_blocks_are_recycled_in_stream_order_on_the_stand_in_driver),
          T(test_buffers_are_reused_only_when_copies_are_done_with_them),
          T(test_buffers_are_reused_only_then_on_the_stand_in_driver), T(test_the_next_buffer_is_filled_meanwhile),
          T(test_a_copy_that_was_not_made_is_no_copy), T(test_accounting_agrees_in_any_order), T(test_threads_share_it),
          T(test_threads_share_it_on_the_stand_in_driver), T(test_nothing_is_lost_when_any_call_fails),
          T(test_nothing_is_lost_when_any_call_fails_on_the_host_itself), T(test_a_forked_child_starts_without_it))
