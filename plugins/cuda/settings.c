/* settings.c - reads the environment, and removes what must not reach the program's children. */
#define _GNU_SOURCE
#include "settings.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define OWN_NAME "libheadroom_cuda.so"

hr__settings hr__settings_now;
static pthread_once_t once = PTHREAD_ONCE_INIT;

#define LEAST_LIMIT 256u /* an allocator's unit, below which it has no limit */

/* `headroom run` has replaced units by bytes. Anything else is not a limit: libheadroom reports it. */
static uint64_t read_limit(const char *text)
{
	char *end;
	if (!text || text[0] < '0' || text[0] > '9') return 0;
	uint64_t value = strtoull(text, &end, 10);
	if (*end || !value) return 0;
	return value < LEAST_LIMIT ? LEAST_LIMIT : value;
}

static bool is_own(const char *entry, size_t length)
{
	const char *name = memrchr(entry, '/', length);
	name = name ? name + 1 : entry;
	size_t rest = length - (size_t)(name - entry);
	return rest >= sizeof OWN_NAME - 1 && memcmp(name, OWN_NAME, sizeof OWN_NAME - 1) == 0;
}

/* Takes this library out of the environment. In LD_PRELOAD, in place, the entries of others stay. */
static void leave_children_alone(void)
{
	const char *injected = getenv("NVTX_INJECTION64_PATH");
	if (injected && is_own(injected, strlen(injected))) unsetenv("NVTX_INJECTION64_PATH");
	char *list = getenv("LD_PRELOAD"), *to = list;
	for (const char *at = list; at && *at;) {
		size_t length = strcspn(at, " :");
		if (length > 0 && !is_own(at, length)) {
			if (to != list) *to++ = ':';
			memmove(to, at, length);
			to += length;
		}
		at += length;
		at += strspn(at, " :");
	}
	if (!list) return;
	*to = 0;
	if (to == list) unsetenv("LD_PRELOAD");
}

static bool is_set(const char *text)
{
	return text && text[0] && strcmp(text, "0") != 0;
}

static void read_environment(void)
{
	const char *run = secure_getenv("HEADROOM_RUN"), *children = secure_getenv("HEADROOM_RUN_CHILDREN"), *report = secure_getenv("HEADROOM_OOM_REPORT");
	hr__settings_now.on = !run || strcmp(run, "0") != 0;
	hr__settings_now.manage = run && strcmp(run, "manage") == 0;
	hr__settings_now.callers = is_set(secure_getenv("HEADROOM_RUN_CALLERS"));
	hr__settings_now.uses = is_set(secure_getenv("HEADROOM_RUN_USES"));
	hr__settings_now.limit = read_limit(secure_getenv("HEADROOM_LIMIT"));
	hr__settings_now.reports = report && report[0];
	if (children && strcmp(children, "0") == 0) leave_children_alone();
}

const hr__settings *hr__settings_get(void)
{
	pthread_once(&once, read_environment);
	return &hr__settings_now;
}

__attribute__((constructor)) static void at_load(void)
{
	hr__settings_get();
}

static void write_line(char *line, size_t capacity, int length)
{
	size_t bytes = length < 0 ? 0 : (size_t)length < capacity - 1 ? (size_t)length : capacity - 2;
	line[bytes++] = '\n';
	if (write(STDERR_FILENO, line, bytes) < 0) return; /* there is no other place to write it */
}

void hr__settings_say(const char *format, ...)
{
	char line[1024] = "headroom: ";
	size_t used = strlen(line);
	va_list arguments;
	va_start(arguments, format);
	int length = vsnprintf(line + used, sizeof line - used, format, arguments);
	va_end(arguments);
	write_line(line, sizeof line, length < 0 ? length : length + (int)used);
}

_Noreturn void hr__settings_die(const char *why)
{
	hr__settings_say("%s", why);
	_exit(127);
}
