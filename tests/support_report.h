/* support_report.h - reports filled by hand, to be written and read back; they need no allocator.
 *
 *     report_of_training     the report of a GPT-2 training run, with numbers that add up; the example of docs/oom-report.md
 *     report_of_nothing      all zeros
 *     report_of_everything   every array full, every number large, every choice not the first
 *     report_of_names        names with quotes and control characters, invalid UTF-8, names of the greatest length */
#ifndef HR_TESTS_SUPPORT_REPORT_H
#define HR_TESTS_SUPPORT_REPORT_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/memory/oom/report_write.h"

#define REPORT_UNUSED __attribute__((unused))
#define REPORT_LOG_MOST 4096u
#define REPORT_NAMES_MOST 512u
#define MIB(count) ((uint64_t)(count) << 20)

typedef struct sample {
	hr__report report;
	hr__log_entry log[REPORT_LOG_MOST];
	hr_holder holders[3][REPORT_NAMES_MOST]; /* all holders, before the largest are chosen */
	uint32_t names[3];
} sample;

/* All zeros; on the heap because of its size. */
REPORT_UNUSED static sample *sample_new(void)
{
	sample *made = calloc(1, sizeof *made);
	if (!made) abort();
	made->report.log = made->log;
	hr_stats_init(&made->report.stats);
	made->report.options.struct_size = sizeof made->report.options;
	made->report.verdict.struct_size = sizeof made->report.verdict;
	return made;
}

/* ---- a text in memory, as a sink ---- */

typedef struct sample_text {
	char *bytes; /* ends in 0; the caller frees it */
	size_t length, capacity;
	size_t refuse_after; /* 0 = accepts everything */
} sample_text;

REPORT_UNUSED static bool sample_sink(void *context, const char *bytes, size_t length)
{
	sample_text *text = context;
	if (text->refuse_after && text->length + length > text->refuse_after) return false;
	if (text->length + length + 1 > text->capacity) {
		text->capacity = 2 * (text->length + length) + 4096;
		text->bytes = realloc(text->bytes, text->capacity);
		if (!text->bytes) abort();
	}
	memcpy(text->bytes + text->length, bytes, length);
	text->length += length;
	text->bytes[text->length] = 0;
	return true;
}

/* ---- the training run ---- */

static void sample_hold(sample *made, hr_holder_kind kind, hr_name name, uint64_t bytes)
{
	uint32_t i = 0;
	while (i < made->names[kind] && made->holders[kind][i].name != name) i++;
	if (i == made->names[kind]) made->holders[kind][made->names[kind]++].name = name;
	made->holders[kind][i].bytes += (int64_t)bytes;
	made->holders[kind][i].count++;
}

static void sample_largest(hr__report *report, const hr__report_block *block)
{
	uint32_t at = report->largest_count;
	while (at > 0 && report->largest[at - 1].bytes < block->bytes) at--;
	if (at >= HR__REPORT_TOP) return;
	if (report->largest_count < HR__REPORT_TOP) report->largest_count++;
	memmove(&report->largest[at + 1], &report->largest[at], (report->largest_count - at - 1) * sizeof *block);
	report->largest[at] = *block;
}

/* Continues the region that was begun last. */
static void sample_run(hr__report *report, hr__run_kind kind, uint64_t bytes)
{
	hr__report_region *region = &report->regions[report->region_count - 1];
	hr__run *run = region->run_count ? &report->runs[report->run_count - 1] : NULL;
	if (!run || run->kind != kind) {
		run = &report->runs[report->run_count++];
		*run = (hr__run){ .kind = (uint8_t)kind };
		region->run_count++;
	}
	run->bytes += bytes;
	run->chunks++;
	if (kind == HR__RUN_UNMAPPED) return;
	region->reserved += bytes;
	report->stats.bytes_reserved += (int64_t)bytes;
	if (kind == HR__RUN_IN_USE) {
		run->in_use += bytes;
		region->in_use += bytes;
		report->stats.bytes_in_use += (int64_t)bytes;
	} else if (kind == HR__RUN_CACHED) {
		region->cached += bytes;
		report->stats.bytes_cached += (int64_t)bytes;
	} else if (kind == HR__RUN_FREE) {
		region->free += bytes;
		if (run->bytes > region->largest_free) region->largest_free = run->bytes;
		report->stats.bytes_free += (int64_t)bytes;
		report->stats.num_free_blocks++;
		if ((int64_t)run->bytes > report->stats.largest_free_block) report->stats.largest_free_block = (int64_t)run->bytes;
	}
}

static void sample_block(sample *made, const char *op, const char *scope, const char *tag, int rank, const int64_t *dims)
{
	hr__report *report = &made->report;
	uint64_t bytes = 4;
	for (int i = 0; i < rank; i++) bytes *= (uint64_t)dims[i];
	hr__report_block block = {
		.bytes = (bytes + 255) / 256 * 256,
		.requested = bytes,
		.op = hr_name_intern(op),
		.scope = hr_name_intern(scope),
		.tag = hr_name_intern(tag),
		.shape = hr_shape_intern(dims, rank),
		.dtype = HR_DTYPE_FLOAT32,
	};
	unsigned class = 63u - (unsigned)__builtin_clzll(block.bytes);
	sample_run(report, HR__RUN_IN_USE, block.bytes);
	sample_hold(made, HR_BY_OP, block.op, block.bytes);
	sample_hold(made, HR_BY_SCOPE, block.scope, block.bytes);
	sample_hold(made, HR_BY_TAG, block.tag, block.bytes);
	sample_largest(report, &block);
	report->size_bytes[class] += (int64_t)block.bytes;
	report->size_blocks[class]++;
	report->stats.num_live++;
	report->stats.bytes_requested += (int64_t)bytes;
}

static void sample_region(hr__report *report, bool small, uint64_t address, uint64_t addresses)
{
	report->regions[report->region_count++] = (hr__report_region){
		.address = address, .addresses = addresses, .small_blocks = small, .first_run = report->run_count
	};
}

static int sample_compare(const void *a, const void *b)
{
	const hr_holder *left = a, *right = b;
	return (left->bytes < right->bytes) - (left->bytes > right->bytes);
}

static void sample_top(sample *made)
{
	for (unsigned kind = 0; kind < 3; kind++) {
		hr__report_holders *holders = &made->report.holders[kind];
		qsort(made->holders[kind], made->names[kind], sizeof(hr_holder), sample_compare);
		holders->names = made->names[kind];
		for (uint32_t i = 0; i < made->names[kind]; i++) {
			if (i < HR__REPORT_TOP) {
				holders->top[holders->count++] = made->holders[kind][i];
			} else {
				holders->rest_bytes += made->holders[kind][i].bytes;
				holders->rest_blocks += made->holders[kind][i].count;
			}
		}
	}
}

static void sample_log(sample *made, uint64_t before_ns, hr__log_action action, const char *op, const char *scope, const char *tag,
                       int rank, const int64_t *dims)
{
	uint64_t bytes = 4;
	for (int i = 0; i < rank; i++) bytes *= (uint64_t)dims[i];
	made->log[made->report.log_count++] = (hr__log_entry){
		.time_ns = made->report.time_ns - before_ns,
		.bytes = bytes,
		.op = hr_name_intern(op),
		.scope = hr_name_intern(scope),
		.tag = hr_name_intern(tag),
		.shape = hr_shape_intern(dims, rank),
		.thread = made->report.log_count % 7 == 3 ? 2 : 1,
		.dtype = HR_DTYPE_FLOAT32,
		.action = (uint8_t)action,
	};
}

static void sample_layer(sample *made, unsigned layer, unsigned layers_done)
{
	static const struct {
		const char *op;
		int64_t dims[2];
	} kernels[] = { { "attn/qkv/kernel", { 1024, 3072 } },
		            { "attn/proj/kernel", { 1024, 1024 } },
		            { "mlp/fc/kernel", { 1024, 4096 } },
		            { "mlp/proj/kernel", { 4096, 1024 } } };
	static const char *const tags[] = { "weights", "optimizer", "optimizer" };
	char scope[64];
	snprintf(scope, sizeof scope, "decoder/layer_%u", layer);
	for (unsigned copy = 0; copy < 3; copy++)
		for (unsigned i = 0; i < 4; i++) sample_block(made, kernels[i].op, scope, tags[copy], 2, kernels[i].dims);
	if (layer >= layers_done) return;
	sample_block(made, "LayerNorm", scope, "activations", 3, (int64_t[]){ 8, 1024, 1024 });
	sample_block(made, "MatMul", scope, "activations", 3, (int64_t[]){ 8, 1024, 3072 });
	sample_run(&made->report, HR__RUN_FREE, MIB(32));
	sample_block(made, "Softmax", scope, "activations", 4, (int64_t[]){ 8, 16, 1024, 256 });
	if (layer % 3 == 1) sample_run(&made->report, HR__RUN_FREE, MIB(128));
	else sample_block(made, "Gelu", scope, "activations", 3, (int64_t[]){ 8, 1024, 4096 });
}

static void sample_settle(hr__report *report)
{
	hr_stats *stats = &report->stats;
	report->device_reserved = (uint64_t)stats->bytes_reserved + MIB(64);
	report->free_bytes = report->total_bytes - report->other_bytes - report->device_reserved;
	stats->bytes_limit = stats->bytes_reservable_limit = (int64_t)report->limit;
	stats->bytes_active = stats->bytes_in_use;
	stats->peak_bytes_in_use = stats->peak_bytes_active = stats->bytes_in_use + (int64_t)MIB(20);
	stats->peak_bytes_reserved = stats->bytes_reserved;
	stats->largest_alloc_size = (int64_t)report->largest[0].bytes;
	stats->num_regions = report->region_count;
	stats->num_allocs = 21404;
	stats->num_failed_allocs = 1;
	stats->num_frees = stats->num_allocs - stats->num_failed_allocs - stats->num_live;
	stats->source_cache = 12007;
	stats->source_grow = 190;
	stats->source_free_chunk = stats->num_allocs - 1 - stats->source_cache - stats->source_grow;
	stats->fragmentation = 1.0 - (double)stats->largest_free_block / (double)stats->bytes_free;
}

REPORT_UNUSED static sample *report_of_training(void)
{
	sample *made = sample_new();
	hr__report *report = &made->report;
	*report = (hr__report){
		.id = 1,
		.sequence = 1,
		.time_ns = UINT64_C(1738228364031337042),
		.process = 4711,
		.thread = 1,
		.bytes = UINT64_C(8) * 1024 * 50257 * 4,
		.alignment = 0,
		.stream = 0,
		.op = hr_name_intern("logits/MatMul"),
		.scope = hr_name_intern("decoder/head"),
		.tag = hr_name_intern("activations"),
		.shape = hr_shape_intern((int64_t[]){ 8, 1024, 50257 }, 3),
		.dtype = HR_DTYPE_FLOAT32,
		.allocator = "GPU:0_bfc",
		.kind = "bfc",
		.device = "GPU:0",
		.backend = "cuda",
		.card = "NVIDIA RTX A5000, 2.0 MiB pages",
		.total_bytes = MIB(24576),
		.other_bytes = MIB(1410),
		.device_limit = MIB(24576),
		.page_bytes = MIB(2),
		.thread_cache = true,
		.allow_growth = true,
		.limit = MIB(14336),
		.options = { sizeof(hr_oom_options), true, 100, 1.0, HR_LOG_NO_ADDRESS, NULL, NULL, false },
		.longest_hold = 431,
		.chunks_visited = 431,
		.log = made->log,
		.log_total = 42806,
	};
	hr_stats_init(&report->stats);
	report->size = (report->bytes + 255) / 256 * 256;

	sample_region(report, false, 0, MIB(14336));
	sample_block(made, "wte/embedding", "decoder/embed", "weights", 2, (int64_t[]){ 50257, 1024 });
	sample_block(made, "wpe/embedding", "decoder/embed", "weights", 2, (int64_t[]){ 1024, 1024 });
	for (unsigned copy = 0; copy < 2; copy++)
		sample_block(made, "wte/embedding", "decoder/embed", "optimizer", 2, (int64_t[]){ 50257, 1024 });
	for (unsigned layer = 0; layer < 24; layer++) sample_layer(made, layer, 24);
	sample_run(report, HR__RUN_UNMAPPED, MIB(64));
	sample_block(made, "Gather", "input", "batch", 3, (int64_t[]){ 8, 1024, 1024 });
	sample_run(report, HR__RUN_FREE, report->limit - MIB(2) - (uint64_t)report->stats.bytes_reserved);
	sample_region(report, true, 0, MIB(1024));
	for (unsigned i = 0; i < 99; i++) {
		sample_block(made, i % 2 ? "bias" : "gamma", "decoder/norms", i % 3 ? "optimizer" : "weights", 1,
		             (int64_t[]){ i % 3 ? 1024 : 3072 });
		if (i % 5 == 4) sample_run(report, HR__RUN_CACHED, 16384);
	}
	sample_block(made, NULL, NULL, NULL, 1, (int64_t[]){ 1 });
	sample_run(report, HR__RUN_FREE, MIB(2) - report->regions[1].reserved);
	sample_top(made);
	sample_settle(report);

	for (unsigned i = 0; i < 100; i++) {
		unsigned layer = 20 + i / 25;
		char scope[64];
		uint64_t before = (uint64_t)(100 - i) * (100 - i) * 3171;
		snprintf(scope, sizeof scope, "decoder/layer_%u", layer);
		if (i % 5 == 0) sample_log(made, before, HR__LOG_ALLOC, "LayerNorm", scope, "activations", 3, (int64_t[]){ 8, 1024, 1024 });
		else if (i % 5 == 1)
			sample_log(made, before, HR__LOG_ALLOC, "MatMul", scope, "activations", 3, (int64_t[]){ 8, 1024, 3072 });
		else if (i % 5 == 2)
			sample_log(made, before, HR__LOG_FREE, "Dropout/mask", scope, "scratch", 3, (int64_t[]){ 8, 1024, 1024 });
		else if (i % 5 == 3)
			sample_log(made, before, HR__LOG_ALLOC, "Softmax", scope, "activations", 4, (int64_t[]){ 8, 16, 1024, 256 });
		else sample_log(made, before, HR__LOG_ALLOC, "Gelu", scope, "activations", 3, (int64_t[]){ 8, 1024, 4096 });
	}

	uint64_t pages = (report->size + MIB(2) - 1) / MIB(2);
	report->verdict = (hr_verdict){ .struct_size = sizeof report->verdict,
		                            .kind = HR_FITS_AFTER_STITCH,
		                            .tier = HR_TIER_ALLOCATOR,
		                            .bytes = pages * MIB(2),
		                            .pages = pages,
		                            .step_peak_bytes = MIB(15000) };
	snprintf(report->verdict.text, sizeof report->verdict.text,
	         "It would fit if %llu free pages were mapped side by side: %llu MiB are free, but not in one piece.",
	         (unsigned long long)pages, (unsigned long long)report->stats.bytes_free >> 20);
	snprintf(report->verdict.advice, sizeof report->verdict.advice,
	         "switch on \"stitch\" in the options of this allocator: it is off. Or raise its limit: the device has %llu GiB that "
	         "nobody holds.",
	         (unsigned long long)(report->free_bytes >> 30));
	return made;
}

/* ---- the others ---- */

REPORT_UNUSED static sample *report_of_nothing(void)
{
	return sample_new();
}

static void sample_callback(void *user, hr_oom_report report)
{
	(void)user, (void)report;
}

REPORT_UNUSED static sample *report_of_everything(void)
{
	sample *made = sample_new();
	hr__report *report = &made->report;
	char text[64];
	const int64_t huge[HR_SHAPE_MAX_RANK] = {
		INT64_MAX, INT64_MAX, INT64_MAX, INT64_MAX, INT64_MAX, INT64_MAX, INT64_MAX, INT64_MAX
	};
	hr_shape shape = hr_shape_intern(huge, HR_SHAPE_MAX_RANK);
	report->id = report->sequence = report->bytes = report->size = report->alignment = report->limit = UINT64_MAX;
	report->total_bytes = report->free_bytes = report->other_bytes = report->device_limit = report->device_reserved = UINT64_MAX;
	report->page_bytes = report->chunks_visited = report->log_total = UINT64_MAX;
	report->time_ns = INT64_MAX;
	report->process = report->thread = report->stream = report->longest_hold = report->regions_left_out = UINT32_MAX;
	report->stitch = report->thread_cache = report->allow_growth = true;
	report->op = hr_name_intern("op"), report->scope = hr_name_intern("scope"), report->tag = hr_name_intern("tag");
	report->shape = shape, report->dtype = HR_DTYPE_INT16;
	report->ranks = (hr__report_ranks){ .self = { .count = UINT32_MAX, .number = UINT32_MAX, .local = UINT32_MAX - 1 }, .count = HR__REPORT_PEERS };
	memset(report->ranks.self.job, 'j', sizeof report->ranks.self.job - 1);
	memset(report->ranks.self.host, 'h', sizeof report->ranks.self.host - 1);
	report->ranks.left_out = UINT32_MAX;
	for (uint32_t i = 0; i < HR__REPORT_PEERS; i++) {
		hr__report_peer *peer = &report->ranks.peers[i];
		*peer = (hr__report_peer){ UINT32_MAX, UINT32_MAX, "", UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT64_MAX };
		memset(peer->device, 'd', sizeof peer->device - 1);
	}
	memset(report->allocator, 'a', sizeof report->allocator - 1);
	memset(report->kind, 'k', sizeof report->kind - 1);
	memset(report->device, 'd', sizeof report->device - 1);
	memset(report->backend, 'b', sizeof report->backend - 1);
	memset(report->card, 'c', sizeof report->card - 1);
	report->options = (hr_oom_options){
		sizeof(hr_oom_options), true, 65536, 0.123456789, HR_LOG_REAL_ADDRESS, sample_callback, NULL, true
	};
	report->verdict.kind = HR_NEVER_FITS, report->verdict.tier = HR_TIER_PHYSICAL;
	report->verdict.bytes = report->verdict.pages = report->verdict.step_peak_bytes = UINT64_MAX;
	memset(report->verdict.text, 't', sizeof report->verdict.text - 1);
	memset(report->verdict.advice, 'A', sizeof report->verdict.advice - 1);
	report->stats.fragmentation = 0.987654;
#define FILL(name, meaning) report->stats.name = INT64_MAX;
	HR_STATS_TABLE(FILL)
#undef FILL
	for (unsigned kind = 0; kind < 3; kind++) {
		report->holders[kind].count = HR__REPORT_TOP;
		report->holders[kind].names = UINT32_MAX;
		report->holders[kind].rest_bytes = report->holders[kind].rest_blocks = INT64_MAX;
	}
	report->largest_count = HR__REPORT_TOP;
	for (uint32_t i = 0; i < HR__REPORT_TOP; i++) {
		snprintf(text, sizeof text, "holder_%u", i);
		for (unsigned kind = 0; kind < 3; kind++)
			report->holders[kind].top[i] = (hr_holder){ .name = hr_name_intern(text), .count = UINT32_MAX, .bytes = INT64_MAX };
		report->largest[i] = (hr__report_block){ UINT64_MAX,    UINT64_MAX, hr_name_intern(text), HR_NAME_OTHER,
			                                     HR_NAME_OTHER, shape,      (hr_dtype)(i % 11) };
	}
	for (uint32_t i = 0; i < HR__REPORT_SIZES; i++) report->size_bytes[i] = report->size_blocks[i] = INT64_MAX;
	report->region_count = HR__REPORT_REGIONS;
	report->run_count = HR__REPORT_RUNS;
	for (uint32_t i = 0; i < HR__REPORT_REGIONS; i++) {
		const uint32_t each = HR__REPORT_RUNS / HR__REPORT_REGIONS;
		report->regions[i] = (hr__report_region){ UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT64_MAX,
			                                      UINT64_MAX, UINT64_MAX, i % 2 == 1, i * each,   each };
	}
	for (uint32_t i = 0; i < HR__REPORT_RUNS; i++)
		report->runs[i] = (hr__run){ UINT64_MAX, UINT64_MAX, UINT32_MAX, (uint8_t)(1 + i % 5) };
	report->log_count = REPORT_LOG_MOST;
	for (uint32_t i = 0; i < REPORT_LOG_MOST; i++)
		made->log[i] = (hr__log_entry){ report->time_ns - (uint64_t)i * i * i * 977 + 1000,
			                            UINT64_MAX,
			                            UINT64_MAX - i,
			                            report->op,
			                            report->scope,
			                            report->tag,
			                            shape,
			                            i,
			                            (uint8_t)(i % 11),
			                            (uint8_t)(i % 2 ? HR__LOG_ALLOC : HR__LOG_FREE) };
	return made;
}

static const char *const sample_names[] = {
	"a \"quoted\" \\ name",
	"two\nlines\r\tand a tab",
	"\033[31mred\033[0m\033]0;title\a",
	"\x7F\x01\x1F",
	"\xC2\x9B"
	"31m C1",
	"\xFF\xFE not UTF-8 \xC3",
	"\xE2\x80\xAE"
	"backwards\xE2\x80\xA8line",
	"\xEF\xBB\xBF\xE2\x81\xA6hidden",
	"\xE2\x82\xAC \xC3\xA9 \xF0\x9F\x98\x80",
	" ",
	"(other)",
	"%s%n",
	"]}\"",
	"\xED\xA0\x80 surrogate",
	"",
};
#define SAMPLE_NAMES (sizeof sample_names / sizeof *sample_names)

REPORT_UNUSED static sample *report_of_names(void)
{
	sample *made = sample_new();
	hr__report *report = &made->report;
	char longest[1025];
	memset(longest, 'x', sizeof longest - 1);
	longest[1024] = 0;
	hr_name long_name = hr_name_intern(longest);
	memset(longest, 0xFE, sizeof longest - 1);
	hr_name bad_name = hr_name_intern(longest);
	report->op = hr_name_intern(sample_names[0]), report->scope = long_name, report->tag = bad_name;
	report->stats.bytes_in_use = 1 << 20;
	for (unsigned kind = 0; kind < 3; kind++) {
		hr__report_holders *holders = &report->holders[kind];
		holders->names = holders->count = SAMPLE_NAMES + 1;
		for (uint32_t i = 0; i < SAMPLE_NAMES; i++)
			holders->top[i] = (hr_holder){ .name = hr_name_intern(sample_names[(i + kind * 5) % SAMPLE_NAMES]),
				                           .count = 1,
				                           .bytes = 1 << 15 };
		holders->top[SAMPLE_NAMES] = (hr_holder){ .name = kind ? long_name : bad_name, .count = 2, .bytes = 1 << 10 };
	}
	report->largest_count = SAMPLE_NAMES;
	for (uint32_t i = 0; i < SAMPLE_NAMES; i++)
		report->largest[i] = (hr__report_block){ .bytes = 1 << 15,
			                                     .requested = 1 << 15,
			                                     .op = hr_name_intern(sample_names[i]),
			                                     .scope = bad_name,
			                                     .tag = long_name,
			                                     .shape = hr_shape_intern(NULL, 0) };
	for (uint32_t i = 0; i < SAMPLE_NAMES; i++)
		made->log[report->log_count++] = (hr__log_entry){ .bytes = 1,
			                                              .op = hr_name_intern(sample_names[i]),
			                                              .thread = 1,
			                                              .action = HR__LOG_ALLOC,
			                                              .scope = hr_name_intern(sample_names[SAMPLE_NAMES - 1 - i]) };
	/* Texts of fixed size may be cut anywhere, also inside a character. */
	memcpy(report->allocator, "0123456789012345678901234567\xE2\x82", 31);
	memcpy(report->device, "GPU\033:0\n", 8);
	memset(report->card, 0xFF, sizeof report->card - 1);
	snprintf(report->verdict.text, sizeof report->verdict.text, "a verdict \033[2J that clears");
	snprintf(report->verdict.advice, sizeof report->verdict.advice, "advice\nin \"lines\"");
	return made;
}

/* Sets counts and indices that are out of range for every array. */
static inline void sample_break_counts(hr__report *report)
{
	report->largest_count = report->region_count = report->run_count = UINT32_MAX;
	for (unsigned i = 0; i < 3; i++) report->holders[i].count = UINT32_MAX;
	for (uint32_t i = 0; i < HR__REPORT_REGIONS; i++) report->regions[i].run_count = UINT32_MAX;
	report->regions[1].first_run = UINT32_MAX;
	report->regions[2].first_run = HR__REPORT_RUNS - 1;
}

#endif
