/* report_text.c - writes a report as text, for a log file or a terminal of 100 columns.
 *
 * The order is that of a reader's questions: what happened and what to do; what is full; the numbers; the holders; the memory map;
 * the last operations. Empty parts are left out.
 *
 * Nothing is allocated: lines are formatted in buffers on the stack and written to the sink through a small buffer. Names come from
 * the program: every byte that is not part of a printable character is shown as \xNN, and so are characters that hide or reorder
 * text. So a name can neither move the cursor nor imitate another line. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "core/base/checked.h"
#include "core/base/text/text.h"
#include "core/memory/oom/report_write.h"

#define INDENT 2u
#define HOLDERS_SHOWN 10u
#define LARGEST_SHOWN 10u
#define REGIONS_SHOWN 16u
#define LOG_SHOWN 20u
#define WIDTH 100u
#define BAR 40u
#define TENSOR_COLUMNS 24u
#define TENSOR_BYTES 256u
#define NAME_COLUMNS 120u                       /* limit on the columns of one name */
#define SAFE_BYTES(columns) (4 * (columns) + 4) /* a column takes at most 4 bytes; plus three dots and a 0 */
#define PARAGRAPH_BYTES 2048u
#define NO_NAME_TEXT "(none)"

struct report_page {
	const hr__report *report;
	hr__report_sink sink;
	void *context;
	bool failed;
	size_t used;
	char buffer[512];
};

/* ---- output ---- */

static void flush(struct report_page *page)
{
	if (page->used > 0 && !page->failed) page->failed = !page->sink(page->context, page->buffer, page->used);
	page->used = 0;
}

/* The sink never receives a part of a character: report_json.c escapes the text. */
static void put(struct report_page *page, const char *bytes, size_t length)
{
	while (length > 0) {
		size_t room = sizeof page->buffer - page->used, taken = length <= room ? length : hr__utf8_trim(bytes, room);
		memcpy(page->buffer + page->used, bytes, taken);
		page->used += taken;
		bytes += taken;
		length -= taken;
		if (length > 0) flush(page);
	}
}

static void put_text(struct report_page *page, const char *text)
{
	put(page, text, strlen(text));
}

static void put_times(struct report_page *page, char c, unsigned times)
{
	for (unsigned i = 0; i < times; i++) put(page, &c, 1);
}

__attribute__((format(printf, 2, 3))) static void put_format(struct report_page *page, const char *format, ...)
{
	char text[PARAGRAPH_BYTES];
	va_list arguments;
	va_start(arguments, format);
	vsnprintf(text, sizeof text, format, arguments);
	va_end(arguments);
	put_text(page, text);
}

/* ---- sanitized text ---- */

static unsigned columns_of(const char *text, size_t length)
{
	unsigned columns = 0;
	for (size_t at = 0; at < length;) {
		size_t bytes = hr__utf8_printable(text + at, length - at);
		columns += bytes ? 1 : 4;
		at += bytes ? bytes : 1;
	}
	return columns;
}

/* Bytes of the longest prefix of [text] that takes at most [columns]. */
static size_t fitting(const char *text, size_t length, unsigned columns)
{
	size_t at = 0;
	for (unsigned used = 0; at < length;) {
		size_t bytes = hr__utf8_printable(text + at, length - at);
		used += bytes ? 1 : 4;
		if (used > columns) break;
		at += bytes ? bytes : 1;
	}
	return at;
}

/* Writes [text], up to a 0 in its [length] bytes, in at most [columns] columns. Longer text has dots in the middle, because names
 * of ops and scopes differ in their ends. [out] has SAFE_BYTES(columns). Idempotent. */
static const char *safe(const char *text, size_t length, unsigned columns, char *out)
{
	length = strnlen(text, length);
	unsigned total = columns_of(text, length), dots = columns < 3 ? columns : 3, rest = columns - dots;
	size_t head = length, tail = length, used;
	if (total > columns) {
		head = fitting(text, length, rest / 3);
		unsigned behind = total - columns_of(text, head); /* columns from the tail on */
		for (tail = head; tail < length && behind > rest - rest / 3;) {
			size_t bytes = hr__utf8_printable(text + tail, length - tail);
			behind -= bytes ? 1 : 4;
			tail += bytes ? bytes : 1;
		}
		hr__cut(text, length, &head, &tail);
	}
	used = hr__text_escape(text, head, out, SAFE_BYTES(columns));
	if (total > columns) {
		memcpy(out + used, "...", dots);
		used += dots;
		hr__text_escape(text + tail, length - tail, out + used, SAFE_BYTES(columns) - used);
	}
	return out;
}

static const char *safe_name(hr_name name, unsigned columns, char *out)
{
	const char *text = hr_name_text(name);
	return safe(text, strlen(text), columns, out);
}

/* Bytes up to a space at which a line may end: not the space between a number and its unit. */
static size_t word_length(const char *text)
{
	static const char *const units[] = { " B", " KiB", " MiB", " GiB", " TiB", " PiB", " EiB" };
	size_t length = strcspn(text, " ");
	for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
		bool after_digit = length > 0 && text[length - 1] >= '0' && text[length - 1] <= '9';
		if (after_digit && strncmp(text + length, units[i], strlen(units[i])) == 0)
			return length + 1 + strcspn(text + length + 1, " ");
	}
	return length;
}

/* Wraps [text], which is sanitized, to the page width; lines after the first are indented. */
static void wrap(struct report_page *page, unsigned first, unsigned indent, const char *text)
{
	unsigned column = first;
	bool fresh = true; /* the line is still empty */
	while (*text) {
		size_t length = word_length(text);
		unsigned word = columns_of(text, length);
		if (!fresh && column + 1 + word > WIDTH) {
			put_text(page, "\n");
			put_times(page, ' ', indent);
			column = indent;
		} else if (!fresh) {
			put_text(page, " ");
			column++;
		}
		put(page, text, length);
		column += word;
		fresh = false;
		text += length;
		while (*text == ' ') text++;
	}
	put_text(page, "\n");
}

static void heading(struct report_page *page, const char *title, const char *rest)
{
	put_text(page, "\n");
	put_text(page, title);
	wrap(page, (unsigned)strlen(title), INDENT, rest);
}

/* ---- numbers ---- */

#define SIZE_BYTES 16
#define COUNT_BYTES 32
#define SHARE_BYTES 16

static uint64_t amount(int64_t value)
{
	return value > 0 ? (uint64_t)value : 0;
}

/* Saturating sum, since the numbers may come from a forged file. */
static uint64_t sum(uint64_t a, uint64_t b)
{
	uint64_t result;
	return hr__add(a, b, &result) ? result : UINT64_MAX;
}

static const char *size_text(uint64_t bytes, char out[SIZE_BYTES])
{
	return hr__format_size(bytes, out, SIZE_BYTES);
}

static const char *count_text(uint64_t value, char out[COUNT_BYTES])
{
	return hr__format_count(value, out, COUNT_BYTES);
}

/* "29.3%"; "-" if the whole is 0. */
static const char *share_text(uint64_t part, uint64_t whole, char out[SHARE_BYTES])
{
	unsigned __int128 tenths = whole ? ((unsigned __int128)part * 1000 + whole / 2) / whole : 0;
	if (tenths > 9999) tenths = 9999;
	if (whole == 0) snprintf(out, SHARE_BYTES, "-");
	else snprintf(out, SHARE_BYTES, "%u.%u%%", (unsigned)tenths / 10, (unsigned)tenths % 10);
	return out;
}

/* "3.2 ms". */
static const char *time_text(uint64_t ns, char out[SHARE_BYTES])
{
	static const struct {
		uint64_t unit;
		const char *name;
	} units[] = {
		{ UINT64_C(3600000000000), "h" }, { UINT64_C(60000000000), "min" }, { 1000000000, "s" }, { 1000000, "ms" }, { 1000, "us" }
	};
	for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
		if (ns < units[i].unit) continue;
		uint64_t tenths = ns / (units[i].unit / 10);
		snprintf(out, SHARE_BYTES, "%u.%u %s", (unsigned)(tenths / 10), (unsigned)(tenths % 10), units[i].name);
		return out;
	}
	snprintf(out, SHARE_BYTES, "%u ns", (unsigned)ns);
	return out;
}

/* ---- what happened ---- */

/* Appends to a paragraph. Text that does not fit is left out. */
__attribute__((format(printf, 2, 3))) static void append(char paragraph[PARAGRAPH_BYTES], const char *format, ...)
{
	size_t used = strlen(paragraph);
	va_list arguments;
	va_start(arguments, format);
	vsnprintf(paragraph + used, PARAGRAPH_BYTES - used, format, arguments);
	va_end(arguments);
}

/* "float32 [64,1024]"; "" if neither is known. */
static const char *tensor_text(hr_dtype dtype, hr_shape shape, char out[TENSOR_BYTES])
{
	char dims[200];
	bool has_dtype = dtype != HR_DTYPE_NONE, has_shape = shape != HR_SHAPE_NONE;
	hr_shape_format(shape, dims, sizeof dims);
	snprintf(out, TENSOR_BYTES, "%s%s%s", has_dtype ? hr_dtype_text(dtype) : "", has_dtype && has_shape ? " " : "",
	         has_shape ? dims : "");
	return out;
}

static const char *verdict_text(const hr_verdict *verdict)
{
	static const char *const otherwise[] = {
		"What would make it fit is not known.", "It would fit now.",
		"It would fit after a trim.",           "It would fit with free pages mapped side by side.",
		"It would fit if live blocks moved.",   "More memory has to be free.",
		"It exceeds the limit by itself.",      "It would fit with LMS.",
	};
	if (verdict->text[0]) return verdict->text;
	return otherwise[(unsigned)verdict->kind < HR_VERDICT_KINDS ? verdict->kind : 0];
}

static void write_headline(struct report_page *page)
{
	const hr__report *report = page->report;
	char paragraph[PARAGRAPH_BYTES] = "", text[SAFE_BYTES(200u)], size[SIZE_BYTES], tensor[TENSOR_BYTES];
	const unsigned columns = WIDTH - 10; /* a name is one word, with quotes and a comma, and is not wrapped */
	put_text(page, "Out of memory:");
	put_text(page, " ");
	if (report->op) append(paragraph, "op \"%s\"", safe_name(report->op, columns, text));
	else append(paragraph, "a request");
	if (report->scope) append(paragraph, " in scope \"%s\"", safe_name(report->scope, columns, text));
	if (report->tag) append(paragraph, ", tag \"%s\",", safe_name(report->tag, columns, text));
	append(paragraph, " asked for %s", size_text(report->bytes, size));
	if (*tensor_text(report->dtype, report->shape, tensor)) append(paragraph, " (%s)", tensor);
	append(paragraph, " on %s", safe(report->device, sizeof report->device, 32, text));
	append(paragraph, ", allocator %s.", safe(report->allocator, sizeof report->allocator, 32, text));
	append(paragraph, " %s", safe(verdict_text(&report->verdict), sizeof report->verdict.text, 200, text));
	wrap(page, 15, 0, paragraph);
}

static void write_advice(struct report_page *page)
{
	const hr_verdict *verdict = &page->report->verdict;
	char text[SAFE_BYTES(300u)];
	put_text(page, "What to do: ");
	if (verdict->advice[0]) wrap(page, 12, 12, safe(verdict->advice, sizeof verdict->advice, 300, text));
	else wrap(page, 12, 12, "request less, or free memory; the holders are listed below.");
}

static void write_tier(struct report_page *page)
{
	const hr__report *report = page->report;
	char paragraph[PARAGRAPH_BYTES] = "", text[SAFE_BYTES(96u)];
	hr__sizes size;
	switch (report->verdict.tier) {
	case HR_TIER_ALLOCATOR:
		size = HR__SIZES(report->limit, amount(report->stats.bytes_reserved));
		append(paragraph, "the allocator's limit, %s (limit_bytes of hr_allocator_options), of which %s are reserved.",
		       size.text[0], size.text[1]);
		break;
	case HR_TIER_DEVICE:
		size = HR__SIZES(report->device_limit, report->device_reserved);
		append(paragraph, "the limit of the logical device %s, %s (hr_device_set_logical or HEADROOM_LIMIT), of which %s are reserved.",
		       safe(report->device, sizeof report->device, 32, text), size.text[0], size.text[1]);
		break;
	case HR_TIER_PHYSICAL:
		size = HR__SIZES(report->total_bytes, report->free_bytes, report->other_bytes);
		append(paragraph, "the device itself, %s (%s): %s of it are free, and %s are in other use.",
		       size.text[0],
		       safe(report->card[0] ? report->card : report->device, report->card[0] ? sizeof report->card : sizeof report->device,
		            96, text),
		       size.text[1], size.text[2]);
		break;
	case HR_TIER_NONE: append(paragraph, "nothing: enough memory is free, but not in one piece."); break;
	}
	if (report->verdict.kind == 0) return; /* there is no verdict */
	/* A request above the limit fails even when nothing is full. */
	bool is_full = report->verdict.kind != HR_NEVER_FITS;
	put_text(page, is_full ? "What is full: " : "Limited by: ");
	wrap(page, is_full ? 14 : 12, is_full ? 14 : 12, paragraph);
}

static void write_when(struct report_page *page)
{
	const hr__report *report = page->report;
	char time[HR__REPORT_TIME_BYTES], count[COUNT_BYTES];
	put_format(page, "%s, process %u", hr__report_time(report->time_ns, time), report->process);
	if (report->thread) put_format(page, ", thread %u", report->thread);
	put_format(page, ", report %s of this process", count_text(report->sequence, count));
	put_text(page, "\n");
}

/* ---- the numbers ---- */

#define REMARK_INDENT (INDENT + 33)
#define REMARK_COLUMNS (WIDTH - REMARK_INDENT)

/* Whether [text] can be wrapped into lines of [columns]. */
static bool words_fit(const char *text, unsigned columns)
{
	while (*text) {
		size_t length = word_length(text);
		if (columns_of(text, length) > columns) return false;
		text += length;
		while (*text == ' ') text++;
	}
	return true;
}

/* Continues a long remark on the next line; cuts it if a word is too long for a line. */
static void row(struct report_page *page, const char *label, const char *value, const char *remark)
{
	char shown[SAFE_BYTES(NAME_COLUMNS)];
	bool wraps = words_fit(remark, REMARK_COLUMNS);
	safe(remark, strlen(remark), wraps ? NAME_COLUMNS : REMARK_COLUMNS, shown);
	put_format(page, "%*s%-18s %12s%s", INDENT, "", label, value, *shown ? "  " : "");
	if (wraps) wrap(page, REMARK_INDENT, REMARK_INDENT, shown);
	else put_format(page, "%s\n", shown);
}

static void write_allocator_numbers(struct report_page *page)
{
	const hr__report *report = page->report;
	const hr_stats *stats = &report->stats;
	char size[SIZE_BYTES], more[SIZE_BYTES], share[SHARE_BYTES], count[COUNT_BYTES], remark[160], name[SAFE_BYTES(32u)],
		kind[SAFE_BYTES(32u)];
	uint64_t in_use = amount(stats->bytes_in_use), free_bytes = amount(stats->bytes_free);
	snprintf(remark, sizeof remark, "of allocator %s, kind %s", safe(report->allocator, sizeof report->allocator, 32, name),
	         safe(report->kind, sizeof report->kind, 32, kind));
	row(page, "limit", report->limit ? size_text(report->limit, size) : "none", remark);
	snprintf(remark, sizeof remark, "%s of the limit, in %s block%s that asked for %s", share_text(in_use, report->limit, share),
	         count_text(amount(stats->num_live), count), hr__plural(amount(stats->num_live)),
	         size_text(amount(stats->bytes_requested), more));
	row(page, "in use", size_text(in_use, size), remark);
	row(page, "cached", size_text(amount(stats->bytes_cached), size), "freed blocks that threads keep");
	snprintf(remark, sizeof remark, "in %s block%s", count_text(amount(stats->num_free_blocks), count), hr__plural(amount(stats->num_free_blocks)));
	row(page, "free", size_text(free_bytes, size), remark);
	row(page, "largest free block", size_text(amount(stats->largest_free_block), size), "");
	uint64_t outside = free_bytes > amount(stats->largest_free_block) ? free_bytes - amount(stats->largest_free_block) : 0;
	row(page, "fragmentation", share_text(outside, free_bytes, share), "of what is free lies outside the largest free block");
}

static void write_device_numbers(struct report_page *page)
{
	const hr__report *report = page->report;
	char size[SIZE_BYTES], more[SIZE_BYTES], remark[600], card[SAFE_BYTES(96u)], name[SAFE_BYTES(32u)];
	uint64_t ours = amount(report->stats.bytes_reserved);
	if (report->device_reserved > ours)
		row(page, "other allocators", size_text(report->device_reserved - ours, size), "reserved on this device by this process");
	safe(report->device, sizeof report->device, 32, name);
	safe(report->card, sizeof report->card, 96, card);
	size_text(report->free_bytes, more);
	snprintf(remark, sizeof remark, "%s%s%s, of which %s are free", name, *card ? ", " : "", card, more);
	bool apart = columns_of(remark, strlen(remark)) > REMARK_COLUMNS; /* then the description gets its own row */
	if (apart) snprintf(remark, sizeof remark, "%s, of which %s are free", name, more);
	row(page, "device", size_text(report->total_bytes, size), remark);
	if (apart) row(page, "", "", card);
	row(page, "other use", size_text(report->other_bytes, size), "taken on the device by other processes, or by its driver");
}

/* ---- holders ---- */

static bool has_names(const hr__report_holders *holders)
{
	return holders->count > 1 || (holders->count == 1 && (holders->top[0].name != HR_NAME_NONE || holders->names > 1));
}

static const char *remark_on_names(const hr__report_holders *holders, uint32_t count)
{
	for (uint32_t i = 0; i < count && i < HOLDERS_SHOWN; i++)
		if (holders->top[i].name == HR_NAME_OTHER) return ", (other) where there were more names than are kept apart";
	return "";
}

static void holder_row(struct report_page *page, uint64_t bytes, uint64_t blocks, const char *name)
{
	char size[SIZE_BYTES], share[SHARE_BYTES], count[COUNT_BYTES];
	put_format(page, "%*s%10s %6s %9s %-6s  %s\n", INDENT, "", size_text(bytes, size),
	    share_text(bytes, amount(page->report->stats.bytes_in_use), share), count_text(blocks, count),
	    blocks == 1 ? "block" : "blocks", name);
}

static void write_holders(struct report_page *page, hr_holder_kind kind)
{
	static const char *const titles[] = { "Held by op", "Held by scope", "Held by tag" };
	const hr__report_holders *holders = &page->report->holders[kind];
	uint32_t count = holders->count < HR__REPORT_TOP ? holders->count : HR__REPORT_TOP;
	uint64_t rest_bytes = amount(holders->rest_bytes), rest_blocks = amount(holders->rest_blocks);
	char name[SAFE_BYTES(NAME_COLUMNS)], rest[64], digits[COUNT_BYTES];
	if (!has_names(holders)) return;
	heading(page, titles[kind], remark_on_names(holders, count));
	for (uint32_t i = 0; i < count; i++) {
		const hr_holder *holder = &holders->top[i];
		if (i < HOLDERS_SHOWN) {
			const char *text = holder->name ? safe_name(holder->name, WIDTH - 40, name) : NO_NAME_TEXT;
			holder_row(page, amount(holder->bytes), holder->count, text);
		} else {
			rest_bytes = sum(rest_bytes, amount(holder->bytes));
			rest_blocks = sum(rest_blocks, holder->count);
		}
	}
	uint32_t shown = count < HOLDERS_SHOWN ? count : HOLDERS_SHOWN;
	uint32_t others = holders->names > shown ? holders->names - shown : 0;
	if (others == 0 && rest_bytes == 0) return;
	snprintf(rest, sizeof rest, "in %s other%s", count_text(others, digits), hr__plural(others));
	holder_row(page, rest_bytes, rest_blocks, rest);
}

/* Columns of " in NAME": the name, and [around] it. */
static unsigned name_columns(hr_name name, unsigned around)
{
	const char *text = hr_name_text(name);
	unsigned columns = columns_of(text, strlen(text));
	return name ? (columns < NAME_COLUMNS ? columns : NAME_COLUMNS) + around : 0;
}

/* Ends a line at [column] with "MatMul in encoder/layer_3 [activations]". If there is not enough room, the tag is left out and the
 * scope is cut; the op is cut if it takes more than half of the room. */
static void end_with_names(struct report_page *page, unsigned column, hr_name op, hr_name scope, hr_name tag)
{
	char name[SAFE_BYTES(NAME_COLUMNS)];
	unsigned room = WIDTH - column;
	unsigned op_all = op ? name_columns(op, 0) : (unsigned)strlen(NO_NAME_TEXT), scope_all = name_columns(scope, 4);
	unsigned op_room = scope_all < room / 2 ? room - scope_all : room / 2;
	if (op_room > op_all) op_room = op_all;
	put_text(page, op ? safe_name(op, op_room, name) : NO_NAME_TEXT);
	if (scope) put_format(page, " in %s", safe_name(scope, room - op_room - 4, name));
	if (tag && op_all + scope_all + name_columns(tag, 3) <= room) put_format(page, " [%s]", safe_name(tag, NAME_COLUMNS, name));
	put_text(page, "\n");
}

/* "float32 [64,1024]" in TENSOR_COLUMNS, and two spaces. */
static void put_tensor(struct report_page *page, hr_dtype dtype, hr_shape shape)
{
	char tensor[TENSOR_BYTES], shown[SAFE_BYTES(TENSOR_COLUMNS)];
	tensor_text(dtype, shape, tensor);
	put_format(page, "%-*s  ", (int)TENSOR_COLUMNS, safe(tensor, sizeof tensor, TENSOR_COLUMNS, shown));
}

static void write_largest(struct report_page *page)
{
	const hr__report *report = page->report;
	uint32_t count = report->largest_count < LARGEST_SHOWN ? report->largest_count : LARGEST_SHOWN;
	char size[SIZE_BYTES], share[SHARE_BYTES];
	if (count == 0) return;
	heading(page, "Largest blocks", "");
	for (uint32_t i = 0; i < count; i++) {
		const hr__report_block *block = &report->largest[i];
		put_format(page, "%*s%10s %6s  ", INDENT, "", size_text(block->bytes, size),
		    share_text(block->bytes, amount(report->stats.bytes_in_use), share));
		put_tensor(page, block->dtype, block->shape);
		end_with_names(page, INDENT + 19 + TENSOR_COLUMNS + 2, block->op, block->scope, block->tag);
	}
}

/* ---- other ranks of the job ---- */

static void write_peer(struct report_page *page, const hr__report_peer *peer, unsigned indent)
{
	char paragraph[PARAGRAPH_BYTES] = "", name[SAFE_BYTES(NAME_COLUMNS)], size[SIZE_BYTES], time[SHARE_BYTES];
	append(paragraph, "rank %u: ", peer->rank);
	if (peer->device[0]) {
		append(paragraph, "%s in use", size_text(peer->in_use, size));
		if (peer->limit) append(paragraph, " of %s", size_text(peer->limit, size));
		append(paragraph, " on %s", safe(peer->device, sizeof peer->device, NAME_COLUMNS, name));
		append(paragraph, ", %s at its peak", size_text(peer->peak, size));
	} else {
		append(paragraph, "nothing yet");
	}
	append(paragraph, "; process %u, %s before", peer->process, time_text(peer->age_ns, time));
	put_times(page, ' ', indent);
	wrap(page, indent, indent + INDENT, paragraph);
}

static void write_peers(struct report_page *page, unsigned indent)
{
	const hr__report_ranks *ranks = &page->report->ranks;
	for (uint32_t i = 0; i < ranks->count && i < HR__REPORT_PEERS; i++) write_peer(page, &ranks->peers[i], indent);
	if (ranks->left_out) put_format(page, "%*sand %u device%s with less\n", indent, "", ranks->left_out, hr__plural(ranks->left_out));
}

static void write_ranks(struct report_page *page)
{
	const hr__report_ranks *ranks = &page->report->ranks;
	char rest[160];
	if (!ranks->self.count) return;
	snprintf(rest, sizeof rest, " on this host; this is rank %u of %u", ranks->self.number, ranks->self.count);
	heading(page, "Other ranks of the job", rest);
	if (!ranks->count) put_format(page, "%*snone publishes statistics, as with headroom run or HEADROOM_TOP=1\n", INDENT, "");
	write_peers(page, INDENT);
}

/* ---- memory map ---- */

static void write_sizes(struct report_page *page)
{
	const hr__report *report = page->report;
	uint64_t most = 0;
	char from[SIZE_BYTES], to[SIZE_BYTES], size[SIZE_BYTES], count[COUNT_BYTES];
	for (uint32_t i = 0; i < HR__REPORT_SIZES; i++)
		if (amount(report->size_bytes[i]) > most) most = amount(report->size_bytes[i]);
	if (most == 0) return;
	heading(page, "Sizes of live blocks", ", the bars showing their bytes");
	for (uint32_t i = 0; i < HR__REPORT_SIZES; i++) {
		uint64_t bytes = amount(report->size_bytes[i]), blocks = amount(report->size_blocks[i]);
		if (bytes == 0 && blocks == 0) continue;
		unsigned length = (unsigned)(((unsigned __int128)bytes * BAR + most - 1) / most);
		put_format(page, "%*s%10s to %10s %9s %-6s %10s  ", INDENT, "", size_text(UINT64_C(1) << i, from), size_text(UINT64_C(2) << i, to),
		    count_text(blocks, count), blocks == 1 ? "block" : "blocks", size_text(bytes, size));
		put_times(page, '#', length);
		put_text(page, "\n");
	}
}

/* By hr__run_kind; 0 = none. */
static const char map_cells[] = { ' ', '.', '#', 'c', ' ', '+' };

#define KINDS (HR__RUN_MIXED + 1)

/* Position of the map in the runs of a region. */
struct walk {
	const hr__run *run, *end;
	uint64_t into; /* bytes of *run before the position */
};

/* The kind that most of the next [bytes] have; mixed if no kind has at least half. */
static unsigned next_cell(struct walk *walk, uint64_t bytes)
{
	uint64_t of_kind[KINDS] = { 0 }, total = bytes;
	while (bytes > 0 && walk->run < walk->end) {
		uint64_t left = walk->run->bytes - walk->into, part = left < bytes ? left : bytes;
		of_kind[walk->run->kind < KINDS ? walk->run->kind : HR__RUN_MIXED] += part;
		bytes -= part;
		walk->into += part;
		if (walk->into < walk->run->bytes) break;
		walk->run++;
		walk->into = 0;
	}
	for (unsigned kind = 1; kind < KINDS; kind++)
		if (of_kind[kind] > 0 && of_kind[kind] >= total - total / 2) return kind;
	return HR__RUN_MIXED;
}

static void draw_map(struct report_page *page, const hr__report_region *region)
{
	const hr__report *report = page->report;
	uint32_t first = region->first_run < HR__REPORT_RUNS ? region->first_run : HR__REPORT_RUNS;
	uint32_t count = region->run_count < HR__REPORT_RUNS - first ? region->run_count : HR__REPORT_RUNS - first;
	struct walk walk = { &report->runs[first], &report->runs[first] + count, 0 };
	const unsigned cells = WIDTH - 2 * INDENT;
	uint64_t total = 0, done = 0;
	for (uint32_t i = 0; i < count; i++) total = sum(total, report->runs[first + i].bytes);
	if (total == 0) return;
	put_format(page, "%*s|", INDENT - 1, "");
	for (unsigned i = 0; i < cells; i++) {
		uint64_t until = (uint64_t)((unsigned __int128)total * (i + 1) / cells);
		/* A region with fewer bytes than cells: a cell may stand for less than a byte, and shows the byte that contains it. */
		unsigned kind = until > done ? next_cell(&walk, until - done)
		                             : next_cell(&(struct walk){ walk.run, walk.end, walk.into }, 1);
		done = until;
		put(page, &map_cells[kind], 1);
	}
	put_text(page, "|\n");
}

static void write_region(struct report_page *page, uint32_t index)
{
	const hr__report_region *region = &page->report->regions[index];
	char paragraph[PARAGRAPH_BYTES] = "", size[SIZE_BYTES], share[SHARE_BYTES];
	append(paragraph, "region %u, %s blocks: %s", index + 1, region->small_blocks ? "small" : "large",
	       size_text(region->reserved, size));
	append(paragraph, ", %s in use", share_text(region->in_use, region->reserved, share));
	if (region->cached) append(paragraph, ", %s cached", size_text(region->cached, size));
	if (region->free) {
		append(paragraph, ", %s free", size_text(region->free, size));
		append(paragraph, ", largest %s", size_text(region->largest_free, size));
	}
	if (region->address) append(paragraph, ", at 0x%llx", (unsigned long long)region->address);
	put_times(page, ' ', INDENT);
	wrap(page, INDENT, INDENT, paragraph);
	draw_map(page, region);
}

/* The region with the next most reserved memory after [before]; the region count if there is none. */
static uint32_t next_largest(const hr__report *report, uint32_t count, uint32_t before)
{
	uint32_t best = count;
	for (uint32_t i = 0; i < count; i++) {
		uint64_t reserved = report->regions[i].reserved;
		if (reserved == 0) continue;
		if (before < count) {
			uint64_t limit = report->regions[before].reserved;
			if (reserved > limit || (reserved == limit && i <= before)) continue;
		}
		if (best == count || reserved > report->regions[best].reserved) best = i;
	}
	return best;
}

static void write_regions(struct report_page *page)
{
	const hr__report *report = page->report;
	uint32_t count = report->region_count < HR__REPORT_REGIONS ? report->region_count : HR__REPORT_REGIONS, shown = 0;
	uint32_t at = next_largest(report, count, count), mapped = 0;
	if (at == count) return;
	heading(page, "Regions", ", largest first: # in use, c cached, . free, + mixed, a space where no memory is mapped");
	for (; at < count; at = next_largest(report, count, at), mapped++) {
		if (shown >= REGIONS_SHOWN) continue;
		write_region(page, at);
		shown++;
	}
	uint64_t left = (uint64_t)(mapped - shown) + report->regions_left_out;
	char digits[COUNT_BYTES];
	if (left) put_format(page, "%*sand %s smaller or later one%s\n", INDENT, "", count_text(left, digits), hr__plural(left));
}

/* ---- last operations ---- */

static void log_row(struct report_page *page, const char *when, const char *action, const hr__log_entry *entry)
{
	char size[SIZE_BYTES], thread[16];
	put_format(page, "%*s%15s  %-6s %10s  ", INDENT, "", when, action, size_text(entry->bytes, size));
	put_tensor(page, (hr_dtype)entry->dtype, entry->shape);
	int used = snprintf(thread, sizeof thread, "t%-2u ", entry->thread);
	put_text(page, thread);
	/* Tags appear only in the JSON: there is no room for them here. */
	end_with_names(page, INDENT + 36 + TENSOR_COLUMNS + 2 + (unsigned)used, entry->op, entry->scope, HR_NAME_NONE);
}

static void write_log_heading(struct report_page *page, uint32_t count, uint32_t shown)
{
	const hr__report *report = page->report;
	double rate = report->options.allocation_log_sampling_rate;
	char rest[200] = "", digits[COUNT_BYTES], all[COUNT_BYTES];
	size_t used = 0;
	if (count == 0) {
		snprintf(rest, sizeof rest, ": none were logged");
	} else {
		used = (size_t)snprintf(rest, sizeof rest, ": the last %u of %s logged, oldest first", shown,
		                        count_text(report->log_total > count ? report->log_total : count, all));
		if (shown < count)
			used += (size_t)snprintf(rest + used, sizeof rest - used, " (the JSON has %s)", count_text(count, digits));
		if (rate >= 0 && rate < 1) snprintf(rest + used, sizeof rest - used, "; %.3g%% are sampled", rate * 100);
	}
	heading(page, "Operations before it", rest);
}

static void write_log(struct report_page *page)
{
	const hr__report *report = page->report;
	uint32_t count = report->log ? report->log_count : 0, shown = count < LOG_SHOWN ? count : LOG_SHOWN;
	char time[SHARE_BYTES], when[SHARE_BYTES + 8];
	write_log_heading(page, count, shown);
	for (uint32_t i = count - shown; i < count; i++) {
		const hr__log_entry *entry = &report->log[i];
		bool later = entry->time_ns > report->time_ns;
		time_text(later ? entry->time_ns - report->time_ns : report->time_ns - entry->time_ns, time);
		snprintf(when, sizeof when, "%s %s", time, later ? "after" : "before");
		log_row(page, when, entry->action <= HR__LOG_FAILED ? hr__report_actions[entry->action] : "?", entry);
	}
	log_row(page, "now", "FAILED",
	        &(hr__log_entry){ .bytes = report->bytes,
	                          .op = report->op,
	                          .scope = report->scope,
	                          .tag = report->tag,
	                          .shape = report->shape,
	                          .dtype = (uint8_t)report->dtype,
	                          .thread = report->thread });
}

/* ---- the whole report, and parts of it ---- */

bool hr__report_ranks_text(const hr__report *report, hr__report_sink sink, void *context)
{
	struct report_page page = { .report = report, .sink = sink, .context = context };
	write_peers(&page, 0);
	flush(&page);
	return !page.failed;
}

bool hr__report_text(const hr__report *report, hr__report_sink sink, void *context)
{
	struct report_page page = { .report = report, .sink = sink, .context = context };
	write_headline(&page);
	write_advice(&page);
	write_tier(&page);
	write_when(&page);
	put_text(&page, "\n");
	write_allocator_numbers(&page);
	write_device_numbers(&page);
	write_holders(&page, HR_BY_OP);
	write_holders(&page, HR_BY_SCOPE);
	write_holders(&page, HR_BY_TAG);
	write_ranks(&page);
	write_largest(&page);
	write_sizes(&page);
	write_regions(&page);
	write_log(&page);
	flush(&page);
	return !page.failed;
}
