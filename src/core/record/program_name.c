/* program_name.c - see program_name.h. */
#include "core/record/program_name.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "core/os/os.h"

static char harmless(char c)
{
	bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '.';
	return plain ? c : '-';
}

void hr__program_name(char *out, size_t capacity)
{
	char text[32];
	int fd;
	uint64_t size;
	size_t length = 0, used = 0;
	snprintf(out, capacity, "program");
	if (hr__os()->file_open("/proc/self/comm", &fd, &size)) return;
	int error = hr__os()->file_read(fd, text, sizeof text, 0, &length);
	hr__os()->file_close(fd);
	if (error || length < 2 || text[0] == '.') return;
	while (used < length && text[used] != '\n' && used + 1 < capacity) {
		out[used] = harmless(text[used]);
		used++;
	}
	out[used] = 0;
}
