/* assert.c - the end of a debug build that caught itself breaking a promise. Release builds contain no call of this. */
#include "base/assert.h"

#include <stdio.h>
#include <stdlib.h>

void hr__assert_failed(const char *expression, const char *file, int line)
{
	fprintf(stderr, "headroom: %s:%d: assertion failed: %s\n", file, line, expression);
	fflush(stderr);
	abort();
}
