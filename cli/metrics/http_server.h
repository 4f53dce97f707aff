/* http_server.h - a small HTTP server that answers GET /metrics, for one scraper or a few.
 *
 * One thread serves up to 16 connections, each for 5 seconds at most and one request; further ones wait in the listener's queue. So a client
 * that sends nothing, or reads nothing, delays others by seconds and costs no memory that grows. */
#ifndef HR_CLI_HTTP_SERVER_H
#define HR_CLI_HTTP_SERVER_H

#include <stdbool.h>
#include <stddef.h>

#define HR__HTTP_ADDRESS_BYTES 80

/* Parses "127.0.0.1:9789", "[::1]:9789", ":9789", "9789", "127.0.0.1" or "localhost:9789" into host and port; the defaults are 127.0.0.1 and
 * [default_port]. False: it is none of them. */
bool hr__http_parse_address(const char *text, unsigned default_port, char host[HR__HTTP_ADDRESS_BYTES], unsigned *port);

/* Opens a listener. Port 0: any that is free. [address] receives "127.0.0.1:9789" as it is. Returns a descriptor, or -1 with errno. */
int hr__http_listen(const char *host, unsigned port, char address[HR__HTTP_ADDRESS_BYTES]);

/* Makes the body of an answer, which the server frees with free(); NULL: no memory. */
typedef char *(*hr__http_body)(void *context, bool openmetrics, size_t *length);

/* From now on SIGINT and SIGTERM end hr__http_serve, also if they come before it. */
void hr__http_catch_signals(void);

/* Serves until such a signal; closes the listener. 0, or an errno value if the listener fails. */
int hr__http_serve(int listener, hr__http_body body, void *context);

#endif
