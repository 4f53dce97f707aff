/* export_rmm.c - the log of RMM's logging adaptor: Thread,Time,Action,Pointer,Size,Stream.
 *
 *     1,00:00:00.150211,allocate,0x7f1a40000000,1048576,0x0
 *
 * Threads are numbered from 1; a failure is always of thread 1. Sizes are requested bytes. Times count from the beginning of the recording, so that they do not wrap at midnight. They are still
 * times of day, and readers (including Headroom's) accept at most 24 hours: a longer recording wraps to 00:00:00. A log has a
 * single address space, but blocks of two devices may have equal addresses. So the top byte of addresses is 1 for the second
 * device, 2 for the third, and so on; from the 257th device on the byte below it counts further. */
#include <stdio.h>

#include "analysis/export/export_file.h"
#include "analysis/export/export_formats.h"

/* The bits of addresses that differ between devices. */
static uint64_t device_bits(uint32_t device)
{
	return (uint64_t)(device & 0xff) << 56 | (uint64_t)(device >> 8) << 48;
}

static bool put(hr__export_file *file, uint32_t thread, uint64_t time_ns, const char *action, uint64_t address, uint64_t bytes, hr_stream stream)
{
	uint64_t us = time_ns / 1000, seconds = us / 1000000;
	char pointer[24] = "(nil)";
	if (address) snprintf(pointer, sizeof pointer, "0x%llx", (unsigned long long)address);
	return hr__export_file_print(file, "%u,%02llu:%02llu:%02llu.%06llu,%s,%s,%llu,0x%x\n", thread + 1, (unsigned long long)(seconds / 3600 % 24),
	                             (unsigned long long)(seconds / 60 % 60), (unsigned long long)(seconds % 60),
	                             (unsigned long long)(us % 1000000), action, pointer, (unsigned long long)bytes, (unsigned)stream);
}

static bool put_change(hr__export_file *file, const hr__capture *capture, const hr__change *change)
{
	const hr__allocation *allocation = &capture->allocations[change->allocation];
	uint64_t asked = allocation->bytes - allocation->slack;
	uint64_t address = allocation->address ^ device_bits(hr__allocation_device(capture, change->allocation));
	if (allocation->bytes == 0) return true; /* a log cannot express it */
	return put(file, change->thread, hr__export_change_ns(capture, change), change->frees ? "free" : "allocate", address,
	           asked ? asked : allocation->bytes, capture->streams[change->stream]);
}

static bool put_refusal(hr__export_file *file, const hr__capture *capture, const hr__refusal *refusal)
{
	return put(file, 0, refusal->time_ns, "allocate failure", 0, refusal->bytes, capture->sites[refusal->site].stream);
}

hr_status hr__export_rmm(const hr__capture *capture, const char *path)
{
	hr__export_file *file;
	hr_status status = hr__export_file_open(path, &file);
	if (status) return status;
	bool going = hr__export_file_print(file, "Thread,Time,Action,Pointer,Size,Stream\n");
	uint32_t refused = 0;
	for (uint32_t i = 0; i < capture->change_count && going; i++) {
		uint64_t now = hr__export_change_ns(capture, &capture->changes[i]);
		for (; refused < capture->refusal_count && capture->refusals[refused].time_ns < now && going; refused++)
			going = put_refusal(file, capture, &capture->refusals[refused]);
		going = going && put_change(file, capture, &capture->changes[i]);
	}
	for (; refused < capture->refusal_count && going; refused++) going = put_refusal(file, capture, &capture->refusals[refused]);
	return hr__export_file_close(file, HR_OK);
}
