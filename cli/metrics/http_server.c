/* http_server.c - see http_server.h.
 *
 *     READING -> WRITING -> DRAINING -> closed
 *
 * A connection that is closed while bytes of its client are unread is reset, and the client may lose the answer. So after the answer the server
 * reads on for a while. Every state ends at the connection's deadline. */
#define _GNU_SOURCE
#include "metrics/http_server.h"

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "metrics/http_request.h"

#define CONNECTIONS_MAX 16
#define DEADLINE_MS 5000
#define DRAIN_BYTES_MAX 65536u
#define BACKLOG 64

/* ---- addresses ---- */

static bool parse_port(const char *text, unsigned *out)
{
	unsigned port = 0;
	const char *at = text;
	for (; *at >= '0' && *at <= '9' && port <= 65535; at++) port = 10 * port + (unsigned)(*at - '0');
	*out = port;
	return at != text && !*at && port <= 65535;
}

static bool is_host(const char *host)
{
	unsigned char address[sizeof(struct in6_addr)];
	return inet_pton(AF_INET, host, address) == 1 || inet_pton(AF_INET6, host, address) == 1;
}

bool hr__http_parse_address(const char *text, unsigned default_port, char host[HR__HTTP_ADDRESS_BYTES], unsigned *port)
{
	size_t length = strlen(text);
	const char *colon = strrchr(text, ':'), *end = text + length;
	*port = default_port;
	strcpy(host, "127.0.0.1");
	if (!length || length >= HR__HTTP_ADDRESS_BYTES) return false;
	if (parse_port(text, port)) return true;
	*port = default_port;
	bool brackets = text[0] == '[', has_port = colon && (!brackets || colon[-1] == ']') && (brackets || strchr(text, ':') == colon);
	if (has_port && !parse_port(colon + 1, port)) return false;
	if (has_port) end = colon;
	if (brackets && (end - text < 2 || end[-1] != ']')) return false;
	if (end == text) return true;
	snprintf(host, HR__HTTP_ADDRESS_BYTES, "%.*s", (int)(end - text) - 2 * brackets, text + brackets);
	if (strcmp(host, "localhost") == 0) strcpy(host, "127.0.0.1");
	return is_host(host);
}

static socklen_t make_address(const char *host, unsigned port, struct sockaddr_storage *out)
{
	struct sockaddr_in *four = (struct sockaddr_in *)out;
	struct sockaddr_in6 *six = (struct sockaddr_in6 *)out;
	memset(out, 0, sizeof *out);
	if (inet_pton(AF_INET, host, &four->sin_addr) == 1) {
		four->sin_family = AF_INET;
		four->sin_port = htons((uint16_t)port);
		return sizeof *four;
	}
	if (inet_pton(AF_INET6, host, &six->sin6_addr) != 1) return 0;
	six->sin6_family = AF_INET6;
	six->sin6_port = htons((uint16_t)port);
	return sizeof *six;
}

static void show_address(int listener, const char *host, char address[HR__HTTP_ADDRESS_BYTES])
{
	struct sockaddr_storage bound = { 0 };
	socklen_t length = sizeof bound;
	getsockname(listener, (struct sockaddr *)&bound, &length);
	bool six = bound.ss_family == AF_INET6;
	unsigned port = ntohs(six ? ((struct sockaddr_in6 *)&bound)->sin6_port : ((struct sockaddr_in *)&bound)->sin_port);
	snprintf(address, HR__HTTP_ADDRESS_BYTES, six ? "[%.60s]:%u" : "%.60s:%u", host, port);
}

int hr__http_listen(const char *host, unsigned port, char address[HR__HTTP_ADDRESS_BYTES])
{
	struct sockaddr_storage wanted;
	socklen_t length = make_address(host, port, &wanted);
	int yes = 1, listener = socket(wanted.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (listener < 0) return -1;
	setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
	if (bind(listener, (struct sockaddr *)&wanted, length) == 0 && listen(listener, BACKLOG) == 0) {
		show_address(listener, host, address);
		return listener;
	}
	int error = errno;
	close(listener);
	errno = error;
	return -1;
}

/* ---- connections ---- */

enum connection_state { CLOSED, READING, WRITING, DRAINING };

typedef struct http_connection {
	enum connection_state state;
	int fd;
	uint64_t deadline_ms;
	char request[HR__HTTP_REQUEST_MAX];
	size_t received, drained;
	char *answer;
	size_t length, sent;
} http_connection;

typedef struct http_server {
	int listener;
	hr__http_body body;
	void *context;
	http_connection connections[CONNECTIONS_MAX];
} http_server;

static uint64_t now_ms(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

static void close_connection(http_connection *c)
{
	close(c->fd);
	free(c->answer);
	c->answer = NULL;
	c->state = CLOSED;
}

/* Makes the answer from its body, which may be NULL. */
static bool make_answer(http_connection *c, int status, const char *type, const char *body, size_t length)
{
	char head[512];
	int used = snprintf(head, sizeof head,
	                    "HTTP/1.1 %d %s\r\nContent-Type: %s\r\nContent-Length: %zu\r\nConnection: close\r\nX-Content-Type-Options: nosniff\r\n%s\r\n", status,
	                    hr__http_reason(status), type, length, status == 405 ? "Allow: GET\r\n" : "");
	c->answer = malloc((size_t)used + length);
	if (!c->answer) return false;
	memcpy(c->answer, head, (size_t)used);
	if (length) memcpy(c->answer + used, body, length);
	c->length = (size_t)used + length;
	c->sent = 0;
	return true;
}

static void answer(http_server *server, http_connection *c, hr__http_request request)
{
	static const char plain[] = "text/plain; charset=utf-8";
	char refusal[96], *body = refusal;
	size_t length = (size_t)snprintf(refusal, sizeof refusal, "%d %s; the metrics are at GET /metrics\n", request.status, hr__http_reason(request.status));
	const char *type = plain;
	if (request.status == 200) {
		type = request.openmetrics ? "application/openmetrics-text; version=1.0.0; charset=utf-8" : "text/plain; version=0.0.4; charset=utf-8";
		body = server->body(server->context, request.openmetrics, &length);
		if (!body) request.status = 500, length = 0, type = plain;
	}
	bool made = make_answer(c, request.status, type, body, length);
	if (body != refusal) free(body);
	if (made) c->state = WRITING;
	else close_connection(c);
}

static bool is_waiting(void)
{
	return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
}

static void read_request(http_server *server, http_connection *c)
{
	ssize_t count = recv(c->fd, c->request + c->received, sizeof c->request - c->received, 0);
	if (count < 0 && is_waiting()) return;
	if (count <= 0) {
		close_connection(c);
		return;
	}
	c->received += (size_t)count;
	hr__http_request request = hr__http_request_read(c->request, c->received);
	if (request.status) answer(server, c, request);
}

static void write_answer(http_connection *c)
{
	ssize_t count = send(c->fd, c->answer + c->sent, c->length - c->sent, MSG_NOSIGNAL);
	if (count < 0 && is_waiting()) return;
	if (count < 0) {
		close_connection(c);
		return;
	}
	c->sent += (size_t)count;
	if (c->sent < c->length) return;
	shutdown(c->fd, SHUT_WR);
	c->state = DRAINING;
}

static void drain(http_connection *c)
{
	ssize_t count = recv(c->fd, c->request, sizeof c->request, 0);
	if (count < 0 && is_waiting()) return;
	c->drained += count > 0 ? (size_t)count : 0;
	if (count <= 0 || c->drained > DRAIN_BYTES_MAX) close_connection(c);
}

static void progress(http_server *server, http_connection *c)
{
	if (c->state == READING) read_request(server, c);
	else if (c->state == WRITING) write_answer(c);
	else drain(c);
}

static http_connection *unused_connection(http_server *server)
{
	for (int i = 0; i < CONNECTIONS_MAX; i++)
		if (server->connections[i].state == CLOSED) return &server->connections[i];
	return NULL;
}

/* False if the listener fails for good. */
static bool accept_one(http_server *server)
{
	http_connection *c = unused_connection(server);
	int fd = accept4(server->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	if (fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS))
		nanosleep(&(struct timespec){ .tv_nsec = 100000000 }, NULL); /* the connection stays in the queue */
	if (fd < 0) return errno != EBADF && errno != EINVAL && errno != ENOTSOCK;
	*c = (http_connection){ .state = READING, .fd = fd, .deadline_ms = now_ms() + DEADLINE_MS };
	return true;
}

/* ---- the loop ---- */

static volatile sig_atomic_t stopped;

static sigset_t waiting_mask; /* of blocked signals, while the server waits */

static void stop(int signal_number)
{
	(void)signal_number;
	stopped = 1;
}

void hr__http_catch_signals(void)
{
	struct sigaction action = { .sa_handler = stop };
	sigset_t blocked;
	sigemptyset(&blocked);
	sigaddset(&blocked, SIGINT);
	sigaddset(&blocked, SIGTERM);
	sigprocmask(SIG_BLOCK, &blocked, &waiting_mask);
	sigdelset(&waiting_mask, SIGINT);
	sigdelset(&waiting_mask, SIGTERM);
	sigaction(SIGINT, &action, NULL);
	sigaction(SIGTERM, &action, NULL);
}

/* Fills in what to wait for: each open connection, then the listener if there is room for another connection. Returns the wait in ms; -1: no limit. */
static int prepare(http_server *server, struct pollfd *fds)
{
	uint64_t now = now_ms(), first = UINT64_MAX;
	for (int i = 0; i < CONNECTIONS_MAX; i++) {
		http_connection *c = &server->connections[i];
		if (c->state != CLOSED && c->deadline_ms <= now) close_connection(c);
		fds[i] = (struct pollfd){ .fd = c->state == CLOSED ? -1 : c->fd, .events = c->state == WRITING ? POLLOUT : POLLIN };
		if (c->state != CLOSED && c->deadline_ms < first) first = c->deadline_ms;
	}
	fds[CONNECTIONS_MAX] = (struct pollfd){ .fd = unused_connection(server) ? server->listener : -1, .events = POLLIN };
	return first == UINT64_MAX ? -1 : (int)(first - now);
}

static int serve(http_server *server)
{
	struct pollfd fds[CONNECTIONS_MAX + 1];
	while (!stopped) {
		int wait = prepare(server, fds);
		struct timespec limit = { .tv_sec = wait / 1000, .tv_nsec = wait % 1000 * 1000000L };
		/* The signals are blocked but here, so that none comes between the test of `stopped` and the wait. */
		if (ppoll(fds, CONNECTIONS_MAX + 1, wait < 0 ? NULL : &limit, &waiting_mask) < 0 && errno != EINTR) return errno;
		if (stopped) break;
		for (int i = 0; i < CONNECTIONS_MAX; i++)
			if (fds[i].fd >= 0 && fds[i].revents) progress(server, &server->connections[i]);
		if (fds[CONNECTIONS_MAX].revents && !accept_one(server)) return errno;
	}
	return 0;
}

int hr__http_serve(int listener, hr__http_body body, void *context)
{
	http_server *server = calloc(1, sizeof *server);
	int error = ENOMEM;
	if (server) {
		server->listener = listener;
		server->body = body;
		server->context = context;
		error = serve(server);
		for (int i = 0; i < CONNECTIONS_MAX; i++)
			if (server->connections[i].state != CLOSED) close_connection(&server->connections[i]);
	}
	free(server);
	close(listener);
	return error;
}
