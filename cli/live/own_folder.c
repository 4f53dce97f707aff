/* own_folder.c - see own_folder.h. */
#include "live/own_folder.h"

#include <string.h>
#include <unistd.h>

bool hr__own_folder(char out[PATH_MAX])
{
	ssize_t length = readlink("/proc/self/exe", out, PATH_MAX - 1);
	out[length > 0 ? length : 0] = 0;
	char *slash = strrchr(out, '/');
	if (slash) *slash = 0;
	return slash != NULL;
}
