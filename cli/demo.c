/* demo.c - `headroom demo`: trains a model three times: with unlimited memory; with half of the first peak, which ends in an OOM
 * report; and with half of it and Large Model Support, which gives the same losses. All three are recorded, and charts are made. */
#define _GNU_SOURCE /* program_invocation_name */
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../examples/models.h"
#include "headroom_record.h"
#include "headroom_runtime.h"
#include "core/base/text/text.h"
#include "core/device/device.h"
#include "headroom_lms.h"
#include "headroom_oom.h"
#include "core/os/os.h"
#include "report/profile.h"
#include "analysis/export/export_file.h"
#include "analysis/export/export_formats.h"
#include "analysis/page/page.h"
#include "analysis/view/view.h"

#define STEPS 20
#define STEPS_MAX 1000
#define PERCENT 50 /* limit of the second and third training, in percent of the first one's peak */
#define INDENT 3
#define SESSION "headroom_demo" /* name of the session in TensorBoard; the same for every run of the demo */
#define SESSION_FOLDER "tensorboard/plugins/profile/" SESSION

enum { OUT, STEP_COUNT };

static const hr__option options[] = {
	[OUT] = { "--out", "DIR", "where the recording, the report and the pictures go: training.hrt, oom.json, oom.txt, report.html and tensorboard; files of these names are replaced. Default headroom-demo" },
	[STEP_COUNT] = { "--steps", "N", "steps of each training, 1 to 1000; default 20" },
	{ NULL, NULL, NULL },
};

struct training {
	const char *name; /* of the allocator */
	uint64_t limit;   /* bytes; 0: all of the device */
	bool lms;
	hr_status status; /* of the last step */
	hr_oom_report report; /* on the first refused request */
	uint64_t steps;   /* completed */
	uint64_t ns;      /* time of all steps */
	int64_t peak;
	hr_lms_stats moved;
	float losses[STEPS_MAX];
};

struct demo {
	const char *folder;
	uint64_t steps;
	struct model model;
	struct training whole, less, with_lms;
	bool on_card;     /* else on an emulated GPU:0 */
	uint64_t page_bytes;
	hr__progress progress;
};

/* ---- files ---- */

static const char *path_of(const struct demo *demo, const char *name, char out[PATH_MAX])
{
	snprintf(out, PATH_MAX, "%s/%s", demo->folder, name);
	return out;
}

/* Removes the files of an earlier session, including those that TensorBoard computed from it and would show again. Only files in
 * the demo's own session are removed. */
static int clear_session(const struct demo *demo)
{
	char path[PATH_MAX];
	DIR *folder = opendir(path_of(demo, SESSION_FOLDER, path));
	if (!folder) return errno == ENOENT ? HR__EXIT_DONE : hr__complain("demo: cannot replace %s: %s", path, hr__os_error(errno));
	int failed = 0;
	for (const struct dirent *entry; !failed && (entry = readdir(folder));) {
		if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
		if (unlinkat(dirfd(folder), entry->d_name, 0)) failed = errno;
	}
	closedir(folder);
	return failed ? hr__complain("demo: cannot replace what is in %s: %s", path, hr__os_error(failed)) : HR__EXIT_DONE;
}

/* Removes the files of an earlier demo. */
static int prepare_folder(const struct demo *demo)
{
	static const char *const names[] = { "training.hrt", "oom.json", "oom.txt", "report.html" };
	char path[PATH_MAX];
	if (strlen(demo->folder) + 64 > PATH_MAX) return hr__complain("demo: the path of --out is too long");
	if (hr__export_make_folder(demo->folder)) return hr__complain_last();
	for (size_t i = 0; i < sizeof names / sizeof *names; i++)
		if (unlink(path_of(demo, names[i], path)) && errno != ENOENT) return hr__complain("demo: cannot replace %s: %s", path, hr__os_error(errno));
	return clear_session(demo);
}

/* ---- training ---- */

/* Keeps the first report only: ops that do not depend on the failed one still run and may fail too, but the first failure is the
 * cause. */
static void keep_first(void *training, hr_oom_report report)
{
	hr_oom_report *first = &((struct training *)training)->report;
	if (!first->id) *first = report;
}

static hr_status make_allocator(struct training *training, hr_allocator *out)
{
	hr_device device;
	hr_lms_options lms;
	hr_allocator_options allocator;
	hr_allocator_options_init(&allocator);
	allocator.name = training->name;
	allocator.limit_bytes = training->limit;
	allocator.oom.report_allocations_on_oom = true;
	allocator.oom.callback = keep_first;
	allocator.oom.user = training;
	hr_status status = hr_lms_options_init(&lms);
	if (!status) status = hr_device_find("GPU:0", &device);
	if (!status) status = hr_allocator_create(device, &allocator, out);
	lms.enabled = training->lms;
	lms.policy = "learned";
	return status ? status : hr_lms_configure(*out, &lms);
}

static hr_status open_session(hr_allocator allocator, hr_session *out)
{
	hr_session_options session;
	hr_session_options_init(&session);
	session.device = "GPU:0";
	session.allocator = allocator;
	hr_status status = hr_session_create(&session, out);
	return status ? status : hr_session_enter(*out);
}

static hr_status train_step(const struct model *model, hr_allocator allocator, const hr_optimizer *optimizer, uint64_t step, float *loss)
{
	uint64_t batch = step % 2; /* two batches in turn, so that the loss decreases */
	hr_status status = hr_step_begin(allocator); /* the learned policy needs step boundaries */
	if (status) return status;
	hr_value x = model->inputs(model, batch), labels = model->labels(model, batch);
	status = hr_value_fetch(model_train(model, x, labels, optimizer, false), loss, sizeof *loss);
	hr_step_end(allocator);
	return status;
}

/* Trains until all steps are done or memory runs out. The phase ends at [part] of the progress bar. */
static hr_status train(struct demo *demo, struct training *training, double part)
{
	hr_allocator allocator;
	hr_session session;
	hr_optimizer adam;
	hr_stats stats;
	hr__progress_phase(&demo->progress, "training", part);
	hr_status status = make_allocator(training, &allocator);
	if (!status) status = open_session(allocator, &session);
	if (status) return status;
	hr_optimizer_init(&adam, HR_ADAM);
	uint64_t begin = hr__os()->clock_ns();
	while (training->steps < demo->steps && !training->status) {
		hr__progress_show(&demo->progress, (double)training->steps / (double)demo->steps);
		training->status = train_step(&demo->model, allocator, &adam, training->steps, &training->losses[training->steps]);
		training->steps += training->status == HR_OK;
	}
	training->ns = hr__os()->clock_ns() - begin;
	hr__progress_hide(&demo->progress);
	if (training->status && training->status != HR_OUT_OF_MEMORY) return training->status;
	hr_stats_init(&stats);
	training->moved.struct_size = sizeof training->moved;
	status = hr_allocator_get_stats(allocator, &stats);
	if (!status) status = hr_lms_get_stats(allocator, &training->moved);
	training->peak = stats.peak_bytes_in_use;
	hr_session_leave();
	if (!status) status = hr_session_destroy(session);
	return status ? status : hr_allocator_destroy(allocator);
}

/* ---- output ---- */

static void print_heading(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void print_heading(const char *format, ...)
{
	va_list list;
	va_start(list, format);
	fputs(hr__style(stdout, HR__STYLE_HEADING), stdout);
	vprintf(format, list);
	printf("%s\n", hr__style(stdout, HR__STYLE_PLAIN));
	va_end(list);
}

static void print_text(const char *text, int indent)
{
	printf("%*s", indent, "");
	hr__term_wrap(text, indent, indent, hr__term_text_width());
}

static void print_training(const struct training *training)
{
	char text[256], peak[16], out[16], in[16];
	int length = snprintf(text, sizeof text, "%llu step%s in %.1f s, loss %.3f to %.3f, %s at the peak", (unsigned long long)training->steps,
	                      hr__plural(training->steps), (double)training->ns / 1e9, (double)training->losses[0], (double)training->losses[training->steps - 1],
	                      hr__format_size((uint64_t)training->peak, peak, sizeof peak));
	if (training->lms)
		snprintf(text + length, sizeof text - (size_t)length, "; %s moved to the host, %s back",
		         hr__format_size((uint64_t)training->moved.bytes_copied_out, out, sizeof out),
		         hr__format_size((uint64_t)training->moved.bytes_copied_in, in, sizeof in));
	print_text(text, INDENT);
}

/* Prints the paragraph of a report that begins with [title], rewrapped for this terminal. Its continuation lines are indented in
 * the report. */
static void print_joined(const char *report, const char *title)
{
	char text[2048];
	size_t used = 0;
	const char *at = strstr(report, title);
	for (; at && *at && used < sizeof text - 1; at++) {
		if (*at == '\n' && isupper((unsigned char)at[1])) break;
		text[used++] = *at == '\n' ? ' ' : *at;
	}
	text[used] = 0;
	print_text(text, INDENT);
}

/* Prints the section of a report that begins with the line [title]. */
static void print_section(const char *report, const char *title)
{
	const char *at = strstr(report, title);
	for (const char *end; at && *at && *at != '\n'; at = *end ? end + 1 : end) {
		end = at + strcspn(at, "\n");
		printf("%*s%.*s\n", INDENT, "", (int)(end - at), at);
	}
}

/* Writes the OOM report to two files and prints its most important parts. */
static hr_status show_report(const struct demo *demo)
{
	static char text[1 << 16];
	char path[PATH_MAX];
	hr_oom_report report = demo->less.report;
	hr__export_file *file;
	hr_status status = hr_oom_save(report, path_of(demo, "oom.json", path));
	if (!status && !hr_oom_format_text(report, text, sizeof text)) status = hr_last_status();
	if (!status) status = hr__export_file_open(path_of(demo, "oom.txt", path), &file);
	if (status) return status;
	hr__export_file_write(file, text, strlen(text));
	print_joined(text, "Out of memory:");
	print_joined(text, "What to do:");
	print_section(text, "Held by tag\n");
	return hr__export_file_close(file, HR_OK);
}

static bool same_losses(const struct demo *demo)
{
	return demo->whole.steps == demo->with_lms.steps &&
	       memcmp(demo->whole.losses, demo->with_lms.losses, demo->whole.steps * sizeof demo->whole.losses[0]) == 0;
}

/* ---- the demo ---- */

static hr_status train_three_times(struct demo *demo)
{
	char limit[16];
	print_heading("1. With all the memory that it asks for");
	hr_status status = train(demo, &demo->whole, 0.45);
	if (!status && demo->whole.status) status = demo->whole.status;
	if (status) return status;
	print_training(&demo->whole);

	demo->less.limit = demo->with_lms.limit = (uint64_t)demo->whole.peak / 100 * PERCENT / demo->page_bytes * demo->page_bytes;
	hr__format_size(demo->less.limit, limit, sizeof limit);
	print_heading("\n2. With a limit of %s", limit);
	status = train(demo, &demo->less, 0.5);
	if (!status && demo->less.status) status = show_report(demo);
	if (status) return status;

	print_heading("\n3. With a limit of %s, and Large Model Support", limit);
	status = train(demo, &demo->with_lms, 0.95);
	if (!status && demo->with_lms.status) status = demo->with_lms.status;
	if (status) return status;
	print_training(&demo->with_lms);
	print_text(same_losses(demo) ? "Every loss is the same, to the bit." : "The losses DIFFER.", INDENT);
	return HR_OK;
}

static hr_status draw_timeline(const struct demo *demo, const hr__capture *capture)
{
	char path[PATH_MAX];
	hr__profile *profile;
	hr_profile_options look;
	hr_profile_options_init(&look);
	hr__profile_look(&look, stdout);
	look.view = "timeline";
	look.device = "GPU:0";
	hr_status status = hr__profile_make(capture, &look, NULL, 0, HR_PROFILE_TEXT, &profile);
	if (status) return status;
	print_heading("\nAll three, as they were recorded");
	status = hr__profile_write(profile, path_of(demo, "training.hrt", path), hr__profile_to_file, stdout);
	hr__profile_free(profile);
	return status;
}

static hr_status draw(struct demo *demo)
{
	char path[PATH_MAX];
	hr__capture *capture;
	hr__progress_phase(&demo->progress, "drawing", 1);
	hr_status status = hr__capture_open(path_of(demo, "training.hrt", path), NULL, NULL, &capture);
	if (status) return status;
	status = hr__page_write(capture, path_of(demo, "report.html", path));
	hr__progress_show(&demo->progress, 0.7);
	if (!status) status = hr__export_xplane(capture, path_of(demo, "tensorboard", path), SESSION);
	hr__progress_end(&demo->progress);
	if (!status) status = draw_timeline(demo, capture);
	hr__capture_close(capture);
	return status;
}

/* Prints a command line and what it shows. */
static void print_hint(const char *what, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void print_hint(const char *what, const char *format, ...)
{
	va_list list;
	va_start(list, format);
	printf("%*s%s", INDENT, "", hr__style(stdout, HR__STYLE_STRONG));
	vprintf(format, list);
	printf("%s\n", hr__style(stdout, HR__STYLE_PLAIN));
	print_text(what, 2 * INDENT);
	va_end(list);
}

static void print_hints(const struct demo *demo)
{
	const char *folder = demo->folder, *headroom = program_invocation_name;
	print_heading("Look closer");
	print_hint("memory over time to zoom and search in, the peak, the map of regions", "xdg-open %s/report.html", folder);
	print_hint("the same in TensorBoard: steps in its overview, and under Tools the Memory Profile; pip install tensorboard xprof",
	           "tensorboard --logdir %s/tensorboard", folder);
	print_hint("the whole report on the memory that ran out; oom.json is the same for programs, and for 'headroom oom'", "less %s/oom.txt", folder);
	print_hint("what there was at the highest moment; other views: op, scope, steps, tensors", "%s report %s/training.hrt --view peak", headroom, folder);
}

/* GPU:0 is the machine's card, or emulated where there is none. A card that is required but not there is an error. */
static hr_status choose_device(struct demo *demo, char *name, size_t capacity)
{
	hr_device device;
	hr_device_info info = { .struct_size = sizeof info };
	demo->on_card = hr_cuda_check() == HR_OK || hr__cuda_is_required();
	hr_status status = demo->on_card ? HR_OK : emulate_gpu();
	if (!status) status = hr_device_find("GPU:0", &device);
	if (!status) status = hr_device_get_info(device, &info);
	if (status) return status;
	demo->page_bytes = info.page_bytes ? info.page_bytes : EMULATED_PAGE_BYTES;
	snprintf(name, capacity, "%s", demo->on_card ? info.description : "an emulated GPU");
	return HR_OK;
}

static hr_status tell(struct demo *demo)
{
	char path[PATH_MAX];
	const struct model *model = &demo->model;
	char text[256], device[128];
	hr_status status = choose_device(demo, device, sizeof device);
	if (status) return status;
	snprintf(text, sizeof text, "A GPT of %d blocks, %d wide, trained with Adam on %s: %llu step%s, three times.\n", (int)model->blocks,
	         (int)model->width, device, (unsigned long long)demo->steps, hr__plural(demo->steps));
	hr__term_wrap(text, 0, 0, hr__term_text_width());
	status = hr_trace_start(path_of(demo, "training.hrt", path));
	if (status) return status;
	status = train_three_times(demo);
	if (status) return status;
	status = hr_trace_stop();
	if (!status) status = draw(demo);
	if (!status) print_hints(demo);
	return status;
}

static int run(const hr__arguments *arguments)
{
	static struct demo demo; /* too large for some stacks */
	demo = (struct demo){ .folder = "headroom-demo",
		                  .steps = STEPS,
		                  .model = MODEL_GPT,
		                  .whole = { .name = "all" },
		                  .less = { .name = "limited" },
		                  .with_lms = { .name = "limited, with LMS", .lms = true } };
	if (hr__arguments_has(arguments, OUT)) demo.folder = arguments->values[OUT];
	if (!demo.folder[0]) return hr__complain("demo: --out needs the name of a directory");
	if (!hr__arguments_count(arguments, STEP_COUNT, 1, STEPS_MAX, &demo.steps) || prepare_folder(&demo)) return HR__EXIT_BAD;
	setvbuf(stdout, NULL, _IOLBF, 0); /* line-buffered, so that progress is visible in a pipe too */
	hr__note_emulated();
	hr__progress_begin(&demo.progress);
	hr_status status = tell(&demo);
	hr__progress_end(&demo.progress);
	if (status) return hr__complain_last();
	return same_losses(&demo) && demo.less.status == HR_OUT_OF_MEMORY ? HR__EXIT_DONE : HR__EXIT_NO;
}

const hr__command hr__command_demo = {
	.name = "demo",
	.operands = "",
	.summary = "the whole story in a minute: train, run out of memory, read why, train anyway, look at the pictures",
	.about =
		"Trains a small GPT three times on GPU:0, which is the machine's CUDA card, or emulated where there is none: with all the memory that it asks for; with half of that, which is too little, so that "
		"there is a report on what holds memory and what would help; and with half of it and Large Model Support, which gives the same losses to the "
		"bit. Everything is recorded. The recording becomes a page for the browser and a log directory for TensorBoard.\n\n"
		"Nothing is needed: no GPU, no network, no other file. The exit status is 1 when a loss differs.",
	.examples = "headroom demo\n"
				"headroom demo --out /tmp/demo --steps 100",
	.least_operands = 0,
	.most_operands = 0,
	.options = options,
	.run = run,
};
