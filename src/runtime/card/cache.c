/* cache.c - compiled programs on disk.
 *
 *     <folder>/<key>.kernels = header, image
 *
 * The folder is HEADROOM_KERNEL_CACHE, or headroom/kernels in $XDG_CACHE_HOME, or in ~/.cache; "0" turns the cache off. The key is a hash of all that the image
 * depends on. A file is written under another name and then renamed, so a reader never sees a part of one. A file that is damaged, or whose header names
 * another key, is replaced. No error of the cache is reported: the program is then compiled. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/os/os.h"
#include "runtime/card/card.h"

#define PATH_CAPACITY 1024
#define IMAGE_MAX (UINT64_C(64) << 20)
#define MAGIC UINT64_C(0x314c454e52454b48) /* "HKERNEL1" */

struct header {
	uint64_t magic;
	hr__cache_key key;
	uint64_t bytes;
	hr__cache_key checksum;
};

/* FNV-1a, twice with different beginnings. */
void hr__cache_key_add(hr__cache_key *key, const void *text, size_t bytes)
{
	const uint64_t prime = UINT64_C(0x100000001b3);
	const unsigned char *from = text;
	if (!key->high && !key->low) *key = (hr__cache_key){ UINT64_C(0xcbf29ce484222325), UINT64_C(0x9ae16a3b2f90404f) };
	for (size_t i = 0; i < bytes; i++) {
		key->high = (key->high ^ from[i]) * prime;
		key->low = (key->low ^ from[i] ^ 0x5a) * (prime + 0x2a);
	}
}

static bool same(const hr__cache_key *a, const hr__cache_key *b)
{
	return a->high == b->high && a->low == b->low;
}

/* The folder, with a slash at its end; false = no cache. */
static bool folder(char *out, size_t capacity)
{
	const char *given = hr__os()->environment("HEADROOM_KERNEL_CACHE");
	const char *around = hr__os()->environment("XDG_CACHE_HOME"), *home = hr__os()->environment("HOME");
	int length;
	if (given && *given) length = strcmp(given, "0") ? snprintf(out, capacity, "%s/", given) : -1;
	else if (around && *around == '/') length = snprintf(out, capacity, "%s/headroom/kernels/", around);
	else if (home && *home == '/') length = snprintf(out, capacity, "%s/.cache/headroom/kernels/", home);
	else return false;
	return length > 0 && (size_t)length < capacity;
}

/* Creates the folder and those around it, as far as they are missing. */
static void make_folders(char *path)
{
	for (char *at = path + 1; *at; at++) {
		if (*at != '/') continue;
		*at = 0;
		(void)!hr__os()->folder_create(path);
		*at = '/';
	}
}

static bool file_of(const hr__cache_key *key, const char *end, char *out, size_t capacity)
{
	char around[PATH_CAPACITY];
	if (!folder(around, sizeof around)) return false;
	int length = snprintf(out, capacity, "%s%016" PRIx64 "%016" PRIx64 ".%s", around, key->high, key->low, end);
	return length > 0 && (size_t)length < capacity;
}

static bool read_all(int file, void *to, size_t bytes, uint64_t offset)
{
	size_t got = 0;
	return !hr__os()->file_read(file, to, bytes, offset, &got) && got == bytes;
}

static bool is_whole(const struct header *header, const void *image)
{
	hr__cache_key checksum = { 0 };
	hr__cache_key_add(&checksum, image, header->bytes);
	return same(&checksum, &header->checksum);
}

static bool read_image(int file, uint64_t size, const hr__cache_key *key, void **image, size_t *bytes)
{
	struct header header;
	void *block;
	if (size < sizeof header || size > IMAGE_MAX || !read_all(file, &header, sizeof header, 0)) return false;
	if (header.magic != MAGIC || !same(&header.key, key) || !header.bytes || header.bytes != size - sizeof header) return false;
	if (hr__os()->alloc(header.bytes, &block)) return false;
	if (read_all(file, block, header.bytes, sizeof header) && is_whole(&header, block)) {
		*image = block;
		*bytes = header.bytes;
		return true;
	}
	hr__os()->free(block, header.bytes);
	return false;
}

bool hr__cache_read(const hr__cache_key *key, void **image, size_t *bytes)
{
	char path[PATH_CAPACITY + 64];
	int file;
	uint64_t size;
	if (!file_of(key, "kernels", path, sizeof path) || hr__os()->file_open(path, &file, &size)) return false;
	bool whole = read_image(file, size, key, image, bytes);
	hr__os()->file_close(file);
	return whole;
}

void hr__cache_write(const hr__cache_key *key, const void *image, size_t bytes)
{
	char path[PATH_CAPACITY + 64], unfinished[PATH_CAPACITY + 64], end[48], around[PATH_CAPACITY];
	int file;
	snprintf(end, sizeof end, "%d.%" PRIu64, hr__os()->process_id(), hr__os()->clock_ns());
	if (!folder(around, sizeof around) || !file_of(key, "kernels", path, sizeof path) || !file_of(key, end, unfinished, sizeof unfinished)) return;
	make_folders(around);
	if (hr__os()->file_create(unfinished, &file)) return;
	struct header header = { .magic = MAGIC, .key = *key, .bytes = bytes };
	hr__cache_key_add(&header.checksum, image, bytes);
	int error = hr__os()->file_write(file, &header, sizeof header, 0);
	if (!error) error = hr__os()->file_write(file, image, bytes, sizeof header);
	hr__os()->file_close(file);
	if (!error) error = hr__os()->file_rename(unfinished, path);
	if (error) hr__os()->file_remove(unfinished);
}
