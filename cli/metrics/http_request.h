/* http_request.h - reads a request of HTTP/1 and decides the answer. Safe on any bytes; keeps no state, so that it can be tested alone. */
#ifndef HR_CLI_HTTP_REQUEST_H
#define HR_CLI_HTTP_REQUEST_H

#include <stdbool.h>
#include <stddef.h>

#define HR__HTTP_REQUEST_MAX 8192 /* bytes of a request's first line and headers; longer ones are refused */

typedef struct hr__http_request {
	int status;       /* of the answer; 0: the request is not complete yet */
	bool openmetrics; /* the client reads OpenMetrics; otherwise the older text format of Prometheus */
} hr__http_request;

/* The first [length] bytes that a client has sent, at most HR__HTTP_REQUEST_MAX. The status is one of
 *
 *     0    the headers have not ended, and more bytes may come
 *     200  GET /metrics, with or without a query
 *     400  not a request of HTTP
 *     404  another path
 *     405  another method
 *     431  longer than HR__HTTP_REQUEST_MAX
 *     505  another version than HTTP/1.0 and HTTP/1.1 */
hr__http_request hr__http_request_read(const char *bytes, size_t length);

/* "Not Found" */
const char *hr__http_reason(int status);

#endif
