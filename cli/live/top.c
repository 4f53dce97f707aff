/* top.c - `headroom top`: a live table of the programs that use Headroom. */
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#include "core/base/text/text.h"
#include "command.h"
#include "terminal/output.h"
#include "live/segments.h"
#include "terminal/term.h"

#define ROWS_UNKNOWN 24
#define SPARK_LEAST 9  /* columns: fewer show nothing useful, and the heading has to fit */
#define LINES_AROUND 4 /* lines besides the table: title, empty line, "... and N more", the cursor's line */

enum { ONCE, JSON, INTERVAL };

static const hr__option options[] = {
	[ONCE] = { "--once", NULL, "print the table once and end; also what happens when the output is no terminal" },
	[JSON] = { "--json", NULL, "print one JSON object, once" },
	[INTERVAL] = { "--interval", "SECONDS", "how often to look: 0.1 to 60; default 1. Programs refresh what they show 4 times a second" },
	{ NULL, NULL, NULL },
};

/* Two samples: rates are differences between them. */
typedef struct view {
	hr__segments looks[2];
	int now; /* index of the latest */
	bool has_before;
} view;

/* ---- numbers ---- */

static const hr__segment_device *device_before(const view *v, const hr__segment *s, const char *name, uint64_t *then_ns)
{
	const hr__segments *before = &v->looks[!v->now];
	for (size_t i = 0; v->has_before && i < before->count; i++) {
		const hr__segment *old = &before->list[i];
		if (old->process != s->process || old->birth != s->birth) continue;
		for (uint32_t j = 0; j < old->device_count; j++) {
			if (strcmp(old->devices[j].name, name) != 0) continue;
			*then_ns = old->now_wall_ns;
			return &old->devices[j];
		}
	}
	return NULL;
}

/* Allocations per second since the previous sample; negative if unknown. */
static double rate_of(const view *v, const hr__segment *s, const hr__segment_device *device)
{
	uint64_t then;
	const hr__segment_device *old = device_before(v, s, device->name, &then);
	if (!old || s->now_wall_ns <= then || device->num_allocs < old->num_allocs) return -1;
	return (double)(device->num_allocs - old->num_allocs) / ((double)(s->now_wall_ns - then) * 1e-9);
}

/* ---- sparklines ---- */

/* The latest [most] samples, oldest first; returns their number. */
static size_t samples_of(const hr__segment *s, const hr__segment_device *device, int64_t *out, size_t most)
{
	size_t count = s->samples < HR__SEGMENT_SAMPLES ? (size_t)s->samples : HR__SEGMENT_SAMPLES;
	if (count > most) count = most;
	for (size_t i = 0; i < count; i++) out[i] = device->samples[(s->samples - count + i) % HR__SEGMENT_SAMPLES];
	return count;
}

static void print_sparkline(const hr__segment *s, const hr__segment_device *device, int width)
{
	static const char *const blocks[] = { "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█" };
	static const char *const letters[] = { "_", ".", ":", "-", "=", "+", "*", "#" };
	int64_t samples[HR__SEGMENT_SAMPLES], most = 1;
	size_t count = samples_of(s, device, samples, width > 0 ? (size_t)width : 0);
	bool utf8 = hr__term_utf8();
	for (size_t i = 0; i < count; i++)
		if (samples[i] > most) most = samples[i];
	fputs(hr__style(stdout, HR__STYLE_IN_USE), stdout);
	for (size_t i = 0; i < count; i++) {
		int level = (int)((double)samples[i] / (double)most * 7.0 + 0.5);
		fputs((utf8 ? blocks : letters)[level], stdout);
	}
	fputs(hr__style(stdout, HR__STYLE_PLAIN), stdout);
}

/* ---- the table ---- */

/* name: heading, width, left-aligned?, order of removal on narrow terminals: highest first; 0 = never removed. */
#define COLUMNS_TABLE(X)               \
	X(PROCESS, "process", 7, false, 0) \
	X(PROGRAM, "program", 15, true, 1) \
	X(DEVICE, "device", 7, true, 2)    \
	X(IN_USE, "in use", 10, false, 0)  \
	X(PEAK, "peak", 10, false, 4)      \
	X(LIMIT, "limit", 10, false, 6)    \
	X(FULL, "full", 5, false, 3)       \
	X(RATE, "allocs/s", 9, false, 7)   \
	X(REFUSED, "refused", 8, false, 5)

enum {
#define COLUMN(name, heading, width, left, drop) name,
	COLUMNS_TABLE(COLUMN)
#undef COLUMN
	COLUMN_COUNT
};

static const struct {
	const char *heading;
	int width;
	bool left;
	int drop;
} columns[] = {
#define COLUMN(name, heading, width, left, drop) { heading, width, left, drop },
	COLUMNS_TABLE(COLUMN)
#undef COLUMN
};

/* The columns that fit into a line. */
typedef struct top_layout {
	bool shows[COLUMN_COUNT];
	int width; /* of a line */
	int spark; /* columns of the sparkline; 0 = none */
} top_layout;

static top_layout fit_columns(int width)
{
	top_layout fit = { .width = width };
	int used = -1;
	for (int i = 0; i < COLUMN_COUNT; i++) fit.shows[i] = true, used += columns[i].width + 1;
	for (int drop = COLUMN_COUNT; drop > 0 && used > width; drop--)
		for (int i = 0; i < COLUMN_COUNT; i++)
			if (columns[i].drop == drop) fit.shows[i] = false, used -= columns[i].width + 1;
	fit.spark = width - used - 2;
	if (fit.spark < SPARK_LEAST) fit.spark = 0;
	if (fit.spark > (int)HR__SEGMENT_SAMPLES) fit.spark = (int)HR__SEGMENT_SAMPLES;
	return fit;
}

/* On a live screen each line also erases the rest of the terminal's line. A line of full width would lose its last character, so
 * line_width leaves one column free. */
static const char *end_of_line(bool live)
{
	return live ? "\033[K\n" : "\n";
}

static int line_width(bool live)
{
	struct winsize size;
	int width = hr__term_width();
	/* Use the terminal's own width if it is smaller than COLUMNS, because lines must not wrap on a live screen. */
	if (live && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1 && size.ws_col < width) width = size.ws_col;
	return width - live;
}

/* Prints a line of text, truncated to the width. */
static void print_line(const char *text, bool live)
{
	printf("%.*s%s", line_width(live), text, end_of_line(live));
}

static void print_cell(const top_layout *fit, int column, const char *text, hr__style_name style)
{
	if (!fit->shows[column]) return;
	int width = columns[column].width;
	printf("%s%s%*.*s%s", column ? " " : "", hr__style(stdout, style), columns[column].left ? -width : width, width, text,
	       hr__style(stdout, HR__STYLE_PLAIN));
}

static void print_heading(const top_layout *fit, bool live)
{
	char spark[32];
	for (int i = 0; i < COLUMN_COUNT; i++) print_cell(fit, i, columns[i].heading, HR__STYLE_HEADING);
	snprintf(spark, sizeof spark, "last %.0f s", (double)fit->spark * HR__SEGMENT_PERIOD_NS * 1e-9);
	if (fit->spark) printf("  %s%s%s", hr__style(stdout, HR__STYLE_HEADING), spark, hr__style(stdout, HR__STYLE_PLAIN));
	fputs(end_of_line(live), stdout);
}

/* Formats a count for [width] columns, in exponential notation if it has too many digits. */
static const char *short_count(uint64_t value, char *out, size_t capacity, int width)
{
	hr__format_count(value, out, capacity);
	if ((int)strlen(out) > width) snprintf(out, capacity, "%.1e", (double)value);
	return out;
}

static void print_device(const view *v, const hr__segment *s, const hr__segment_device *device, const top_layout *fit, bool live)
{
	char text[32];
	double per_second = rate_of(v, s, device);
	double full = device->bytes_limit ? 100.0 * (double)device->bytes_in_use / (double)device->bytes_limit : -1;
	snprintf(text, sizeof text, "%u", s->process);
	print_cell(fit, PROCESS, text, HR__STYLE_PLAIN);
	print_cell(fit, PROGRAM, s->program, HR__STYLE_PLAIN);
	print_cell(fit, DEVICE, device->name, HR__STYLE_PLAIN);
	print_cell(fit, IN_USE, hr__format_size((uint64_t)device->bytes_in_use, text, sizeof text), HR__STYLE_PLAIN);
	print_cell(fit, PEAK, hr__format_size((uint64_t)device->peak_bytes_in_use, text, sizeof text), HR__STYLE_PLAIN);
	print_cell(fit, LIMIT, device->bytes_limit ? hr__format_size((uint64_t)device->bytes_limit, text, sizeof text) : "none",
	           HR__STYLE_PLAIN);
	snprintf(text, sizeof text, "%.0f%%", full);
	print_cell(fit, FULL, full < 0 ? "-" : full > 999 ? ">999%" : text, HR__STYLE_PLAIN);
	print_cell(fit, RATE, per_second < 0 ? "-" : short_count((uint64_t)per_second, text, sizeof text, columns[RATE].width),
	           HR__STYLE_PLAIN);
	print_cell(fit, REFUSED, short_count((uint64_t)device->num_failed_allocs, text, sizeof text, columns[REFUSED].width),
	           device->num_failed_allocs ? HR__STYLE_ERROR : HR__STYLE_PLAIN);
	if (fit->spark) fputs("  ", stdout), print_sparkline(s, device, fit->spark);
	fputs(end_of_line(live), stdout);
}

/* Prints at most [rows] lines. */
static void print_table(const view *v, bool live, int rows)
{
	const hr__segments *look = &v->looks[v->now];
	top_layout fit = fit_columns(line_width(live));
	int printed = 1;
	print_heading(&fit, live);
	for (size_t i = 0; i < look->count; i++)
		for (uint32_t j = 0; j < look->list[i].device_count; j++)
			if (printed++ < rows) print_device(v, &look->list[i], &look->list[i].devices[j], &fit, live);
	if (printed == 1) {
		print_line("No program publishes its statistics.", live);
		print_line("Start one with 'headroom run', or", live);
		print_line("with HEADROOM_TOP=1 in its environment.", live);
	}
	if (printed > rows) printf("... and %d more%s", printed - rows, end_of_line(live));
}

/* ---- JSON ---- */

static void write_device(hr__json *json, const hr__segment *s, const hr__segment_device *device)
{
	int64_t samples[HR__SEGMENT_SAMPLES];
	size_t count = samples_of(s, device, samples, HR__SEGMENT_SAMPLES);
	hr__json_object(json);
	hr__json_field_string(json, "name", device->name);
#define FIELD(name) hr__json_field_int(json, #name, device->name);
	HR__SEGMENT_STATS_TABLE(FIELD)
#undef FIELD
	hr__json_key(json, "samples");
	hr__json_array(json);
	for (size_t i = 0; i < count; i++) hr__json_int(json, samples[i]);
	hr__json_end_array(json);
	hr__json_end_object(json);
}

static void write_program(hr__json *json, const hr__segment *s)
{
	hr__json_object(json);
	hr__json_field_uint(json, "process", s->process);
	hr__json_field_string(json, "program", s->program);
	hr__json_field_uint(json, "begin_ns", s->begin_wall_ns);
	hr__json_field_uint(json, "time_ns", s->now_wall_ns);
	hr__json_field_bool(json, "recording", s->recording != 0);
	hr__rank_json(json, &s->rank);
	hr__json_key(json, "devices");
	hr__json_array(json);
	for (uint32_t i = 0; i < s->device_count; i++) write_device(json, s, &s->devices[i]);
	hr__json_end_array(json);
	hr__json_end_object(json);
}

static void print_json(const hr__segments *look)
{
	hr__json json;
	hr__output_json_begin(&json);
	hr__json_object(&json);
	hr__json_field_uint(&json, "sample_period_ns", HR__SEGMENT_PERIOD_NS);
	hr__json_field_uint(&json, "removed", look->removed);
	hr__json_key(&json, "programs");
	hr__json_array(&json);
	for (size_t i = 0; i < look->count; i++) write_program(&json, &look->list[i]);
	hr__json_end_array(&json);
	hr__json_end_object(&json);
	hr__output_json_end(&json);
}

/* ---- live ---- */

static volatile sig_atomic_t interrupted;

static void interrupt(int signal_number)
{
	(void)signal_number;
	interrupted = 1;
}

static int terminal_rows(void)
{
	struct winsize size;
	return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_row > LINES_AROUND ? size.ws_row : ROWS_UNKNOWN;
}

/* Waits until the next refresh. True if the user quits. */
static bool wait_for_key(bool has_keys, double seconds)
{
	struct pollfd keys = { .fd = has_keys ? STDIN_FILENO : -1, .events = POLLIN };
	char key;
	if (poll(&keys, 1, (int)(seconds * 1000)) <= 0 || !has_keys) return interrupted;
	return interrupted || read(STDIN_FILENO, &key, 1) != 1 || key == 'q' || key == 'Q' || key == 3 || key == 4;
}

static void show(const view *v)
{
	char when[32] = "", title[96];
	time_t now = time(NULL);
	struct tm parts;
	if (localtime_r(&now, &parts)) strftime(when, sizeof when, "%H:%M:%S", &parts);
	snprintf(title, sizeof title, "headroom top  %s  %zu program%s  q to quit", when, v->looks[v->now].count,
	         hr__plural(v->looks[v->now].count));
	fputs("\033[H", stdout);
	fputs(hr__style(stdout, HR__STYLE_STRONG), stdout);
	print_line(title, true);
	fputs(hr__style(stdout, HR__STYLE_PLAIN), stdout);
	print_line("", true);
	print_table(v, true, terminal_rows() - LINES_AROUND);
	fputs("\033[J", stdout);
	fflush(stdout);
}

static int run_live(view *v, double seconds)
{
	struct termios before, raw;
	struct sigaction action = { .sa_handler = interrupt };
	bool has_keys = tcgetattr(STDIN_FILENO, &before) == 0;
	sigaction(SIGINT, &action, NULL);
	sigaction(SIGTERM, &action, NULL);
	if (has_keys) {
		raw = before;
		raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
		tcsetattr(STDIN_FILENO, TCSANOW, &raw);
	}
	fputs("\033[?1049h\033[?25l", stdout); /* alternate screen, hidden cursor */
	do {
		v->now = !v->now;
		hr__segments_read(&v->looks[v->now]);
		show(v);
		v->has_before = true;
	} while (!ferror(stdout) && !wait_for_key(has_keys, seconds));
	fputs("\033[?25h\033[?1049l", stdout);
	if (has_keys) tcsetattr(STDIN_FILENO, TCSANOW, &before);
	return HR__EXIT_DONE;
}

/* ---- the command ---- */

static int run(const hr__arguments *arguments)
{
	static view v; /* too large for the stack */
	double seconds = 1;
	if (!hr__arguments_decimal(arguments, INTERVAL, "s", 0.1, 60, &seconds)) return HR__EXIT_BAD;
	bool json = hr__arguments_has(arguments, JSON);
	if (!json && !hr__arguments_has(arguments, ONCE) && hr__term_can(stdout)) return run_live(&v, seconds);
	hr__segments_read(&v.looks[v.now]);
	if (json) print_json(&v.looks[v.now]);
	else print_table(&v, false, 1 << 20);
	return HR__EXIT_DONE;
}

const hr__command hr__command_top = {
	.name = "top",
	.operands = "",
	.summary = "live statistics of running programs",
	.about =
		"Shows the running programs that were started with 'headroom run' or HEADROOM_TOP=1: for each device, the memory in "
		"use, the peak, the limit, allocations per second, requests refused, and the memory in use over the last 16 seconds. On "
		"a narrow terminal the less important columns are left out. Only your own programs are shown; root sees those of all "
		"users.\n\n"
		"A program publishes its statistics in a file of 16 KiB in $XDG_RUNTIME_DIR or /dev/shm that only its user can read. "
		"A thread of its own writes it 4 times a second. Files that killed programs left are removed.\n\n"
		"Press q to quit.",
	.examples = "headroom top\n"
				"headroom top --once --json",
	.options = options,
	.run = run,
};
