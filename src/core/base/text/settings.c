/* settings.c - environment settings that were ignored. */
#include "core/base/text/settings.h"

#include <stdio.h>
#include <string.h>

#include "core/base/lock.h"
#include "core/base/text/text.h"

#define VARIABLES_MAX 16u

static hr__lock lock = HR__LOCK_INIT(HR__RANK_SETTINGS);
static struct {
	const char *variable;
	char why[400];
} ignored[VARIABLES_MAX]; /* guarded by the lock, as is count */
static uint32_t count;

/* [message] without a leading "in the environment variable HEADROOM_X: " or "HEADROOM_X: ", because the caller prints the name. */
static const char *reason(const char *message, const char *variable)
{
	static const char place[] = "in the environment variable ";
	const char *at = strncmp(message, place, sizeof place - 1) ? message : message + sizeof place - 1;
	size_t length = strlen(variable);
	return strncmp(at, variable, length) == 0 && strncmp(at + length, ": ", 2) == 0 ? at + length + 2 : message;
}

void hr__setting_ignored(const char *variable, const hr__last *before)
{
	bool known = false;
	hr__lock_take(&lock);
	for (uint32_t i = 0; i < count; i++) known |= !strcmp(ignored[i].variable, variable);
	if (!known && count < VARIABLES_MAX) {
		ignored[count].variable = variable;
		snprintf(ignored[count].why, sizeof ignored[count].why, "%s", reason(hr_last_message(), variable));
		count++;
	}
	hr__lock_release(&lock);
	hr__last_set(before);
}

bool hr__settings_ignored(char *out, size_t capacity)
{
	size_t used = 0;
	hr__lock_take(&lock);
	for (uint32_t i = 0; i < count && used < capacity; i++)
		used += (size_t)snprintf(out + used, capacity - used, "%s%s is ignored: %s", i ? ". " : "", ignored[i].variable, ignored[i].why);
	bool any = count > 0;
	hr__lock_release(&lock);
	if (used >= capacity) out[hr__utf8_trim(out, capacity - 1)] = 0;
	return any;
}

void hr__settings_forget(void)
{
	hr__lock_init(&lock, HR__RANK_SETTINGS); /* in the child of a fork: a thread of the parent may have held it */
	count = 0;
}
