/* checksum.c - checksums of device memory, for verify. The host may not be able to read that memory, so it is copied to pinned
 * memory and summed there.
 *
 *     device   | 0 | 1 | 2 | 3 | 4 | 5 | ...     chunks of one slot each
 *                |   |   |   |
 *     slots      0   1   2   3                   of the scratch memory (host.h)
 *                '-- readers: reader r of n takes chunks r, r + n, r + 2n...
 *
 * A reader has two slots or more: while it sums one, the next is being copied. The link brings 55 GB/s, and one processor sums 10
 * to 25 GB/s of data that is not in its caches. So large memory has several readers, each a thread that exists for the duration of
 * the call. If no thread can be started, the caller does the work of all readers, one after another.
 *
 * The sum of a chunk includes its number, and these sums are added: the order of readers does not matter, but exchanged chunks
 * change the sum.
 *
 * A copy that failed halfway may still be writing to the scratch memory. It is remembered by streams and epoch, like a freed
 * block. */
#include <stdio.h>
#include <string.h>

#include "core/base/status.h"
#include "core/lms/lms.h"
#include "core/os/os.h"

#define READERS 4u
#define SLOTS (2 * READERS)
#define PER_READER (UINT64_C(16) << 20) /* starting a thread takes as long as copying 2 MiB */

/* ---- checksum of host memory ---- */

/* Sums, and sums of sums, of eight words side by side: both change when a byte changes or two change places. Two words are added at
 * a time, in named variables, because compilers keep an array in memory, at a fifth of the speed. */
typedef uint64_t word_pair __attribute__((vector_size(16)));
typedef uint64_t word_pair_anywhere __attribute__((vector_size(16), aligned(1), may_alias));
#define BLOCK (4 * sizeof(word_pair))

struct lane_sums {
	word_pair a, b, c, d, of_a, of_b, of_c, of_d;
};

static struct lane_sums add_blocks(struct lane_sums sums, const uint8_t *bytes, uint64_t count)
{
	word_pair a = sums.a, b = sums.b, c = sums.c, d = sums.d, of_a = sums.of_a, of_b = sums.of_b, of_c = sums.of_c,
			  of_d = sums.of_d;
	for (; count > 0; bytes += BLOCK, count--) {
		const word_pair_anywhere *next = (const word_pair_anywhere *)bytes;
		of_a += a += next[0];
		of_b += b += next[1];
		of_c += c += next[2];
		of_d += d += next[3];
	}
	return (struct lane_sums){ a, b, c, d, of_a, of_b, of_c, of_d };
}

static uint64_t sum_bytes(const uint8_t *bytes, uint64_t count, uint64_t number)
{
	uint8_t rest[BLOCK] = { 0 };
	uint64_t folded[sizeof(struct lane_sums) / 8], sum = number + 1;
	struct lane_sums sums = add_blocks((struct lane_sums){ 0 }, bytes, count / BLOCK);
	memcpy(rest, bytes + count / BLOCK * BLOCK, count % BLOCK);
	sums = add_blocks(sums, rest, 1);
	memcpy(folded, &sums, sizeof folded);
	for (size_t i = 0; i < sizeof folded / sizeof *folded; i += 2) {
		sum = (sum ^ folded[i]) * UINT64_C(0x9E3779B97F4A7C15);
		sum = (sum ^ folded[i + 1] ^ sum >> 29) * UINT64_C(0xD6E8FEB86659FD93);
	}
	return sum ^ sum >> 32;
}

/* ---- readers ---- */

typedef struct sum_reader {
	hr__lms *lms;
	hr_stream stream;
	uint64_t address, bytes; /* of all chunks */
	uint64_t first, step;    /* its own chunks */
	const hr__host_scratch *scratch;
	uint64_t slot;      /* bytes of a slot */
	uint8_t *slots;     /* its own slots */
	uint32_t depth;     /* number of its slots */
	hr__thread *thread; /* NULL = run by the caller */
	uint64_t sum;
	hr_status status;
	char why[256]; /* messages are per thread */
} sum_reader;

static uint64_t length_of(const sum_reader *of, uint64_t chunk)
{
	HR_ASSERT(chunk * of->slot < of->bytes);
	uint64_t left = of->bytes - chunk * of->slot;
	return left < of->slot ? left : of->slot;
}

static uint8_t *slot_of(const sum_reader *of, uint64_t chunk)
{
	HR_ASSERT(of->depth && of->step);
	return of->slots + chunk / of->step % of->depth * of->slot;
}

/* Starts copying a chunk. It is complete when the stream has done its work up to *epoch. */
static hr_status send_for(const sum_reader *by, uint64_t chunk, uint64_t *epoch)
{
	hr__lms *lms = by->lms;
	uint64_t number;
	hr_status status = hr_stream_copy(lms->device_handle, slot_of(by, chunk), (void *)(uintptr_t)(by->address + chunk * by->slot),
	                                  length_of(by, chunk), HR_COPY_TO_HOST, by->stream);
	/* Without a mark, waiting only takes longer. */
	*epoch = !status && hr__device_mark(lms->device, by->stream, &number) == HR_OK ? number - 1 : hr__device_epoch(lms->device);
	return status;
}

static void read_all(void *argument)
{
	sum_reader *by = argument;
	uint64_t epochs[SLOTS], count = (by->bytes + by->slot - 1) / by->slot, ahead = by->first;
	hr_status status = HR_OK;
	for (uint64_t chunk = by->first; chunk < count && !status; chunk += by->step) {
		for (; ahead < count && ahead < chunk + by->depth * by->step && !status; ahead += by->step)
			status = send_for(by, ahead, &epochs[ahead / by->step % by->depth]);
		if (!status)
			status = hr__device_wait_idle(by->lms->device, UINT64_C(1) << by->stream, epochs[chunk / by->step % by->depth]);
		if (!status && by->scratch->readable) by->sum += sum_bytes(slot_of(by, chunk), length_of(by, chunk), chunk);
	}
	by->status = status;
	if (status) snprintf(by->why, sizeof by->why, "%s", hr_last_message());
}

static uint32_t readers_for(uint64_t bytes)
{
	uint64_t wanted = bytes / PER_READER;
	return wanted < 1 ? 1 : wanted > READERS ? READERS : (uint32_t)wanted;
}

/* Runs the readers to their end. Returns the first error. */
static hr_status read_by_many(const sum_reader *like, uint64_t *sum)
{
	sum_reader readers[READERS];
	uint32_t count = readers_for(like->bytes);
	hr_status status = HR_OK;
	for (uint32_t i = 0; i < count; i++) {
		readers[i] = *like;
		readers[i].first = i;
		readers[i].step = count;
		readers[i].depth = SLOTS / count;
		readers[i].slots = like->slots + i * readers[i].depth * like->slot;
		if (i > 0 && hr__os()->thread_start(read_all, &readers[i], "headroom-verify", &readers[i].thread) != 0)
			readers[i].thread = NULL;
	}
	for (uint32_t i = 0; i < count; i++)
		if (!readers[i].thread) read_all(&readers[i]);
	*sum = like->bytes;
	for (uint32_t i = 0; i < count; i++) {
		if (readers[i].thread) hr__os()->thread_join(readers[i].thread);
		if (!status && readers[i].status) status = hr__fail(readers[i].status, "%s", readers[i].why);
		*sum += readers[i].sum;
	}
	return status;
}

hr_status hr__checksum(hr__lms *lms, uint64_t address, uint64_t bytes, hr_stream stream, uint64_t *out)
{
	HR_ASSERT(lms->verify && bytes);
	HR_ASSERT(hr__lock_none_from(HR__RANK_LMS));
	const hr__host_scratch *scratch = hr__host_get_scratch(lms->host);
	sum_reader like = { .lms = lms, .stream = stream, .address = address, .bytes = bytes, .scratch = scratch };
	uint64_t mask = UINT64_C(1) << stream, sum;
	int64_t waits = 0;
	like.slots = scratch->at;
	like.slot = scratch->bytes / SLOTS & ~(uint64_t)(BLOCK - 1);
	HR_ASSERT(like.slot > 0);
	hr__lock_take(&lms->scratch_lock);
	hr_status status = hr__device_order(lms->device, stream, lms->scratch_streams & ~mask, lms->scratch_epoch, &waits);
	if (!status) {
		status = read_by_many(&like, &sum);
		lms->scratch_streams = status ? lms->scratch_streams | mask : 0;
		lms->scratch_epoch = hr__device_epoch(lms->device);
	}
	hr__lock_release(&lms->scratch_lock);
	if (!status) *out = sum;
	return status;
}
