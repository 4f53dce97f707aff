/* outlook_svg.c - the picture of outlooks: a line for each means, and the bound of moving. The axis of time is logarithmic, because
 * moving alone takes several times as long, and the others a few percent longer. */
#include <math.h>
#include <stdio.h>

#include "core/base/text/text.h"
#include "plan/outlook.h"

#define WIDTH 640.0
#define HEIGHT 380.0
#define LEFT 56.0
#define RIGHT 20.0
#define TOP 64.0
#define BOTTOM 48.0

enum { BOUND = HR__OUTLOOK_MEANS, LINES };

static const char *const names[LINES] = { "moving", "recomputing", "both", "least by moving" };
static const char *const classes[LINES] = { "moving", "again", "both", "bound" };

/* Colors follow the system's light or dark mode. */
static const char style[] =
	"<style>\n"
	"svg { --ground: #ffffff; --ink: #1f2328; --soft: #59636e; --grid: #d8dee4; --moving: #bc4c00; --again: #8250df; --both: #0969da; }\n"
	"@media (prefers-color-scheme: dark) {\n"
	"svg { --ground: #0d1117; --ink: #e6edf3; --soft: #9198a1; --grid: #30363d; --moving: #f0883e; --again: #d2a8ff; --both: #58a6ff; }\n"
	"}\n"
	".ground { fill: var(--ground); }\n"
	"text { font: 12px system-ui, sans-serif; fill: var(--ink); }\n"
	".title { font-weight: 600; }\n"
	".tick { fill: var(--soft); }\n"
	".grid { stroke: var(--grid); stroke-width: 1; }\n"
	".line { fill: none; stroke-width: 2; stroke-linejoin: round; }\n"
	".moving { stroke: var(--moving); }\n"
	".again { stroke: var(--again); }\n"
	".both { stroke: var(--both); }\n"
	".bound { stroke: var(--soft); stroke-dasharray: 5 4; }\n"
	"</style>\n";

typedef struct hr__picture {
	FILE *to;
	const hr__forecast_facts *facts;
	const hr__outlook *outlooks;
	uint32_t count;
	double most; /* highest time over that without a limit */
} hr__picture;

/* Times the time without a limit; 0 = it does not fit. */
static double times_of(const hr__picture *p, uint32_t i, int line)
{
	const hr__outlook *outlook = &p->outlooks[i];
	double plain = (double)p->facts->plain_ns;
	if (plain == 0) return 0;
	if (line == BOUND) return 1 + (double)outlook->bound_ns / plain;
	return outlook->by[line].fits ? (double)outlook->by[line].step_ns / plain : 0;
}

static double x_of(const hr__picture *p, double share)
{
	double from = (double)p->outlooks[p->count - 1].limit / (double)p->facts->peak_bytes;
	return WIDTH - RIGHT - (1 - share) / (1 - from) * (WIDTH - LEFT - RIGHT);
}

static double y_of(const hr__picture *p, double times)
{
	return HEIGHT - BOTTOM - log(times) / log(p->most) * (HEIGHT - TOP - BOTTOM);
}

static void draw_axes(const hr__picture *p)
{
	static const double ticks[] = { 1, 1.05, 1.1, 1.2, 1.5, 2, 3, 5, 10, 20, 50, 100 };
	double last = HEIGHT;
	for (size_t i = 0; i < sizeof ticks / sizeof ticks[0] && ticks[i] <= p->most; i++) {
		double y = y_of(p, ticks[i]);
		if (last - y < 12) continue;
		last = y;
		fprintf(p->to, "<line class=\"grid\" x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\"/>", LEFT, y, WIDTH - RIGHT, y);
		fprintf(p->to, "<text class=\"tick\" x=\"%.1f\" y=\"%.1f\" text-anchor=\"end\">%g</text>\n", LEFT - 6, y + 4, ticks[i]);
	}
	for (int percent = 100; percent >= 10; percent -= 10) {
		double x = x_of(p, percent / 100.0);
		if (x < LEFT - 0.5) break;
		fprintf(p->to, "<text class=\"tick\" x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%d%%</text>\n", x, HEIGHT - BOTTOM + 18, percent);
	}
	char size[16];
	fprintf(p->to, "<text class=\"tick\" x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">memory limit, of the peak of %s</text>\n",
	        (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 10, hr__format_size(p->facts->peak_bytes, size, sizeof size));
}

/* Points that do not fit interrupt the line. All lines begin at the peak, where nothing has to be done. */
static void draw_line(const hr__picture *p, int line)
{
	bool drawing = true;
	fprintf(p->to, "<path class=\"line %s\" d=\"M%.1f %.1f", classes[line], x_of(p, 1), y_of(p, 1));
	for (uint32_t i = 0; i < p->count; i++) {
		double times = times_of(p, i, line);
		if (times > 0)
			fprintf(p->to, " %c%.1f %.1f", drawing ? 'L' : 'M', x_of(p, (double)p->outlooks[i].limit / (double)p->facts->peak_bytes),
			        y_of(p, times));
		drawing = times > 0;
	}
	fprintf(p->to, "\"/>\n");
}

/* Text of the program, such as a path, is made safe to be part of the file. */
static void print_escaped(FILE *to, const char *text)
{
	for (; *text; text++) {
		unsigned char c = (unsigned char)*text;
		if (c == '<') fputs("&lt;", to);
		else if (c == '>') fputs("&gt;", to);
		else if (c == '&') fputs("&amp;", to);
		else if (c >= 0x20 && c < 0x7f) fputc(c, to);
		else fputc('?', to);
	}
}

static void draw(const hr__picture *p, const char *title, uint64_t link)
{
	fprintf(p->to,
	        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" width=\"%.0f\" height=\"%.0f\" role=\"img\" "
	        "aria-label=\"Time of a step over its time without a limit, by memory limit\">\n%s"
	        "<rect class=\"ground\" width=\"%.0f\" height=\"%.0f\"/>\n<text class=\"title\" x=\"%.1f\" y=\"20\">",
	        WIDTH, HEIGHT, WIDTH, HEIGHT, style, WIDTH, HEIGHT, LEFT);
	print_escaped(p->to, title);
	fprintf(p->to, ": time of a step over its time without a limit, link %.6g GB/s</text>\n", (double)link / 1e9);
	for (int line = 0; line < LINES; line++) {
		double x = LEFT + 140.0 * line;
		fprintf(p->to, "<path class=\"line %s\" d=\"M%.1f 40 L%.1f 40\"/><text x=\"%.1f\" y=\"44\">%s</text>\n", classes[line], x, x + 24,
		        x + 30, names[line]);
	}
	draw_axes(p);
	for (int line = LINES; line-- > 0;) draw_line(p, line);
	fprintf(p->to, "</svg>\n");
}

bool hr__outlook_draw(const char *path, const char *title, const hr__forecast_facts *facts, uint64_t link, const hr__outlook *outlooks,
                      uint32_t count)
{
	hr__picture p = { .facts = facts, .outlooks = outlooks, .count = count, .most = 1.2 };
	for (uint32_t i = 0; i < count; i++)
		for (int line = 0; line < LINES; line++)
			if (times_of(&p, i, line) > p.most) p.most = times_of(&p, i, line);
	p.to = fopen(path, "w");
	if (!p.to) return false;
	draw(&p, title, link);
	bool failed = ferror(p.to) != 0;
	return fclose(p.to) == 0 && !failed;
}
