/* test_export.c - exports: they appear complete or not at all, whatever fails. Their contents are checked by test_export_readers.py
 * with third-party readers; it uses this program:
 *
 *     test_export record KIND TRACE           records a trace: train, lms, refused, hostile, empty
 *     test_export write FORMAT TRACE PATH     exports one
 *     test_export facts TRACE                 prints the capture's contents as JSON */
#include <dirent.h>
#include <pthread.h>
#include <sys/stat.h>
#include <time.h>

#include "fixture.h"
#include "core/base/text/json.h"
#include "fault_os.h"
#include "headroom.h"
#include "headroom_runtime.h"
#include "headroom_record.h"
#include "core/os/os.h"
#include "analysis/export/export.h"
#include "analysis/export/export_file.h"
#include "test.h"
#include "core/trace/trace.h"

/* ---- traces ---- */

#define LAYERS 4
#define WIDTH 256
#define BATCH 32

static void must(hr_status status)
{
	if (status == HR_OK) return;
	fprintf(stderr, "%s\n", hr_last_message());
	exit(2);
}

static hr_value forward(hr_value x, const hr_value *weights, hr_value labels)
{
	hr_value h = x;
	char scope[32];
	for (int i = 0; i < LAYERS; i++) {
		snprintf(scope, sizeof scope, "layer_%d", i);
		hr_name_scope_push(scope);
		h = hr_matmul(h, weights[i]);
		if (i + 1 < LAYERS) h = hr_gelu(h);
		hr_name_scope_pop();
	}
	return hr_reduce_mean(hr_cross_entropy(h, labels), HR_ALL_AXES, false);
}

static void train_step(hr_value x, hr_value *weights, hr_value labels)
{
	hr_value gradients[LAYERS];
	must(hr_tape_begin());
	hr_value loss = hr_value_keep(forward(x, weights, labels));
	must(hr_gradients(loss, weights, LAYERS, gradients));
	must(hr_tape_end());
	for (int i = 0; i < LAYERS; i++) {
		hr_value next = hr_value_keep(hr_sub(weights[i], hr_scale(gradients[i], 0.05, 0)));
		hr_value_release(weights[i]);
		weights[i] = next;
	}
	hr_value_release(loss);
}

/* Three steps of a small network on an emulated device; with LMS if [limit] is not enough. Weights are still live at the end. */
static void record_training(const char *path, uint64_t limit, bool lms_on)
{
	hr_emulated_options emulated;
	hr_lms_options lms;
	hr_session_options session_options;
	hr_device device;
	hr_allocator allocator;
	hr_session session;
	must(hr_emulated_options_init(&emulated));
	emulated.memory_bytes = UINT64_C(64) << 20;
	emulated.page_bytes = 64 << 10;
	must(hr_emulated_configure(&emulated));
	must(hr_device_find("GPU:0", &device));
	hr_allocator_options options = fixture_allocator_options(limit);
	must(hr_allocator_create(device, &options, &allocator));
	must(hr_lms_options_init(&lms));
	lms.enabled = lms_on;
	lms.host_limit = UINT64_C(64) << 20;
	must(hr_lms_configure(allocator, &lms));
	must(hr_trace_start(path));
	hr_session_options_init(&session_options);
	session_options.device = "GPU:0";
	session_options.allocator = allocator;
	must(hr_session_create(&session_options, &session));
	must(hr_session_enter(session));
	hr_value x = hr_value_keep(hr_random_normal(HR_DTYPE_FLOAT32, HR_DIMS(BATCH, WIDTH), 1)), weights[LAYERS];
	hr_value labels = hr_value_keep(hr_random_uniform(HR_DTYPE_INT32, HR_DIMS(BATCH), 0, 10, 2));
	for (int i = 0; i < LAYERS; i++)
		weights[i] = hr_value_keep(hr_random_normal(HR_DTYPE_FLOAT32, HR_DIMS(WIDTH, WIDTH), (uint64_t)(10 + i)));
	for (int i = 0; i < 3; i++) {
		must(hr_step_begin(allocator));
		train_step(x, weights, labels);
		must(hr_step_end(allocator));
	}
	must(hr_trace_stop());
	hr_session_leave();
	hr_session_destroy(session);
	must(hr_shutdown());
}

/* Events that no allocator made, with unlikely names. */
static void record_hostile(const char *path)
{
	static const char *const names[] = { "\"quoted\\\"",
		                                 "line\nbreak\ttab\x01\x7f",
		                                 "\xff\xfe not \xc3 UTF-8",
		                                 "a:b:c",
		                                 "<b>&amp;",
		                                 "",
		                                 "\xF0\x9F\x98\x80",
		                                 "../../etc",
		                                 "$(x) `y` 'z'",
		                                 ",;,",
		                                 "0" };
	const size_t count = sizeof names / sizeof *names;
	must(hr__trace_open(path));
	hr__trace_define_device(1, "GPU:\"0\"\xff", 1 << 20, 4096);
	hr__trace_define_device(2, "CPU,0", 0, 4096);
	hr__trace_define_allocator(1, "same\n", "bfc", 1);
	hr__trace_define_allocator(2, "same\n", "bfc", 1);
	hr__trace_define_allocator(3, "same\n", "bfc", 2);
	for (uint32_t i = 0; i < 3 * count; i++) {
		hr_name name = hr_name_intern(names[i % count]), scope = hr_name_intern(names[(i / 3) % count]),
				tag = hr_name_intern(names[(i * 7) % count]);
		uint32_t allocator = 1 + i % 4; /* the fourth is undefined */
		hr__trace_event(&(hr__event){ .kind = HR__EVENT_OP_BEGIN, .op = name, .scope = scope });
		hr__trace_event(&(hr__event){ .kind = HR__EVENT_ALLOC,
		                              .allocator = allocator,
		                              .address = UINT64_MAX - 4096 * (uint64_t)i,
		                              .bytes = i * 100,
		                              .requested = i * 99,
		                              .op = name,
		                              .scope = scope,
		                              .tag = tag,
		                              .stream = i % 3 });
		hr__trace_event(&(hr__event){ .kind = HR__EVENT_EVICT, .allocator = allocator, .bytes = i * 100, .op = name, .tag = tag });
		hr__trace_event(&(hr__event){
			.kind = HR__EVENT_ALLOC_FAILED, .allocator = allocator, .bytes = i, .requested = i, .op = name, .scope = scope });
		if (i % 2) hr__trace_event(&(hr__event){ .kind = HR__EVENT_OP_END });
		if (i % 3)
			hr__trace_event(
				&(hr__event){ .kind = HR__EVENT_FREE, .allocator = allocator, .address = UINT64_MAX - 4096 * (uint64_t)i });
	}
	must(hr__trace_close());
}

static void record_refused(const char *path)
{
	hr_device device;
	hr_allocator allocator;
	hr_request request = HR_REQUEST(1 << 19);
	void *block, *other;
	request.op = hr_name_intern("fits");
	must(hr_trace_start(path));
	must(hr_device_find("GPU:0", &device));
	hr_allocator_options options = fixture_allocator_options(8 << 20);
	options.oom.report_allocations_on_oom = false;
	must(hr_allocator_create(device, &options, &allocator));
	must(hr_alloc(allocator, &request, &block));
	request.bytes = 16 << 20;
	request.op = hr_name_intern("does not fit");
	if (hr_alloc(allocator, &request, &other) == HR_OK) exit(3);
	must(hr_trace_stop());
	must(hr_free(allocator, block, 0));
	must(hr_shutdown());
}

static int record(const char *kind, const char *path)
{
	setenv("HEADROOM_CUDA", "0", 1);
	if (strcmp(kind, "train") == 0) record_training(path, UINT64_C(48) << 20, false);
	else if (strcmp(kind, "lms") == 0) record_training(path, UINT64_C(1600) << 10, true);
	else if (strcmp(kind, "refused") == 0) record_refused(path);
	else if (strcmp(kind, "hostile") == 0) record_hostile(path);
	else if (strcmp(kind, "empty") == 0) must(hr_trace_start(path)), must(hr_trace_stop());
	else return fprintf(stderr, "no kind of trace: %s\n", kind), 2;
	return 0;
}

/* ---- facts ---- */

static bool to_stdout(void *context, const char *bytes, size_t length)
{
	(void)context;
	return fwrite(bytes, 1, length, stdout) == length;
}

static void put_site(hr__json *json, const hr__capture *c, uint32_t index)
{
	const hr__site *site = &c->sites[index];
	char shape[256] = "";
	int64_t dims[HR_SHAPE_MAX_RANK];
	if (hr_shape_dims(site->shape, dims) >= 0) hr_shape_format(site->shape, shape, sizeof shape);
	hr__json_field_string(json, "op", hr_name_text(site->op));
	hr__json_field_string(json, "scope", hr_name_text(site->scope));
	hr__json_field_string(json, "tag", hr_name_text(site->tag));
	hr__json_field_string(json, "shape", shape);
	hr__json_field_string(json, "dtype", site->dtype ? hr_dtype_text(site->dtype) : "");
	hr__json_field_uint(json, "stream", site->stream);
	hr__json_field_uint(json, "allocator", site->allocator);
	hr__json_field_uint(json, "device", c->allocators[site->allocator].device);
}

static void put_allocation(hr__json *json, const hr__capture *c, uint32_t index)
{
	const hr__allocation *a = &c->allocations[index];
	hr__json_object(json);
	put_site(json, c, a->site);
	hr__json_field_uint(json, "address", a->address);
	hr__json_field_uint(json, "bytes", a->bytes);
	hr__json_field_uint(json, "asked", a->bytes - a->slack);
	hr__json_field_uint(json, "begin_ns", a->begin_ns);
	if (a->end_ns != HR__NEVER) hr__json_field_uint(json, "end_ns", a->end_ns);
	hr__json_end_object(json);
}

static void put_list(hr__json *json, const char *key)
{
	hr__json_key(json, key);
	hr__json_array(json);
}

struct visit {
	hr__json *json;
};

static void visit_live(void *context, uint32_t allocation)
{
	hr__json_uint(((struct visit *)context)->json, allocation);
}

static void put_devices(hr__json *json, const hr__capture *c)
{
	put_list(json, "devices");
	for (uint32_t i = 0; i < c->device_count; i++) {
		struct visit visit = { json };
		hr__json_object(json);
		hr__json_field_string(json, "name", c->devices[i].name);
		hr__json_field_uint(json, "limit", c->devices[i].limit_bytes);
		hr__json_field_uint(json, "peak", c->devices[i].peak_bytes);
		hr__json_field_uint(json, "peak_ns", c->devices[i].peak_ns);
		hr__json_field_uint(json, "end", c->devices[i].end_bytes);
		put_list(json, "live_at_peak");
		if (c->devices[i].peak_bytes) must(hr__capture_live(c, c->devices[i].peak_change, i, visit_live, &visit));
		hr__json_end_array(json);
		hr__json_end_object(json);
	}
	hr__json_end_array(json);
	put_list(json, "allocators");
	for (uint32_t i = 0; i < c->allocator_count; i++) {
		hr__json_object(json);
		hr__json_field_string(json, "name", c->allocators[i].name);
		hr__json_field_uint(json, "device", c->allocators[i].device);
		hr__json_field_uint(json, "peak", c->allocators[i].peak_bytes);
		hr__json_field_uint(json, "peak_ns", c->allocators[i].peak_ns);
		hr__json_field_uint(json, "end", c->allocators[i].end_bytes);
		hr__json_field_uint(json, "limit", c->allocators[i].limit_bytes);
		hr__json_end_object(json);
	}
	hr__json_end_array(json);
	put_list(json, "regions");
	for (uint32_t i = 0; i < c->region_count; i++) {
		hr__json_object(json);
		hr__json_field_uint(json, "allocator", c->regions[i].allocator);
		hr__json_field_uint(json, "address", c->regions[i].address);
		hr__json_field_uint(json, "bytes", c->regions[i].bytes);
		hr__json_field_uint(json, "begin_ns", c->regions[i].begin_ns);
		if (c->regions[i].end_ns != HR__NEVER) hr__json_field_uint(json, "end_ns", c->regions[i].end_ns);
		hr__json_end_object(json);
	}
	hr__json_end_array(json);
}

static void put_runs(hr__json *json, const hr__capture *c)
{
	put_list(json, "ops");
	for (uint32_t i = 0; i < c->op_count; i++) {
		hr__json_object(json);
		hr__json_field_string(json, "op", hr_name_text(c->ops[i].op));
		hr__json_field_string(json, "scope", hr_name_text(c->ops[i].scope));
		hr__json_field_uint(json, "thread", c->ops[i].thread);
		hr__json_field_uint(json, "begin_ns", c->ops[i].begin_ns);
		if (c->ops[i].end_ns != HR__NEVER) hr__json_field_uint(json, "end_ns", c->ops[i].end_ns);
		hr__json_end_object(json);
	}
	hr__json_end_array(json);
	put_list(json, "steps");
	for (uint32_t i = 0; i < c->step_count; i++) {
		hr__json_object(json);
		hr__json_field_uint(json, "number", c->steps[i].number);
		hr__json_field_uint(json, "begin_ns", c->steps[i].begin_ns);
		if (c->steps[i].end_ns != HR__NEVER) hr__json_field_uint(json, "end_ns", c->steps[i].end_ns);
		hr__json_end_object(json);
	}
	hr__json_end_array(json);
	hr__json_field_uint(json, "moves", c->move_count);
	hr__json_field_uint(json, "refusals", c->refusal_count);
	hr__json_field_uint(json, "start_wall_ns", c->start_wall_ns);
	hr__json_field_uint(json, "end_ns", c->end_ns);
}

static int facts(const char *path)
{
	hr__capture *c;
	hr__json json;
	must(hr__capture_open(path, NULL, NULL, &c));
	hr__json_init(&json, to_stdout, NULL);
	hr__json_object(&json);
	put_devices(&json, c);
	put_list(&json, "allocations");
	for (uint32_t i = 0; i < c->allocation_count; i++) put_allocation(&json, c, i);
	hr__json_end_array(&json);
	put_list(&json, "changes");
	for (uint32_t i = 0; i < c->change_count; i++) {
		hr__json_array(&json);
		hr__json_uint(&json, c->changes[i].allocation);
		hr__json_bool(&json, c->changes[i].frees);
		hr__json_end_array(&json);
	}
	hr__json_end_array(&json);
	put_runs(&json, c);
	hr__json_end_object(&json);
	must(hr__json_finish(&json));
	hr__capture_close(c);
	return 0;
}

static int export(const char *format_name, const char *trace, const char *path)
{
	enum hr__export_format format;
	hr__capture *capture;
	must(hr__export_find(format_name, &format));
	must(hr__capture_open(trace, NULL, NULL, &capture));
	hr_status status = hr__export_write(capture, format, path);
	hr__capture_close(capture);
	must(status);
	return 0;
}

/* ---- tests ---- */

static char folder[64];

static const char *in_folder(const char *name)
{
	static char paths[4][256];
	static int next;
	char *path = paths[next++ % 4];
	snprintf(path, sizeof paths[0], "%s/%s", folder, name);
	return path;
}

static hr__capture *capture_of(const char *kind)
{
	hr__capture *capture;
	snprintf(folder, sizeof folder, "/tmp/hr_test_export_XXXXXX");
	CHECK(mkdtemp(folder) != NULL);
	CHECK_EQ(record(kind, in_folder("trace")), 0);
	CHECK_STATUS(HR_OK, hr__capture_open(in_folder("trace"), NULL, NULL, &capture));
	CHECK_EQ(unlink(in_folder("trace")), 0);
	return capture;
}

static void remove_folder(void)
{
	char command[128];
	snprintf(command, sizeof command, "rm -rf %s", folder);
	CHECK_EQ(system(command), 0);
}

/* Counts the files in a folder and its subfolders. */
static int count_files(const char *path)
{
	DIR *open = opendir(path);
	int count = 0;
	for (struct dirent *entry; open && (entry = readdir(open));) {
		char below[1024];
		snprintf(below, sizeof below, "%s/%s", path, entry->d_name);
		if (entry->d_name[0] == '.') continue;
		count += entry->d_type == DT_DIR ? count_files(below) : 1;
	}
	if (open) closedir(open);
	return count;
}

static void test_formats_have_names(void)
{
	for (int i = 0; i < HR__EXPORT_FORMATS; i++) {
		enum hr__export_format found;
		CHECK_STATUS(HR_OK, hr__export_find(hr__export_name((enum hr__export_format)i), &found));
		CHECK_EQ((int)found, i);
	}
	enum hr__export_format none;
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr__export_find("html", &none));
	CHECK(strstr(hr_last_message(), "xplane, chrome, memory_viz, rmm or pprof") != NULL);
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr__export_find(NULL, &none));
}

static void test_an_export_appears_whole(void)
{
	static const char *const kinds[] = { "empty", "hostile", "refused" };
	for (int kind = 0; kind < 3; kind++) {
		hr__capture *capture = capture_of(kinds[kind]);
		for (int format = 0; format < HR__EXPORT_FORMATS; format++) {
			for (int times = 0; times < 2; times++) /* also over an existing file */
				CHECK_STATUS(HR_OK, hr__export_write(capture, (enum hr__export_format)format,
				                                     in_folder(hr__export_name((enum hr__export_format)format))));
		}
		struct stat facts;
		CHECK_EQ(stat(in_folder("chrome"), &facts), 0);
		CHECK_EQ(facts.st_mode & 0777, 0600);
		CHECK_EQ(count_files(folder), HR__EXPORT_FORMATS);
		hr__capture_close(capture);
		remove_folder();
	}
}

static void test_bad_formats_and_paths_are_refused(void)
{
	hr__capture *capture = capture_of("empty");
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr__export_write(capture, HR__EXPORT_FORMATS, in_folder("x")));
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr__export_write(capture, HR__EXPORT_CHROME, ""));
	CHECK_STATUS(HR_INVALID_ARGUMENT, hr__export_write(capture, HR__EXPORT_CHROME, NULL));
	hr__capture_close(capture);
	remove_folder();
}

static void test_a_failed_write_is_an_error_and_leaves_no_file(void)
{
	hr__capture *capture = capture_of("refused");
	CHECK_EQ(mkdir(in_folder("is_a_folder"), 0700), 0);
	for (int i = 0; i < HR__EXPORT_FORMATS; i++) {
		enum hr__export_format format = (enum hr__export_format)i;
		CHECK_STATUS(HR_IO, hr__export_write(capture, format, "/proc/none/file"));
		CHECK(strstr(hr_last_message(), "/proc/none") != NULL);
		CHECK_STATUS(HR_IO, hr__export_write(capture, format, "/dev/full"));
		CHECK(strstr(hr_last_message(), "/dev/full") != NULL);
		if (format != HR__EXPORT_XPLANE) CHECK_STATUS(HR_IO, hr__export_write(capture, format, in_folder("is_a_folder")));
	}
	struct stat facts;
	CHECK_EQ(stat("/dev/full", &facts), 0);
	CHECK(S_ISCHR(facts.st_mode)); /* it was not replaced */
	CHECK_EQ(count_files(folder), 0);
	hr__capture_close(capture);
	remove_folder();
}

static void test_a_full_disk_leaves_what_was_there(void)
{
	hr__capture *capture = capture_of("hostile");
	for (int i = 0; i < HR__EXPORT_FORMATS; i++) {
		enum hr__export_format format = (enum hr__export_format)i;
		const char *path = in_folder("out");
		uint64_t failed = 0;
		for (uint64_t n = 1;; n++) {
			struct hr_fault_os_live live;
			remove_folder();
			CHECK_EQ(mkdir(folder, 0700), 0);
			int fd = format == HR__EXPORT_XPLANE ? -1 : open(path, O_CREAT | O_WRONLY | O_TRUNC, 0600);
			if (fd >= 0) {
				CHECK_EQ(write(fd, "old", 3), 3);
				close(fd);
			}
			hr_fault_os_install();
			hr_fault_os_fail_nth(n, false, ENOSPC);
			hr_status status = hr__export_write(capture, format, path);
			bool done = hr_fault_os_calls() < n;
			hr_fault_os_live(&live);
			CHECK_EQ(live.alloc_bytes, 0);
			CHECK_EQ(live.fds, 0);
			hr_fault_os_uninstall();
			if (done) break;
			failed += status != HR_OK;
			if (status == HR_OK) continue; /* such as the host's name, which has a fallback */
			CHECK(hr_last_message()[0] != 0);
			struct stat facts;
			if (fd >= 0) CHECK(stat(path, &facts) == 0 && facts.st_size == 3);
			CHECK_EQ(count_files(folder), fd >= 0 ? 1 : 0);
		}
		CHECK_GE(failed, 4);
	}
	hr__capture_close(capture);
	remove_folder();
}

static size_t read_all(const char *path, unsigned char **out)
{
	FILE *file = fopen(path, "rb");
	struct stat facts;
	CHECK(file != NULL && fstat(fileno(file), &facts) == 0);
	*out = malloc((size_t)facts.st_size);
	CHECK_EQ(fread(*out, 1, (size_t)facts.st_size, file), (size_t)facts.st_size);
	fclose(file);
	return (size_t)facts.st_size;
}

/* Simulates another user of the directory: puts links to [victim] and to /dev/null, and a regular file, at the path of the output
 * in turn. */
static struct {
	char victim[512], path[512], made[512];
	hr__atomic_u32 done;
	uint64_t swaps;
} swapper;

static void *swap_links(void *unused)
{
	static const char *const targets[] = { "/dev/null", swapper.victim, NULL };
	for (size_t i = 0; !hr__load_acquire(&swapper.done); i++) {
		const char *target = targets[i % 3];
		int fd = target ? symlink(target, swapper.made) : open(swapper.made, O_CREAT | O_WRONLY, 0600);
		if (!target && fd >= 0) close(fd);
		swapper.swaps += rename(swapper.made, swapper.path) == 0;
	}
	return unused;
}

static void test_no_link_is_followed_at_any_moment(void)
{
	pthread_t thread;
	uint64_t written = 0;
	unsigned char *kept;
	snprintf(folder, sizeof folder, "/tmp/hr_test_export_XXXXXX");
	CHECK(mkdtemp(folder) != NULL);
	snprintf(swapper.victim, sizeof swapper.victim, "%s/victim", folder);
	snprintf(swapper.path, sizeof swapper.path, "%s/out", folder);
	snprintf(swapper.made, sizeof swapper.made, "%s/made", folder);
	int fd = open(swapper.victim, O_CREAT | O_WRONLY, 0600);
	CHECK_EQ(write(fd, "precious", 8), 8);
	close(fd);
	CHECK_EQ(pthread_create(&thread, NULL, swap_links, NULL), 0);
	for (uint64_t i = 0; i < hr_test_scaled(20000); i++) {
		hr__export_file *file;
		if (hr__export_file_open(swapper.path, &file)) continue; /* found a link */
		hr__export_file_write(file, "ATTACKED", 8);
		written += hr__export_file_close(file, HR_OK) == HR_OK;
	}
	hr__store_release(&swapper.done, 1);
	CHECK_EQ(pthread_join(thread, NULL), 0);
	CHECK(written > 0 && swapper.swaps > 0);
	CHECK_EQ(read_all(swapper.victim, &kept), 8);
	CHECK(memcmp(kept, "precious", 8) == 0);
	free(kept);
	remove_folder();
}

/* Whatever a capture contains, its exports are written or refused. */
static void test_damaged_traces_are_refused_or_read_safely(void)
{
	static const char *const kinds[] = { "hostile", "lms" };
	uint64_t random = hr_test_seed(), made = 0;
	snprintf(folder, sizeof folder, "/tmp/hr_test_export_XXXXXX");
	CHECK(mkdtemp(folder) != NULL);
	for (int kind = 0; kind < 2; kind++) {
		unsigned char *bytes;
		CHECK_EQ(record(kinds[kind], in_folder(kinds[kind])), 0);
		size_t size = read_all(in_folder(kinds[kind]), &bytes), first = 65536 + 64; /* start of the records */
		for (uint64_t round = 0; round < hr_test_scaled(200); round++) {
			hr__capture *capture;
			unsigned char old[4];
			size_t at[4];
			for (int i = 0; i < 4; i++) {
				random = random * 6364136223846793005u + 1442695040888963407u;
				at[i] = first + (size_t)(random >> 33) % (size - first);
				old[i] = bytes[at[i]];
				bytes[at[i]] ^= (unsigned char)(1 << (random >> 29 & 7));
			}
			if (hr__capture_open_memory(bytes, size, &capture) == HR_OK) {
				for (int format = 0; format < HR__EXPORT_FORMATS; format++) {
					const char *path = format == HR__EXPORT_XPLANE ? folder : "/dev/null";
					made += hr__export_write(capture, (enum hr__export_format)format, path) == HR_OK;
				}
				hr__capture_close(capture);
			}
			for (int i = 3; i >= 0; i--) bytes[at[i]] = old[i];
		}
		free(bytes);
	}
	CHECK_GT(made, 0);
	printf("# %llu exports of damaged traces\n", (unsigned long long)made);
	remove_folder();
}

/* A capture of 60,000 allocations and frees by [allocators] allocators on [devices] devices. */
static hr__capture *capture_of_many(uint32_t allocators, uint32_t devices)
{
	hr__capture *capture;
	char name[32];
	must(hr__trace_open(in_folder("trace")));
	for (uint32_t i = 1; i <= devices; i++) {
		snprintf(name, sizeof name, "GPU:%u", i);
		hr__trace_define_device(i, name, 0, 4096);
	}
	for (uint32_t i = 1; i <= allocators; i++) {
		snprintf(name, sizeof name, "allocator of memory %u", i);
		hr__trace_define_allocator(i, name, "bfc", 1 + i % devices);
	}
	for (uint32_t i = 0; i < 60000; i++) {
		hr__trace_event(&(hr__event){ .kind = i & 1 ? HR__EVENT_FREE : HR__EVENT_ALLOC,
		                              .allocator = 1 + i / 2 % allocators,
		                              .address = 4096,
		                              .bytes = 512 });
	}
	must(hr__trace_close());
	CHECK_STATUS(HR_OK, hr__capture_open(in_folder("trace"), NULL, NULL, &capture));
	CHECK_EQ(unlink(in_folder("trace")), 0);
	return capture;
}

/* Processor time, the least of three runs; printed, not checked. */
static double seconds_of(const hr__capture *capture, enum hr__export_format format)
{
	double least = 1e9;
	for (int i = 0; i < 3; i++) {
		clock_t begin = clock();
		CHECK_STATUS(HR_OK, hr__export_write(capture, format, "/dev/null"));
		double now = (double)(clock() - begin) / CLOCKS_PER_SEC;
		if (now < least) least = now;
	}
	return least;
}

static void test_many_allocators_and_devices(void)
{
	static const enum hr__export_format formats[] = { HR__EXPORT_CHROME, HR__EXPORT_MEMORY_VIZ, HR__EXPORT_RMM_CSV, HR__EXPORT_PPROF };
	snprintf(folder, sizeof folder, "/tmp/hr_test_export_XXXXXX");
	CHECK(mkdtemp(folder) != NULL);
	hr__capture *few = capture_of_many(1, 1), *many = capture_of_many(900, 1), *devices = capture_of_many(3000, 3000);
	for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
		double one = seconds_of(few, formats[i]), on_one = seconds_of(many, formats[i]), on_all = seconds_of(devices, formats[i]);
		printf("# %s: %.3f s with 1 allocator, %.3f s with 900, %.3f s with 3,000 devices\n", hr__export_name(formats[i]), one,
		       on_one, on_all);
	}
	hr__capture_close(few);
	hr__capture_close(many);
	hr__capture_close(devices);
	remove_folder();
}

/* One byte of the address distinguishes 256 devices only. */
static void test_equal_addresses_of_many_devices_differ_in_an_rmm_log(void)
{
	enum { DEVICES = 600 };
	static unsigned long long seen[DEVICES];
	uint32_t count = 0;
	char line[200];
	snprintf(folder, sizeof folder, "/tmp/hr_test_export_XXXXXX");
	CHECK(mkdtemp(folder) != NULL);
	hr__capture *capture = capture_of_many(DEVICES, DEVICES);
	CHECK_STATUS(HR_OK, hr__export_write(capture, HR__EXPORT_RMM_CSV, in_folder("rmm.csv")));
	FILE *file = fopen(in_folder("rmm.csv"), "r");
	CHECK(file != NULL);
	while (count < DEVICES && fgets(line, sizeof line, file)) {
		if (sscanf(line, "%*[^,],%*[^,],allocate,%llx,", &seen[count]) != 1) continue;
		for (uint32_t i = 0; i < count; i++) CHECK(seen[i] != seen[count]);
		count++;
	}
	CHECK_EQ(count, DEVICES);
	fclose(file);
	hr__capture_close(capture);
	CHECK_EQ(unlink(in_folder("rmm.csv")), 0);
	remove_folder();
}

/* ---- peaks of devices ---- */

struct sum {
	const hr__capture *capture;
	uint64_t bytes[3], count[3];
};

static void add_live(void *context, uint32_t allocation)
{
	struct sum *sum = context;
	uint32_t device = hr__allocation_device(sum->capture, allocation);
	sum->bytes[device] += sum->capture->allocations[allocation].bytes;
	sum->count[device]++;
}

static void change(enum hr__event_kind kind, uint32_t allocator, uint64_t address, uint64_t bytes)
{
	hr__trace_event(&(hr__event){ .kind = kind, .allocator = allocator, .address = address, .bytes = bytes, .requested = bytes });
}

static void test_what_is_live_at_the_peak_of_each_device(void)
{
	hr__capture *capture;
	snprintf(folder, sizeof folder, "/tmp/hr_test_export_XXXXXX");
	CHECK(mkdtemp(folder) != NULL);
	must(hr__trace_open(in_folder("trace")));
	for (uint32_t i = 1; i <= 3; i++) {
		hr__trace_define_device(i, i == 1 ? "GPU:0" : i == 2 ? "GPU:1" : "GPU:2", 0, 4096);
		hr__trace_define_allocator(i, "a", "bfc", i);
	}
	change(HR__EVENT_ALLOC, 1, 4096, 1000);
	change(HR__EVENT_ALLOC, 2, 4096, 100);
	change(HR__EVENT_ALLOC, 1, 8192, 500); /* peak of the first device: 1,500 in two blocks */
	change(HR__EVENT_FREE, 1, 4096, 0);
	change(HR__EVENT_ALLOC, 2, 8192, 300);
	change(HR__EVENT_ALLOC, 1, 16384, 600);
	change(HR__EVENT_FREE, 2, 4096, 0);
	change(HR__EVENT_ALLOC, 2, 16384, 900); /* peak of the second device: 300 and 900. The third device has no allocations */
	change(HR__EVENT_FREE, 2, 16384, 0);
	must(hr__trace_close());
	must(hr__capture_open(in_folder("trace"), NULL, NULL, &capture));
	struct sum sum = { .capture = capture };
	CHECK_STATUS(HR_OK, hr__capture_live_at_peaks(capture, add_live, &sum));
	CHECK_EQ(sum.bytes[0], 1500);
	CHECK_EQ(sum.count[0], 2);
	CHECK_EQ(sum.bytes[1], 1200);
	CHECK_EQ(sum.count[1], 2);
	CHECK_EQ(sum.count[2], 0);
	hr__capture_close(capture);
	remove_folder();
}

/* Each pass over the changes allocates a bit for each allocation. */
static size_t bits_wanted;
static uint64_t passes;

static int count_passes(size_t bytes, void **out)
{
	passes += bytes == bits_wanted;
	return hr__os_linux()->alloc(bytes, out);
}

static void test_the_peaks_of_many_devices_take_one_pass(void)
{
	hr__os_table table = *hr__os_linux();
	snprintf(folder, sizeof folder, "/tmp/hr_test_export_XXXXXX");
	CHECK(mkdtemp(folder) != NULL);
	hr__capture *capture = capture_of_many(2000, 2000);
	CHECK_EQ(capture->allocation_count, 30000);
	bits_wanted = (30000 / 64 + 1) * sizeof(uint64_t);
	passes = 0;
	table.alloc = count_passes;
	hr__os_replace(&table);
	CHECK_STATUS(HR_OK, hr__export_write(capture, HR__EXPORT_PPROF, "/dev/null"));
	hr__os_replace(NULL);
	CHECK_EQ(passes, 1);
	hr__capture_close(capture);
	remove_folder();
}

/* ---- sessions ---- */

static uint64_t wall_ns;
static uint64_t tell_wall_clock(void)
{
	return wall_ns;
}

static void test_recordings_of_one_second_have_a_session_each(void)
{
	hr__os_table table = *hr__os_linux();
	snprintf(folder, sizeof folder, "/tmp/hr_test_export_XXXXXX");
	CHECK(mkdtemp(folder) != NULL);
	table.wall_clock_ns = tell_wall_clock;
	for (int i = 0; i < 4; i++) {
		hr__capture *capture;
		static const uint64_t begins[] = { 500000001, 500000002, 7, 500000002 }; /* the last repeats an earlier one */
		wall_ns = UINT64_C(1700000000) * 1000000000 + begins[i];
		hr__os_replace(&table);
		must(hr__trace_open(in_folder("trace")));
		must(hr__trace_close());
		hr__os_replace(NULL);
		must(hr__capture_open(in_folder("trace"), NULL, NULL, &capture));
		CHECK_STATUS(HR_OK, hr__export_write(capture, HR__EXPORT_XPLANE, in_folder("log")));
		CHECK_EQ(unlink(in_folder("trace")), 0);
		hr__capture_close(capture);
	}
	CHECK_EQ(count_files(folder), 3);
	remove_folder();
}

static const hr_test tests[] = { T(test_formats_have_names), T(test_an_export_appears_whole),
	                             T(test_bad_formats_and_paths_are_refused),
	                             T(test_a_failed_write_is_an_error_and_leaves_no_file),
	                             T(test_a_full_disk_leaves_what_was_there), T(test_no_link_is_followed_at_any_moment),
	                             T(test_damaged_traces_are_refused_or_read_safely), T(test_many_allocators_and_devices), T(test_equal_addresses_of_many_devices_differ_in_an_rmm_log),
	                             T(test_what_is_live_at_the_peak_of_each_device), T(test_the_peaks_of_many_devices_take_one_pass),
	                             T(test_recordings_of_one_second_have_a_session_each) };

int main(int argc, char **argv)
{
	if (argc == 4 && strcmp(argv[1], "record") == 0) return record(argv[2], argv[3]);
	if (argc == 5 && strcmp(argv[1], "write") == 0) return export(argv[2], argv[3], argv[4]);
	if (argc == 3 && strcmp(argv[1], "facts") == 0) return facts(argv[2]);
	return hr_test_main(tests, sizeof tests / sizeof tests[0], argc, argv);
}
