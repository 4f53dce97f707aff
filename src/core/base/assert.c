/* assert.c - ends a debug build whose assertion failed. Release builds contain no call of this. */
#include "core/base/assert.h"

#include <stdio.h>
#include <stdlib.h>

void hr__assert_failed(const char *expression, const char *file, int line)
{
	fprintf(stderr, "headroom: %s:%d: assertion failed: %s\n", file, line, expression);
	fflush(stderr);
	abort();
}
