/* fuzz_http_request.c - the parser of HTTP requests of `headroom metrics --listen`: safe on any bytes, and it decides in the end. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "metrics/http_request.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int holds, const char *what)
{
	if (holds) return;
	fprintf(stderr, "the parser of HTTP requests: %s\n", what);
	abort();
}

/* In memory of exactly its size, so that a sanitizer finds reads past the end. */
static hr__http_request read_exactly(const uint8_t *data, size_t size)
{
	char *copy = malloc(size ? size : 1);
	require(copy != NULL, "no memory");
	if (size) memcpy(copy, data, size);
	hr__http_request request = hr__http_request_read(copy, size);
	free(copy);
	return request;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static uint8_t longest[HR__HTTP_REQUEST_MAX];
	if (size > HR__HTTP_REQUEST_MAX) size = HR__HTTP_REQUEST_MAX;
	/* As the bytes arrive: the server answers the first time that the status is not 0. */
	for (size_t length = 1; length <= size; length += length < 64 ? 1 : 61) {
		hr__http_request request = read_exactly(data, length);
		require(request.status == 0 || *hr__http_reason(request.status), "a status has a reason");
		require(!request.openmetrics || request.status != 400, "a request that is none asks for no format");
		if (request.status == 200) require(memcmp(data, "GET /metrics", 12) == 0, "only GET /metrics is answered");
		if (request.status) break;
	}
	memset(longest, 'x', sizeof longest);
	if (size) memcpy(longest, data, size);
	require(read_exactly(longest, sizeof longest).status != 0, "a request that is too long is refused");
	return 0;
}
