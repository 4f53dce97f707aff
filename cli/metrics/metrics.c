/* metrics.c - `headroom metrics`: statistics of running programs for Prometheus, printed or served. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "analysis/import/quote.h"
#include "command.h"
#include "live/segments.h"
#include "metrics/http_server.h"
#include "metrics/metrics_text.h"

#define DEFAULT_PORT 9789
#define DEFAULT_ADDRESS "127.0.0.1:9789"

enum { LISTEN, FORMAT };

static const hr__option options[] = {
	[LISTEN] = { "--listen", "ADDRESS",
	             "serve them at http://ADDRESS/metrics until Ctrl-C instead of printing them: 127.0.0.1:9789, a port alone, on 127.0.0.1, or 0 for any free port. There "
	             "is no password: whoever reaches the address can read them" },
	[FORMAT] = { "--format", "NAME", "openmetrics (default), or prometheus, its older text format, for the node exporter's textfile collector; a served client gets the one that it asks for" },
	{ NULL, NULL, NULL },
};

static hr__segments programs; /* too large for the stack */

static char *make_body(void *unused, bool openmetrics, size_t *length)
{
	(void)unused;
	char *text = NULL;
	FILE *to = open_memstream(&text, length);
	if (!to) return NULL;
	hr__segments_read(&programs);
	hr__metrics_write(to, &programs, openmetrics);
	bool failed = ferror(to);
	if (fclose(to) == 0 && !failed) return text;
	free(text);
	return NULL;
}

static int serve(const char *where)
{
	char host[HR__HTTP_ADDRESS_BYTES], address[HR__HTTP_ADDRESS_BYTES], quoted[HR__QUOTE_BYTES];
	unsigned port;
	if (!hr__http_parse_address(where, DEFAULT_PORT, host, &port))
		return hr__complain("metrics: --listen %s is not an address; name one such as " DEFAULT_ADDRESS ", or a port", hr__quote(where, strlen(where), quoted));
	int listener = hr__http_listen(host, port, address);
	if (listener < 0 && errno == EADDRINUSE)
		return hr__complain("metrics: port %u of %s is taken by another program; name another, such as --listen %s:%u, or --listen 0 for any free one", port, host, host,
		                    port < 65535 ? port + 1 : port - 1);
	if (listener < 0) return hr__complain("metrics: cannot listen on %s, port %u: %s", host, port, strerror(errno));
	hr__http_catch_signals();
	fprintf(stderr, "headroom: serving http://%s/metrics; Ctrl-C ends it\n", address);
	int error = hr__http_serve(listener, make_body, NULL);
	return error ? hr__complain("metrics: serving %s: %s", address, strerror(error)) : HR__EXIT_DONE;
}

static bool read_format(const hr__arguments *arguments, bool *openmetrics)
{
	const char *format = arguments->values[FORMAT];
	char quoted[HR__QUOTE_BYTES];
	*openmetrics = !format || strcmp(format, "openmetrics") == 0;
	if (*openmetrics || strcmp(format, "prometheus") == 0) return true;
	hr__complain("metrics: --format is openmetrics or prometheus, not %s", hr__quote(format, strlen(format), quoted));
	return false;
}

static int run(const hr__arguments *arguments)
{
	bool openmetrics;
	if (!read_format(arguments, &openmetrics)) return HR__EXIT_BAD;
	if (arguments->values[LISTEN] && arguments->values[FORMAT]) return hr__complain("metrics: --format is for printing; a client of --listen gets the format that it asks for");
	if (arguments->values[LISTEN]) return serve(arguments->values[LISTEN]);
	hr__segments_read(&programs);
	hr__metrics_write(stdout, &programs, openmetrics);
	return HR__EXIT_DONE;
}

const hr__command hr__command_metrics = {
	.name = "metrics",
	.operands = "",
	.summary = "statistics of running programs for Prometheus, printed or served",
	.about =
		"Writes the statistics of the programs that 'headroom top' shows as OpenMetrics: for each program, device and allocator, the memory in use, the peak, the limit, "
		"allocations, requests refused, and what Large Model Support moved and waited for. The labels are process, program, device, allocator and, in a job of torchrun, "
		"mpirun or srun, rank.\n\n"
		"With --listen, a small HTTP server answers GET /metrics, and reads the statistics anew for each request. Only your own programs are shown; root sees those of all "
		"users. The programs themselves need no port, and do not notice.",
	.examples = "headroom metrics\n"
				"headroom metrics --listen 127.0.0.1:9789\n"
				"headroom metrics --format prometheus >/var/lib/node_exporter/headroom.prom",
	.options = options,
	.run = run,
};
