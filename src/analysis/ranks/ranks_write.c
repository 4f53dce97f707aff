/* ranks_write.c - the ranks of a job as text and as JSON: sentences, a row for each rank, and the slowest steps. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "analysis/ranks/ranks.h"
#include "analysis/table/table_write.h"
#include "core/base/names.h"
#include "core/base/status.h"
#include "core/base/text/text.h"

#define WIDTH_USUAL 100u
#define MISSING_SHOWN 10u

enum {
	R_RANK, R_DEVICE, R_PEAK, R_FULL, R_REFUSED, R_STEPS, R_STEP_NS, R_WAIT, R_STRAGGLERS, R_LAG, R_OUT, R_IN, R_LIMIT, R_OP, R_OP_BYTES, R_PEAK_NS, R_HOST, R_PROCESS,
	R_COMPLETE, R_PATH, R_COLUMNS
};

static const hr__column rank_columns[R_COLUMNS] = {
	[R_RANK] = { "rank", "rank", HR__CELL_COUNT, 0 },
	[R_DEVICE] = { "device", "device", HR__CELL_LABEL, HR__NOT_IN_TEXT },
	[R_PEAK] = { "peak_bytes", "peak", HR__CELL_BYTES, HR__ALWAYS },
	[R_LIMIT] = { "limit_bytes", "limit", HR__CELL_BYTES, 0 },
	[R_FULL] = { "of_limit", "of limit", HR__CELL_PART, 0 },
	[R_REFUSED] = { "refused", "refused", HR__CELL_COUNT, 0 },
	[R_OUT] = { "out_bytes", "moved out", HR__CELL_BYTES, 0 },
	[R_IN] = { "in_bytes", "moved in", HR__CELL_BYTES, 0 },
	[R_STEPS] = { "steps", "steps", HR__CELL_COUNT, 0 },
	[R_STEP_NS] = { "step_micros", "step", HR__CELL_NS, 0 },
	[R_WAIT] = { "wait_micros", "waited", HR__CELL_NS, 0 },
	[R_STRAGGLERS] = { "slow_steps", "slow steps", HR__CELL_COUNT, 0 },
	[R_LAG] = { "lag_micros", "lag", HR__CELL_NS, 0 },
	[R_OP] = { "peak_op", "most at the peak", HR__CELL_NAME, 0 },
	[R_OP_BYTES] = { "peak_op_bytes", "", HR__CELL_BYTES, HR__NOT_IN_TEXT },
	[R_PEAK_NS] = { "peak_micros", "", HR__CELL_NS, HR__NOT_IN_TEXT },
	[R_HOST] = { "host", "host", HR__CELL_LABEL, HR__NOT_IN_TEXT },
	[R_PROCESS] = { "process", "process", HR__CELL_COUNT, HR__NOT_IN_TEXT },
	[R_COMPLETE] = { "complete", "complete", HR__CELL_YES, HR__NOT_IN_TEXT },
	[R_PATH] = { "path", "path", HR__CELL_LABEL, HR__NOT_IN_TEXT },
};

enum { L_STEP, L_RANK, L_LAG, L_WAIT, L_NS, L_COLUMNS };

static const hr__column slow_columns[L_COLUMNS] = {
	[L_STEP] = { "step", "step", HR__CELL_COUNT, 0 },
	[L_RANK] = { "rank", "rank", HR__CELL_COUNT, HR__ALWAYS },
	[L_LAG] = { "lag_micros", "lag", HR__CELL_NS, HR__ALWAYS },
	[L_WAIT] = { "wait_micros", "waited", HR__CELL_NS, HR__ALWAYS },
	[L_NS] = { "micros", "step took", HR__CELL_NS, 0 },
};

static uint64_t part_of(uint64_t part, uint64_t whole)
{
	return whole ? (uint64_t)((unsigned __int128)part * 1000000 / whole) : HR__NEVER;
}

static hr_status fill_ranks(const hr__ranks *ranks, hr__table *table)
{
	hr_status status = HR_OK;
	for (uint32_t i = 0; i < ranks->count; i++) {
		const hr__rank_run *run = ranks->runs[i];
		uint64_t *row = hr__table_row(table, &status);
		if (!row) return status;
		row[R_RANK] = run->rank.number;
		row[R_DEVICE] = (uintptr_t)run->device;
		row[R_PEAK] = run->peak_bytes;
		row[R_LIMIT] = run->limit_bytes;
		row[R_FULL] = part_of(run->peak_bytes, run->limit_bytes);
		row[R_REFUSED] = run->refused;
		row[R_OUT] = run->out_bytes;
		row[R_IN] = run->in_bytes;
		row[R_STEPS] = run->step_count;
		row[R_STEP_NS] = run->median_ns;
		row[R_WAIT] = run->wait_ns;
		row[R_STRAGGLERS] = run->stragglers;
		row[R_LAG] = run->lag_ns;
		row[R_OP] = run->peak_op;
		row[R_OP_BYTES] = run->peak_op_bytes;
		row[R_PEAK_NS] = run->peak_ns;
		row[R_HOST] = (uintptr_t)run->rank.host;
		row[R_PROCESS] = run->process;
		row[R_COMPLETE] = run->complete;
		row[R_PATH] = (uintptr_t)run->path;
	}
	return status;
}

static hr_status fill_slow(const hr__ranks *ranks, hr__table *table)
{
	hr_status status = HR_OK;
	for (uint32_t i = 0; i < ranks->count; i++)
		for (uint32_t k = 0; k < ranks->runs[i]->step_count; k++) {
			const hr__rank_step *step = &ranks->runs[i]->steps[k];
			uint64_t *row = step->straggler ? hr__table_row(table, &status) : NULL;
			if (status) return status;
			if (!row) continue;
			row[L_STEP] = step->number;
			row[L_RANK] = ranks->runs[i]->rank.number;
			row[L_LAG] = step->lag_ns;
			row[L_WAIT] = step->wait_ns;
			row[L_NS] = step->ns;
		}
	return status;
}

static hr_status make_tables(const hr__ranks *ranks, const hr_profile_options *options, hr_profile_format format, hr__table *by_rank, hr__table *slow)
{
	static const hr__table_plan rank_plan = { .key = "ranks", .title = "Ranks", .columns = rank_columns, .column_count = R_COLUMNS, .most = HR__RANKS_MAX };
	static const hr__table_plan slow_plan = { .key = "slow_steps", .title = "Steps that waited for memory longer than the median of the ranks",
		                                      .columns = slow_columns, .column_count = L_COLUMNS, .order = "lag_micros" };
	hr_status status = hr__table_init(by_rank, &rank_plan, options, format, NULL);
	if (status) return status;
	status = hr__table_init(slow, &slow_plan, options, format, NULL);
	if (!status) status = fill_ranks(ranks, by_rank);
	if (!status) status = fill_slow(ranks, slow);
	if (status) return status;
	hr__table_finish(by_rank);
	hr__table_finish(slow);
	return HR_OK;
}

/* ---- text ---- */

static uint32_t ranks_of_job(const hr__ranks *ranks)
{
	return ranks->count ? ranks->runs[0]->rank.count : 0;
}

static void print_missing(const hr__ranks *ranks, hr__text_out *out)
{
	char list[128] = "";
	uint32_t next = 0, shown = 0, missing = ranks_of_job(ranks) - ranks->count;
	for (uint32_t rank = 0; rank < ranks_of_job(ranks) && shown < missing && shown < MISSING_SHOWN; rank++) {
		if (next < ranks->count && ranks->runs[next]->rank.number == rank) {
			next++;
			continue;
		}
		size_t used = strlen(list);
		snprintf(list + used, sizeof list - used, "%s%u", shown++ ? ", " : "", rank);
	}
	if (missing) hr__text_print(out, "Missing: rank%s %s%s of %u\n", hr__plural(missing), list, shown < missing ? ", ..." : "", ranks_of_job(ranks));
}

static void print_warnings(const hr__ranks *ranks, hr__text_out *out)
{
	for (uint32_t i = 0; i < ranks->count; i++) {
		const hr__rank_run *run = ranks->runs[i], *first = ranks->runs[0];
		if (!run->complete) hr__text_print(out, "Rank %u was killed, or is still running; its recording ends early.\n", run->rank.number);
		if (run->lost) hr__text_print(out, "Rank %u: %" PRIu64 " events could not be written.\n", run->rank.number, run->lost);
		if (strcmp(run->writer, first->writer) != 0)
			hr__text_print(out, "Rank %u ran with %s, and rank %u with %s; figures that one of them does not record are missing.\n", run->rank.number, run->writer,
			               first->rank.number, first->writer);
	}
}

static uint32_t count_hosts(const hr__ranks *ranks)
{
	uint32_t hosts = 0;
	for (uint32_t i = 0; i < ranks->count; i++) {
		bool seen = false;
		for (uint32_t k = 0; k < i && !seen; k++) seen = strcmp(ranks->runs[k]->rank.host, ranks->runs[i]->rank.host) == 0;
		hosts += !seen;
	}
	return hosts;
}

static void print_head(const hr__ranks *ranks, hr__text_out *out)
{
	const hr__rank_run *highest = ranks->runs[ranks->highest];
	char size[32], limit[32], op[HR__CELL_BYTES_MAX], of_limit[96] = "";
	uint32_t hosts = count_hosts(ranks);
	uint64_t part = part_of(highest->peak_bytes, highest->limit_bytes);
	hr__text_heading(out, "%u of %u ranks on %u host%s", ranks->count, ranks_of_job(ranks), hosts, hr__plural(hosts));
	if (highest->limit_bytes)
		snprintf(of_limit, sizeof of_limit, ", %" PRIu64 ".%" PRIu64 "%% of its limit of %s", (part + 500) / 10000, (part + 500) / 1000 % 10,
		         hr__format_size(highest->limit_bytes, limit, sizeof limit));
	if (highest->peak_bytes)
		hr__text_print(out, "Highest peak: rank %u, %s on %s%s; most of it is held by %s\n", highest->rank.number,
		               hr__format_size(highest->peak_bytes, size, sizeof size), highest->device, of_limit,
		               highest->peak_op ? hr__text_format(hr_name_text(highest->peak_op), op) : "blocks without an op");
}

static hr_status write_text(const hr__ranks *ranks, const hr__table *by_rank, const hr__table *slow, const hr_profile_options *options, hr_profile_writer write,
                            void *context)
{
	hr__text_out out = { .write = write, .context = context, .width = options->width ? options->width : WIDTH_USUAL, .colour = options->colour, .utf8 = options->utf8 };
	print_head(ranks, &out);
	print_missing(ranks, &out);
	print_warnings(ranks, &out);
	hr__table_text(by_rank, &out);
	if (slow->offered) hr__table_text(slow, &out);
	else if (ranks->median_ns) hr__text_print(&out, "No step of a rank waited for memory noticeably longer than that step of the other ranks.\n");
	return out.failed ? hr__fail(HR_IO, "the report could not be written") : HR_OK;
}

/* ---- JSON ---- */

static hr_status write_json(const hr__ranks *ranks, const hr__table *by_rank, const hr__table *slow, hr_profile_writer write, void *context)
{
	const hr__rank_run *highest = ranks->runs[ranks->highest];
	hr__json json;
	hr__json_init(&json, write, context);
	json.pretty = true;
	hr__json_object(&json);
	hr__json_field_uint(&json, "rank_count", ranks_of_job(ranks));
	hr__json_field_uint(&json, "read", ranks->count);
	hr__json_field_uint(&json, "hosts", count_hosts(ranks));
	hr__json_field_uint(&json, "highest_rank", highest->rank.number);
	hr__json_field_uint(&json, "highest_peak_bytes", highest->peak_bytes);
	hr__json_field_double(&json, "step_micros", (double)ranks->median_ns / 1000, 3);
	hr__table_json(by_rank, &json);
	hr__table_json(slow, &json);
	hr__json_key(&json, "writers");
	hr__json_array(&json);
	for (uint32_t i = 0; i < ranks->count; i++) hr__json_string(&json, ranks->runs[i]->writer);
	hr__json_end_array(&json);
	hr__json_end_object(&json);
	return hr__json_finish(&json);
}

hr_status hr__ranks_write(const hr__ranks *ranks, const hr_profile_options *options, hr_profile_format format, hr_profile_writer write, void *context)
{
	hr__table by_rank = { 0 }, slow = { 0 };
	hr_status status = make_tables(ranks, options, format, &by_rank, &slow);
	if (!status) status = format == HR_PROFILE_JSON ? write_json(ranks, &by_rank, &slow, write, context) : write_text(ranks, &by_rank, &slow, options, write, context);
	hr__table_free(&by_rank);
	hr__table_free(&slow);
	return status;
}
