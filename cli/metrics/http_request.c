/* http_request.c - see http_request.h. */
#include "metrics/http_request.h"

#include <string.h>
#include <strings.h>

typedef struct text_part {
	const char *at;
	size_t length;
} text_part;

static bool equals(text_part part, const char *text)
{
	return part.length == strlen(text) && memcmp(part.at, text, part.length) == 0;
}

/* The next line, without its end; false if none is complete. */
static bool next_line(text_part *rest, text_part *line)
{
	const char *end = memchr(rest->at, '\n', rest->length);
	if (!end) return false;
	*line = (text_part){ rest->at, (size_t)(end - rest->at) };
	rest->length -= line->length + 1;
	rest->at = end + 1;
	if (line->length && line->at[line->length - 1] == '\r') line->length--;
	return true;
}

/* The text up to the next space, which is removed from [rest] with it. */
static text_part next_word(text_part *rest)
{
	const char *space = memchr(rest->at, ' ', rest->length);
	text_part word = { rest->at, space ? (size_t)(space - rest->at) : rest->length };
	rest->at += word.length + (space != NULL);
	rest->length -= word.length + (space != NULL);
	return word;
}

static bool is_plain(text_part part)
{
	for (size_t i = 0; i < part.length; i++)
		if (part.at[i] <= ' ' || part.at[i] > '~') return false;
	return part.length > 0;
}

/* The status by the first line of the request: METHOD TARGET VERSION. */
static int judge_line(text_part line)
{
	text_part method = next_word(&line), target = next_word(&line), version = line;
	if (!is_plain(method) || !is_plain(target) || !is_plain(version)) return 400;
	if (version.length != 8 || memcmp(version.at, "HTTP/", 5) != 0) return 400;
	if (memcmp(version.at + 5, "1.", 2) != 0 || (version.at[7] != '0' && version.at[7] != '1')) return 505;
	if (!equals(method, "GET")) return 405;
	const char *query = memchr(target.at, '?', target.length);
	if (query) target.length = (size_t)(query - target.at);
	return equals(target, "/metrics") ? 200 : 404;
}

/* Whether [line] is an Accept header that names OpenMetrics. Weights are not compared: a client that lists the format reads it. */
static bool accepts_openmetrics(text_part line)
{
	static const char name[] = "accept:", type[] = "application/openmetrics-text";
	if (line.length < sizeof name - 1 || strncasecmp(line.at, name, sizeof name - 1) != 0) return false;
	for (size_t i = sizeof name - 1; i + sizeof type - 1 <= line.length; i++)
		if (strncasecmp(line.at + i, type, sizeof type - 1) == 0) return true;
	return false;
}

hr__http_request hr__http_request_read(const char *bytes, size_t length)
{
	hr__http_request request = { 0 };
	text_part rest = { bytes, length }, line;
	if (memchr(bytes, 0, length)) return (hr__http_request){ .status = 400 };
	if (!next_line(&rest, &line)) return (hr__http_request){ .status = length >= HR__HTTP_REQUEST_MAX ? 431 : 0 };
	request.status = judge_line(line);
	if (request.status == 400) return request;
	while (next_line(&rest, &line)) {
		if (!line.length) return request;
		request.openmetrics = request.openmetrics || accepts_openmetrics(line);
	}
	return (hr__http_request){ .status = length >= HR__HTTP_REQUEST_MAX ? 431 : 0 };
}

const char *hr__http_reason(int status)
{
	switch (status) {
	case 200: return "OK";
	case 404: return "Not Found";
	case 405: return "Method Not Allowed";
	case 431: return "Request Header Fields Too Large";
	case 500: return "Internal Server Error";
	case 505: return "HTTP Version Not Supported";
	default: return "Bad Request";
	}
}
