/* output.c - see output.h. */
#include "terminal/output.h"

#include <stdio.h>

static bool to_stdout(void *context, const char *bytes, size_t length)
{
	(void)context;
	return fwrite(bytes, 1, length, stdout) == length;
}

void hr__output_json_begin(hr__json *json)
{
	hr__json_init(json, to_stdout, NULL);
	json->pretty = true;
}

void hr__output_json_end(hr__json *json)
{
	hr__json_finish(json);
	putchar('\n');
}
