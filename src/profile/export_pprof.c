/* export_pprof.c - a profile for pprof: how many bytes each op had in use at the peak and at the end, and allocated in all.
 *
 * A sample is a site. Its stack is the name scope, with the op as the innermost frame and the device as the outermost: `pprof -top` gives ops,
 * `-tree` and the flame graph give scopes. Tag, shape, dtype and allocator are labels (`-tagfocus`, `-tags`). The peak is each device's own.
 * Compressed as gzip where zlib is there; pprof reads both. */
#ifdef HR_HAVE_PROTOBUF_C

#include <profile/pprof.pb-c.h>
#include <string.h>
#ifdef HR_HAVE_ZLIB
#include <zlib.h>
#endif

#include "base/assert.h"
#include "base/status.h"
#include "os/os.h"
#include "profile/export_file.h"
#include "profile/export_formats.h"
#include "profile/export_strings.h"

/* The first is what pprof shows unless told otherwise. */
#define VALUE_TABLE(X)                         \
	X(PEAK_SPACE, "peak_space", "bytes")       \
	X(PEAK_OBJECTS, "peak_objects", "count")   \
	X(INUSE_SPACE, "inuse_space", "bytes")     \
	X(INUSE_OBJECTS, "inuse_objects", "count") \
	X(ALLOC_SPACE, "alloc_space", "bytes")     \
	X(ALLOC_OBJECTS, "alloc_objects", "count")

enum value {
#define VALUE_ENUM(id, name, unit) id,
	VALUE_TABLE(VALUE_ENUM)
#undef VALUE_ENUM
	VALUES
};

enum { LABELS = 5 }; /* at most, of a sample */

struct sample {
	HrPprof__Sample message;
	HrPprof__Label labels[LABELS], *label_pointers[LABELS];
	int64_t values[VALUES];
	uint64_t *frames; /* ids of locations, the innermost first */
};

struct exporter {
	const hr__capture *capture;
	hr__export_strings strings; /* the profile's table */
	hr__export_strings frames;  /* names of functions; ids count from 1 */
	struct sample *samples;     /* one for each site */
	HrPprof__Sample **pointers;
	hr__export_labels labels; /* of allocators */
	size_t sample_count;
	hr_status status;
};

static uint32_t number_of(struct exporter *e, hr__export_strings *strings, const char *text)
{
	char clean[HR__EXPORT_CLEAN_BYTES];
	uint32_t number = 0;
	if (!e->status) e->status = hr__export_strings_add(strings, hr__export_clean(text, clean, sizeof clean), &number);
	return number;
}

static int64_t string_id(struct exporter *e, const char *text)
{
	return number_of(e, &e->strings, text);
}

/* ---- values ---- */

struct visit {
	struct exporter *exporter;
	enum value space, objects;
};

static void count(struct exporter *e, uint32_t allocation, enum value space, enum value objects)
{
	const hr__allocation *a = &e->capture->allocations[allocation];
	e->samples[a->site].values[space] += (int64_t)a->bytes;
	e->samples[a->site].values[objects]++;
}

static void visit_live(void *context, uint32_t allocation)
{
	const struct visit *visit = context;
	count(visit->exporter, allocation, visit->space, visit->objects);
}

static void count_all(struct exporter *e)
{
	const hr__capture *c = e->capture;
	struct visit at_peak = { e, PEAK_SPACE, PEAK_OBJECTS };
	e->status = hr__capture_live_at_peaks(c, visit_live, &at_peak);
	for (uint32_t i = 0; i < c->allocation_count; i++) {
		count(e, i, ALLOC_SPACE, ALLOC_OBJECTS);
		if (c->allocations[i].end_ns == HR__NEVER) count(e, i, INUSE_SPACE, INUSE_OBJECTS);
	}
}

/* ---- stacks and labels ---- */

static uint64_t frame_id(struct exporter *e, const char *text)
{
	return 1 + (uint64_t)number_of(e, &e->frames, text);
}

/* Frames of "device; scope's parts; op", counted, and put where [out] is not NULL from its end on. */
static size_t put_frames(struct exporter *e, const hr__site *site, uint64_t *out, size_t size)
{
	char part[HR__EXPORT_NAME_BYTES];
	const char *scope = hr_name_text(site->scope), *op = hr_name_text(site->op);
	size_t frames = 1;
	if (out) out[size - frames] = frame_id(e, e->capture->devices[e->capture->allocators[site->allocator].device].name);
	while (*scope) {
		size_t length = strcspn(scope, "/");
		if (length > 0) {
			memcpy(part, scope, length);
			part[length] = 0;
			frames++;
			if (out) out[size - frames] = frame_id(e, part);
		}
		scope += length + (scope[length] == '/');
	}
	frames++;
	if (out) out[size - frames] = frame_id(e, op[0] ? op : "(none)");
	return frames;
}

static void add_label(struct exporter *e, struct sample *sample, const char *key, const char *text)
{
	if (!text[0]) return;
	size_t index = sample->message.n_label++;
	HR_ASSERT(index < LABELS);
	HrPprof__Label *label = &sample->labels[index];
	hr_pprof__label__init(label);
	label->key = string_id(e, key);
	label->str = string_id(e, text);
	sample->label_pointers[index] = label;
}

static void fill_sample(struct exporter *e, struct sample *sample, const hr__site *site)
{
	char text[HR__EXPORT_TYPE_BYTES];
	hr__site bare = *site;
	hr_pprof__sample__init(&sample->message);
	size_t frames = put_frames(e, site, NULL, 0);
	sample->frames = hr__export_take(&e->status, frames * sizeof *sample->frames);
	if (!sample->frames) return;
	put_frames(e, site, sample->frames, frames);
	sample->message.location_id = sample->frames;
	sample->message.n_location_id = frames;
	sample->message.value = sample->values;
	sample->message.n_value = VALUES;
	sample->message.label = sample->label_pointers;
	bare.dtype = HR_DTYPE_NONE;
	add_label(e, sample, "tag", hr_name_text(site->tag));
	add_label(e, sample, "shape", hr__export_type(&bare, text));
	add_label(e, sample, "dtype", site->dtype != HR_DTYPE_NONE ? hr_dtype_text(site->dtype) : "");
	add_label(e, sample, "allocator", e->labels.of[site->allocator]);
	e->pointers[e->sample_count++] = &sample->message;
}

static void fill_samples(struct exporter *e)
{
	for (uint32_t i = 0; i < e->capture->site_count && !e->status; i++)
		if (e->samples[i].values[ALLOC_OBJECTS]) fill_sample(e, &e->samples[i], &e->capture->sites[i]);
}

/* ---- writing ---- */

#ifdef HR_HAVE_ZLIB

static voidpf zlib_alloc(voidpf context, uInt items, uInt bytes)
{
	/* Sizes are not given back with the block, so it is kept before it. */
	void *block;
	size_t wanted = (size_t)items * bytes + 16;
	(void)context;
	if (hr__os()->alloc(wanted, &block) != 0) return Z_NULL;
	*(size_t *)block = wanted;
	return (char *)block + 16;
}

static void zlib_free(voidpf context, voidpf address)
{
	(void)context;
	size_t *block = (size_t *)((char *)address - 16);
	hr__os()->free(block, *block);
}

static hr_status write_bytes(hr__export_file *file, uint8_t *bytes, size_t length)
{
	z_stream stream = { .zalloc = zlib_alloc, .zfree = zlib_free };
	unsigned char out[4096];
	int result;
	if (length > UINT32_MAX)
		return hr__fail(HR_TOO_MANY, "the profile would have %zu bytes, and pprof reads 4 GiB at most", length);
	/* 16 more than the window: with the header of gzip. */
	if (deflateInit2(&stream, Z_DEFAULT_COMPRESSION, Z_DEFLATED, MAX_WBITS + 16, 8, Z_DEFAULT_STRATEGY) != Z_OK)
		return hr__fail(HR_NO_HOST_MEMORY, "no memory for zlib");
	stream.next_in = bytes;
	stream.avail_in = (uInt)length;
	do {
		stream.next_out = out;
		stream.avail_out = sizeof out;
		result = deflate(&stream, Z_FINISH);
	} while (hr__export_file_write(file, (char *)out, sizeof out - stream.avail_out) && result == Z_OK);
	deflateEnd(&stream);
	return HR_OK;
}

#else

static hr_status write_bytes(hr__export_file *file, uint8_t *bytes, size_t length)
{
	hr__export_file_write(file, (const char *)bytes, length);
	return HR_OK;
}

#endif

static void write_profile(struct exporter *e, const HrPprof__Profile *profile, hr__export_file *file)
{
	size_t bytes = hr_pprof__profile__get_packed_size(profile);
	uint8_t *packed = hr__export_take(&e->status, bytes + 1);
	if (!packed) return;
	hr_pprof__profile__pack(profile, packed);
	e->status = write_bytes(file, packed, bytes);
	hr__export_give(packed, bytes + 1);
}

/* ---- the whole ---- */

/* A function and a location for each frame. */
struct code {
	HrPprof__Function *functions, **function_pointers;
	HrPprof__Location *locations, **location_pointers;
	HrPprof__Line *lines, **line_pointers;
};

static void fill_code(struct exporter *e, struct code *code)
{
	for (uint32_t i = 0; i < e->frames.count; i++) {
		hr_pprof__function__init(&code->functions[i]);
		hr_pprof__location__init(&code->locations[i]);
		hr_pprof__line__init(&code->lines[i]);
		code->functions[i].id = code->locations[i].id = code->lines[i].function_id = 1 + (uint64_t)i;
		code->functions[i].name = code->functions[i].system_name = string_id(e, e->frames.texts[i]);
		code->line_pointers[i] = &code->lines[i];
		code->locations[i].line = &code->line_pointers[i];
		code->locations[i].n_line = 1;
		code->function_pointers[i] = &code->functions[i];
		code->location_pointers[i] = &code->locations[i];
	}
}

static void put_profile(struct exporter *e, struct code *code, hr__export_file *file)
{
	static const char *const names[][2] = {
#define VALUE_NAME(id, name, unit) [id] = { name, unit },
		VALUE_TABLE(VALUE_NAME)
#undef VALUE_NAME
	};
	HrPprof__Profile profile = HR_PPROF__PROFILE__INIT;
	HrPprof__ValueType types[VALUES], *type_pointers[VALUES];
	for (int i = 0; i < VALUES; i++) {
		hr_pprof__value_type__init(&types[i]);
		types[i].type = string_id(e, names[i][0]);
		types[i].unit = string_id(e, names[i][1]);
		type_pointers[i] = &types[i];
	}
	profile.sample_type = type_pointers;
	profile.n_sample_type = VALUES;
	profile.sample = e->pointers;
	profile.n_sample = e->sample_count;
	profile.function = code->function_pointers;
	profile.location = code->location_pointers;
	profile.n_function = profile.n_location = e->frames.count;
	profile.time_nanos = (int64_t)e->capture->start_wall_ns;
	profile.duration_nanos = (int64_t)e->capture->end_ns;
	profile.default_sample_type = types[PEAK_SPACE].type;
	profile.string_table = e->strings.texts;
	profile.n_string_table = e->strings.count;
	if (!e->status) write_profile(e, &profile, file);
}

static void put_all(struct exporter *e, hr__export_file *file)
{
	size_t count = e->frames.count + (size_t)1;
	size_t each = sizeof(HrPprof__Function) + sizeof(HrPprof__Location) + sizeof(HrPprof__Line) + 3 * sizeof(void *);
	struct code code;
	code.functions = hr__export_take(&e->status, count * each);
	if (!code.functions) return;
	code.locations = (void *)(code.functions + count);
	code.lines = (void *)(code.locations + count);
	code.function_pointers = (void *)(code.lines + count);
	code.location_pointers = (void *)(code.function_pointers + count);
	code.line_pointers = (void *)(code.location_pointers + count);
	fill_code(e, &code);
	put_profile(e, &code, file);
	hr__export_give(code.functions, count * each);
}

hr_status hr__export_pprof(const hr__capture *capture, const char *path)
{
	struct exporter e = { .capture = capture };
	hr__export_file *file;
	size_t sites = capture->site_count + (size_t)1;
	hr_status status = hr__export_file_open(path, &file);
	if (status) return status;
	e.samples = hr__export_take(&e.status, sites * sizeof *e.samples);
	e.pointers = hr__export_take(&e.status, sites * sizeof *e.pointers);
	if (!e.status) e.status = hr__export_labels_init(capture, &e.labels);
	string_id(&e, ""); /* is number 0 */
	if (!e.status) count_all(&e);
	if (!e.status) fill_samples(&e);
	if (!e.status) put_all(&e, file);
	status = hr__export_file_close(file, e.status);
	for (uint32_t i = 0; e.samples && i < capture->site_count; i++)
		hr__export_give(e.samples[i].frames, e.samples[i].message.n_location_id * sizeof(uint64_t));
	hr__export_give(e.samples, sites * sizeof *e.samples);
	hr__export_give(e.pointers, sites * sizeof *e.pointers);
	hr__export_labels_free(&e.labels);
	hr__export_strings_free(&e.strings);
	hr__export_strings_free(&e.frames);
	return status;
}

#else

typedef int hr__export_pprof_is_left_out; /* a file of C may not be empty */

#endif
