/* peers.c - see peers.h.
 *
 * All users can write to /dev/shm. A file counts only if it belongs to this process's user, is valid, and names this job, this host and another rank. The file
 * of a killed rank remains, and a later job may have the same name, so the process must still be running. A process in another container is not visible here:
 * it counts as running if its file was written in the last two seconds. */
#include "core/record/peers.h"

#include <stdio.h>
#include <string.h>

#include "core/base/status.h"
#include "core/memory/oom/report.h"
#include "core/os/os.h"
#include "core/os/process.h"
#include "core/record/segment.h"

#define FILES_MAX 1024u             /* read for one report */
#define ATTEMPTS 64                 /* to read a file that is being written, which takes less than a microsecond */
#define QUIET_NS 2000000000ull

/* Not on the stack: a thread that runs out of memory may have a small one. Used by one thread at a time (peers.h). */
static hr__segment segment;

struct peer_search {
	const char *folder;
	hr__report_ranks *out;
	uint64_t now_ns;
	uint32_t files;
};

static bool read_sequence(int fd, uint64_t *out)
{
	size_t length;
	return !hr__os()->file_read(fd, out, sizeof *out, offsetof(hr__segment, sequence), &length) && length == sizeof *out;
}

/* A consistent copy: the sequence number is even and the same before and after. */
static bool read_consistent(int fd)
{
	for (int attempt = 0; attempt < ATTEMPTS; attempt++) {
		uint64_t before, after;
		size_t length;
		if (!read_sequence(fd, &before) || hr__os()->file_read(fd, &segment, sizeof segment, 0, &length) || length != sizeof segment ||
		    !read_sequence(fd, &after))
			return false;
		if (before == after && (before & 1) == 0) return true;
	}
	return false;
}

static bool read_segment(const char *folder, const char *name)
{
	char path[512];
	int fd;
	uint64_t size;
	int used = snprintf(path, sizeof path, "%s/%s", folder, name);
	if (used < 0 || (size_t)used >= sizeof path || hr__os()->file_open(path, &fd, &size)) return false;
	bool good = size >= sizeof segment && hr__os_file_is_own(fd) && read_consistent(fd) && hr__segment_check(&segment, hr__segment_process(name));
	hr__os()->file_close(fd);
	return good;
}

static bool is_peer(const hr__rank *self, const hr__rank *other)
{
	return other->count == self->count && other->number != self->number && !strcmp(other->job, self->job) && !strcmp(other->host, self->host);
}

/* Keeps those with most bytes in use. */
static void add(hr__report_ranks *out, const hr__report_peer *peer)
{
	uint32_t least = 0;
	if (out->count < HR__REPORT_PEERS) {
		out->peers[out->count++] = *peer;
		return;
	}
	out->left_out++;
	for (uint32_t i = 1; i < out->count; i++)
		if (out->peers[i].in_use < out->peers[least].in_use) least = i;
	if (peer->in_use > out->peers[least].in_use) out->peers[least] = *peer;
}

static void add_devices(struct peer_search *search)
{
	hr__report_peer peer = { .rank = segment.rank.number, .process = segment.process };
	peer.age_ns = search->now_ns > segment.now_wall_ns ? search->now_ns - segment.now_wall_ns : 0;
	for (uint32_t i = 0; i < segment.device_count; i++) {
		const hr__segment_device *device = &segment.devices[i];
		memcpy(peer.device, device->name, sizeof peer.device);
		peer.in_use = (uint64_t)device->bytes_in_use;
		peer.peak = (uint64_t)device->peak_bytes_in_use;
		peer.limit = (uint64_t)device->bytes_limit;
		add(search->out, &peer);
	}
	if (!segment.device_count) add(search->out, &peer);
}

static bool look(void *context, const char *name)
{
	struct peer_search *search = context;
	uint32_t process = hr__segment_process(name);
	if (!process || process == (uint32_t)hr__os()->process_id()) return false;
	if (++search->files > FILES_MAX) return true;
	if (!read_segment(search->folder, name) || !is_peer(&search->out->self, &segment.rank)) return false;
	bool fresh = segment.now_wall_ns <= search->now_ns && search->now_ns - segment.now_wall_ns < QUIET_NS;
	if (!fresh && !hr__os_process_lives(process, segment.birth)) return false;
	search->out->ranks++;
	add_devices(search);
	return false;
}

static bool is_before(const hr__report_peer *a, const hr__report_peer *b)
{
	return a->rank != b->rank ? a->rank < b->rank : a->in_use > b->in_use;
}

static void sort(hr__report_ranks *out)
{
	for (uint32_t i = 1; i < out->count; i++) {
		hr__report_peer peer = out->peers[i];
		uint32_t at = i;
		for (; at > 0 && is_before(&peer, &out->peers[at - 1]); at--) out->peers[at] = out->peers[at - 1];
		out->peers[at] = peer;
	}
}

void hr__peers_read(hr__report_ranks *out)
{
	hr__last before = hr__last_get();
	struct peer_search search = { .out = out, .now_ns = hr__os()->wall_clock_ns() };
	hr__rank_read(&out->self);
	hr__last_set(&before);
	if (!out->self.count) return;
	const char *folder = hr__os()->environment("XDG_RUNTIME_DIR");
	search.folder = folder;
	if (folder && folder[0] && strcmp(folder, "/dev/shm")) (void)!hr__os_folder_any(folder, look, &search);
	search.folder = "/dev/shm";
	(void)!hr__os_folder_any(search.folder, look, &search);
	sort(out);
}
