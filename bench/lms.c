/* lms.c - the cost of Large Model Support: step time as a function of memory, and the time of a pin.
 *
 *     lms [--svg FILE]
 *
 * The curve is in virtual time: a recorded training step is replayed on the simulated device, as `headroom plan` does
 * (cli/forecast.h), so it is the same on every machine. For each limit, in percent of the step's peak:
 *
 *   lru, learned   the step with that policy, relative to the step without a limit
 *   bound          lower bound for any way of moving tensors (docs/lms.md)
 *   moved, fewest  bytes over the link in a step, both ways, and the least that any plan moves (lms_fewest.h)
 *
 * The same is repeated with a link so fast that moving the fewest bytes takes two thirds of the time of the ops. There is then
 * enough time to hide the copies, and a policy that waits for every copy is slower.
 *
 * Pins are measured in real time, on this machine, and compared with an allocation and its free. */
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/base/checked.h"
#include "bench.h"
#include "plan/forecast.h"
#include "lms_fewest.h"
#include "plan/step_view.h"

#define PAGE (UINT64_C(2) << 20)
#define LINK UINT64_C(55000000000)
#define REPEATS 6

enum { LRU, LEARNED, POLICIES };
static const char *const policies[POLICIES] = { "lru", "learned" };
static const uint32_t limits[] = { 95, 90, 85, 75, 65, 50, 40, 30 };
#define LIMITS (sizeof limits / sizeof limits[0])
static const bool with_fast_link[LIMITS] = { [2] = true, [3] = true, [5] = true };

struct point {
	bool fits;
	double step_ms, bound_ms, moved_gb;
};

/* Shared with the child processes that fill it in. */
struct curve {
	uint64_t step;
	double plain_ms, peak_gb, fewest_gb[LIMITS], fast_gb[LIMITS]; /* fast_gb: speed of the fast link, GB/s */
	struct point at[POLICIES][LIMITS], fast[POLICIES][LIMITS];
};

static const char *const names[] = { "gpt2b16-use", "resnet-use" };
static const char *const titles[] = { "GPT-2 medium, batch 16", "ResNet-50, batch 64" };
#define TRACES (sizeof names / sizeof names[0])

/* ---- the curve ---- */

static void read_trace(const char *name, hr__schedule *schedule)
{
	char path[64];
	snprintf(path, sizeof path, "traces/%s.csv.gz", name);
	bench_must(hr__schedule_read(path, HR__FACTS_DEVICE_MOST, NULL, schedule));
}

static struct point forecast(const hr__schedule *schedule, uint32_t part, const char *policy, uint64_t limit, uint64_t link)
{
	hr__forecast_setup setup = {
		.schedule = schedule, .part = part, .repeats = REPEATS, .limit = limit, .link = link, .page = PAGE, .policy = policy
	};
	hr__forecast found;
	bench_must(hr__forecast_make(&setup, &found));
	struct point point = { found.fits, (double)found.step_ns / 1e6, (double)found.bound_ns / 1e6,
		                   (double)(found.bytes_out + found.bytes_in) / 1e9 };
	hr__forecast_free(&found);
	return point;
}

/* All limits of one trace and policy. Values that do not depend on the policy are the same in every process. */
static void fill(struct curve *curve, const char *name, uint32_t policy)
{
	hr__schedule schedule;
	hr__forecast_facts facts;
	hr__step_view view;
	read_trace(name, &schedule);
	uint32_t part = hr__schedule_typical_step(&schedule);
	bench_must(hr__forecast_facts_find(&schedule, part, &facts));
	bench_must(hr__step_view_make(&schedule, part, HR__FORECAST_GRANULARITY, &view));
	bench_must(hr__step_view_relax(&view));
	if (policy == LRU) {
		curve->step = schedule.parts[part].number;
		curve->plain_ms = (double)facts.plain_ns / 1e6;
		curve->peak_gb = (double)facts.peak_bytes / 1e9;
	}
	for (size_t i = 0; i < LIMITS; i++) {
		uint64_t limit = facts.peak_bytes / 100 * limits[i];
		double fewest = lms_fewest_bytes(&view.step, hr__align_down(limit, PAGE));
		uint64_t fast = (uint64_t)(fewest / 2 * 1e9 / ((double)facts.plain_ns * 2 / 3));
		if (policy == LRU) {
			curve->fewest_gb[i] = fewest / 1e9;
			curve->fast_gb[i] = (double)fast / 1e9;
		}
		curve->at[policy][i] = forecast(&schedule, part, policies[policy], limit, LINK);
		if (with_fast_link[i]) curve->fast[policy][i] = forecast(&schedule, part, policies[policy], limit, fast);
	}
	hr__step_view_free(&view);
	hr__schedule_free(&schedule);
}

/* One process per trace and policy, because the library's state is per process. */
static struct curve *fill_all(void)
{
	struct curve *curves = mmap(NULL, TRACES * sizeof *curves, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	int status;
	if (curves == MAP_FAILED) abort();
	fflush(stdout);
	for (uint32_t i = 0; i < TRACES * POLICIES; i++) {
		pid_t child = fork();
		if (child < 0) abort();
		if (child > 0) continue;
		fill(&curves[i / POLICIES], names[i / POLICIES], i % POLICIES);
		_exit(0);
	}
	while (wait(&status) > 0)
		if (status) exit(1);
	return curves;
}

static void print_curve(const struct curve *curve, const char *name)
{
	printf("\n%s, step %llu: %.1f ms without a limit, peak %.2f GB; link %.0f GB/s each way, virtual time\n", name,
	       (unsigned long long)curve->step, curve->plain_ms, curve->peak_gb, (double)LINK / 1e9);
	printf("  %5s %8s %8s %8s   %10s %10s %10s %7s   %9s %9s %9s %7s\n", "limit", "lru", "learned", "bound", "lru ms", "learned ms",
	       "bound ms", "/bound", "lru GB", "learn. GB", "fewest GB", "/fewest");
	for (size_t i = 0; i < LIMITS; i++) {
		const struct point *lru = &curve->at[LRU][i], *learned = &curve->at[LEARNED][i];
		printf("  %4u%%", limits[i]);
		if (!lru->fits || !learned->fits) {
			puts("  does not fit");
			continue;
		}
		double plain = curve->plain_ms, extra = learned->step_ms - plain;
		printf(" %7.3fx %7.3fx %7.3fx   %+10.1f %+10.1f %+10.1f", lru->step_ms / plain, learned->step_ms / plain,
		       1 + learned->bound_ms / plain, lru->step_ms - plain, extra, learned->bound_ms);
		if (learned->bound_ms > 0) printf(" %7.2f", extra / learned->bound_ms);
		else printf(" %7s", "-");
		printf("   %9.2f %9.2f %9.2f %7.3f\n", lru->moved_gb, learned->moved_gb, curve->fewest_gb[i],
		       learned->moved_gb / curve->fewest_gb[i]);
	}
	printf("  where moving the fewest bytes takes two thirds of the time of the ops:\n");
	printf("  %5s %8s   %10s %10s %10s   %8s\n", "limit", "GB/s", "lru ms", "learned ms", "bound ms", "of lru's");
	for (size_t i = 0; i < LIMITS; i++) {
		const struct point *lru = &curve->fast[LRU][i], *learned = &curve->fast[LEARNED][i];
		if (!lru->fits || !learned->fits) continue;
		double paged = lru->step_ms - curve->plain_ms, extra = learned->step_ms - curve->plain_ms;
		printf("  %4u%% %8.1f   %+10.1f %+10.1f %+10.1f   %7.0f%%\n", limits[i], curve->fast_gb[i], paged, extra, learned->bound_ms,
		       100 * extra / paged);
	}
}

/* ---- the picture ---- */

#define PANEL_W 340.0
#define PANEL_H 260.0
#define LEFT 54.0
#define TOP 74.0
#define BETWEEN 56.0
#define FROM 100.0 /* percent, at the left edge */
#define TO 28.0

static double x_of(size_t panel, double percent)
{
	return LEFT + (double)panel * (PANEL_W + BETWEEN) + (FROM - percent) / (FROM - TO) * PANEL_W;
}

static double y_of(double times, double most)
{
	return TOP + PANEL_H - (times - 1) / (most - 1) * PANEL_H;
}

enum { LINE_LRU = LRU, LINE_LEARNED = LEARNED, LINE_BOUND, LINES };
static const char *const line_names[LINES] = { "lru: moved when there is no room", "learned: moved ahead of need",
	                                           "bound: no way of moving is faster" };
static const char *const line_classes[LINES] = { "lru", "learned", "bound" };

static double times_of(const struct curve *curve, size_t i, int line)
{
	if (line == LINE_BOUND) return 1 + curve->at[LEARNED][i].bound_ms / curve->plain_ms;
	return curve->at[line][i].step_ms / curve->plain_ms;
}

static void draw_axes(FILE *to, size_t panel, double most)
{
	double left = x_of(panel, FROM), right = x_of(panel, TO);
	fprintf(to, "<text class=\"title\" x=\"%.1f\" y=\"%.1f\">%s</text>\n", left, TOP - 14, titles[panel]);
	for (double times = 1; times <= most; times++) {
		fprintf(to, "<line class=\"grid\" x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\"/>\n", left, y_of(times, most), right,
		        y_of(times, most));
		fprintf(to, "<text class=\"tick\" text-anchor=\"end\" x=\"%.1f\" y=\"%.1f\">%.0fx</text>\n", left - 8,
		        y_of(times, most) + 4, times);
	}
	for (int percent = 100; percent >= 30; percent -= 10)
		fprintf(to, "<text class=\"tick\" text-anchor=\"middle\" x=\"%.1f\" y=\"%.1f\">%d%s</text>\n", x_of(panel, percent),
		        TOP + PANEL_H + 18, percent, percent == 100 ? "%" : "");
	fprintf(to, "<text class=\"tick\" text-anchor=\"middle\" x=\"%.1f\" y=\"%.1f\">limit, in percent of the step's peak</text>\n",
	        (left + right) / 2, TOP + PANEL_H + 38);
}

static void draw_line(FILE *to, const struct curve *curve, size_t panel, int line, double most)
{
	fprintf(to, "<polyline class=\"line %s\" points=\"%.1f,%.1f", line_classes[line], x_of(panel, FROM), y_of(1, most));
	for (size_t i = 0; i < LIMITS; i++)
		if (curve->at[LRU][i].fits && curve->at[LEARNED][i].fits)
			fprintf(to, " %.1f,%.1f", x_of(panel, limits[i]), y_of(times_of(curve, i, line), most));
	fprintf(to, "\"/>\n");
	if (line == LINE_BOUND) return;
	for (size_t i = 0; i < LIMITS; i++) {
		if (!curve->at[LRU][i].fits || !curve->at[LEARNED][i].fits) continue;
		fprintf(to, "<circle class=\"dot %s\" cx=\"%.1f\" cy=\"%.1f\" r=\"3\"><title>%u%%, %s: %.2fx</title></circle>\n",
		        line_classes[line], x_of(panel, limits[i]), y_of(times_of(curve, i, line), most), limits[i], line_classes[line],
		        times_of(curve, i, line));
	}
}

/* Colors follow the system's light or dark mode. */
static const char style[] = "<style>\n"
							"svg { --ground: #ffffff; --ink: #1f2328; --soft: #59636e; --grid: #d8dee4; --lru: #bc4c00; --learned: "
							"#0969da; --bound: #59636e; }\n"
							"@media (prefers-color-scheme: dark) {\n"
							"svg { --ground: #0d1117; --ink: #e6edf3; --soft: #9198a1; --grid: #30363d; --lru: #f0883e; --learned: "
							"#58a6ff; --bound: #9198a1; }\n"
							"}\n"
							".ground { fill: var(--ground); }\n"
							"text { font: 12px system-ui, sans-serif; fill: var(--ink); }\n"
							".title { font-weight: 600; }\n"
							".tick { fill: var(--soft); }\n"
							".grid { stroke: var(--grid); stroke-width: 1; }\n"
							".line { fill: none; stroke-width: 2; stroke-linejoin: round; }\n"
							".line.lru { stroke: var(--lru); }\n"
							".line.learned { stroke: var(--learned); }\n"
							".line.bound { stroke: var(--bound); stroke-dasharray: 5 4; }\n"
							".dot.lru { fill: var(--lru); }\n"
							".dot.learned { fill: var(--learned); }\n"
							"</style>\n";

static void draw(const struct curve *curves, const char *path)
{
	double width = x_of(TRACES - 1, TO) + 24, height = TOP + PANEL_H + 52, most = 2;
	FILE *to = fopen(path, "w");
	if (!to) {
		perror(path);
		exit(1);
	}
	for (size_t panel = 0; panel < TRACES; panel++)
		for (size_t i = 0; i < LIMITS; i++)
			for (int line = 0; line < LINES; line++)
				while (times_of(&curves[panel], i, line) > most) most++;
	fprintf(
		to,
		"<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" width=\"%.0f\" height=\"%.0f\" role=\"img\" "
		"aria-label=\"Time of a training step over its time without a limit, by memory limit\">\n%s"
		"<rect class=\"ground\" width=\"%.0f\" height=\"%.0f\"/>\n"
		"<text class=\"title\" x=\"%.1f\" y=\"20\">Time of a training step over its time without a limit, link 55 GB/s</text>\n",
		width, height, width, height, style, width, height, LEFT);
	for (int line = 0; line < LINES; line++) {
		double x = LEFT + 244.0 * line;
		fprintf(to, "<line class=\"line %s\" x1=\"%.1f\" y1=\"38\" x2=\"%.1f\" y2=\"38\"/><text x=\"%.1f\" y=\"42\">%s</text>\n",
		        line_classes[line], x, x + 24, x + 30, line_names[line]);
	}
	for (size_t panel = 0; panel < TRACES; panel++) {
		draw_axes(to, panel, most);
		for (int line = 0; line < LINES; line++) draw_line(to, &curves[panel], panel, line, most);
	}
	fprintf(to, "</svg>\n");
	if (fclose(to)) {
		perror(path);
		exit(1);
	}
}

/* ---- pins ---- */

#define TENSORS 8
#define TENSOR_BYTES (1u << 20)
#define ROUNDS 15
#define STEP_PINS 2000 /* per step: pins are recorded until the step ends */
#define STEPS 25

static hr_allocator allocator;
static hr_pin pins[TENSORS];

static void open_tensors(const char *policy)
{
	hr_lms_options lms;
	hr_tensor_options options;
	allocator = bench_allocator(PAGE, 0, true);
	bench_must(hr_lms_options_init(&lms));
	lms.enabled = true;
	lms.policy = policy;
	bench_must(hr_lms_configure(allocator, &lms));
	hr_tensor_options_init(&options);
	options.bytes = TENSOR_BYTES;
	for (uint32_t i = 0; i < TENSORS; i++) {
		pins[i].access = HR_OVERWRITE;
		bench_must(hr_tensor_create(allocator, &options, &pins[i].tensor));
	}
	bench_must(hr_tensor_pin_all(pins, TENSORS, HR_STREAM_DEFAULT));
	bench_must(hr_tensor_unpin_all(pins, TENSORS, HR_STREAM_DEFAULT));
	for (uint32_t i = 0; i < TENSORS; i++) pins[i].access = HR_READ;
}

/* ns per tensor for a pin and unpin of [count] tensors in a call. */
static double pin(size_t count)
{
	double start = bench_now_ns();
	for (int step = 0; step < STEPS; step++) {
		bench_must(hr_step_begin(allocator));
		for (int i = 0; i < STEP_PINS; i++)
			if (hr_tensor_pin_all(pins, count, HR_STREAM_DEFAULT) || hr_tensor_unpin_all(pins, count, HR_STREAM_DEFAULT)) abort();
		bench_must(hr_step_end(allocator));
	}
	return (bench_now_ns() - start) / (STEPS * STEP_PINS * (double)count);
}

static double pair(void)
{
	void *block;
	double start = bench_now_ns();
	for (int i = 0; i < STEPS * STEP_PINS; i++)
		if (hr_alloc_bytes(allocator, TENSOR_BYTES, &block) || hr_free(allocator, block, HR_STREAM_DEFAULT)) abort();
	return (bench_now_ns() - start) / (STEPS * STEP_PINS);
}

static void print_pins(void)
{
	printf("\n%-48s %10s %10s\n", "resident tensors of 1 MiB, one thread", policies[LRU], policies[LEARNED]);
	double one[POLICIES], eight[POLICIES], pairs[POLICIES];
	for (int policy = 0; policy < POLICIES; policy++) {
		open_tensors(policies[policy]);
		one[policy] = eight[policy] = pairs[policy] = 1e9;
		for (int round = 0; round < ROUNDS; round++) {
			one[policy] = bench_least(one[policy], pin(1));
			eight[policy] = bench_least(eight[policy], pin(TENSORS));
			pairs[policy] = bench_least(pairs[policy], pair());
		}
		bench_must(hr_shutdown());
	}
	printf("%-48s %7.1f ns %7.1f ns\n", "pin and unpin", one[LRU], one[LEARNED]);
	printf("%-48s %7.1f ns %7.1f ns\n", "hr_tensor_pin_all and hr_tensor_unpin_all of 8, each tensor", eight[LRU], eight[LEARNED]);
	printf("%-48s %7.1f ns %7.1f ns\n", "hr_alloc and hr_free of 1 MiB", pairs[LRU], pairs[LEARNED]);
}

int main(int argc, char **argv)
{
	if (argc != 1 && !(argc == 3 && strcmp(argv[1], "--svg") == 0)) {
		fprintf(stderr, "usage: %s [--svg FILE]\n", argv[0]);
		return 2;
	}
	const struct curve *curves = fill_all();
	for (size_t i = 0; i < TRACES; i++) print_curve(&curves[i], names[i]);
	if (argc == 3) draw(curves, argv[2]);
	print_pins();
	return 0;
}
