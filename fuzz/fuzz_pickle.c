/* fuzz_pickle.c - pickles from arbitrary bytes.
 *
 * Reading gives a graph without cycles, of limited depth and of no more cells than the input has bytes, or a message that can be
 * printed on a terminal. The result does not depend on how the input is cut into parts. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "analysis/import/pickle/pickle.h"
#include "analysis/import/pickle/pickle_json.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define MUST(condition) ((condition) ? (void)0 : (fprintf(stderr, "%s does not hold\n", #condition), abort()))

struct fuzz_input {
	const uint8_t *data;
	size_t left, step;
};

static hr_status more(void *context, const char **bytes, size_t *count)
{
	struct fuzz_input *input = context;
	*bytes = (const char *)input->data;
	*count = input->left < input->step ? input->left : input->step;
	input->data += *count;
	input->left -= *count;
	return HR_OK;
}

static hr_status read_in_steps(const uint8_t *data, size_t size, size_t step, uint64_t *offset, hr__pickle **pickle)
{
	struct fuzz_input input = { data, size, step };
	*pickle = NULL;
	return hr__pickle_read(&(hr__pickle_input){ more, &input }, offset, pickle);
}

static void check_message(void)
{
	const char *message = hr_last_message();
	MUST(*message);
	for (; *message; message++) MUST((unsigned char)*message >= 0x20 && *message != 0x7F);
}

/* Visits every object once, and returns the number of cells. */
static size_t check_object(const hr__pickle *pickle, uint32_t object, unsigned depth, bool *seen)
{
	size_t length, cells = 0;
	uint32_t shared = hr__pickle_shared(pickle, object);
	hr__pickle_kind kind = hr__pickle_kind_of(pickle, object);
	MUST(kind >= HR__PICKLE_NONE && kind <= HR__PICKLE_DICT && depth <= HR__PICKLE_DEPTH_MAX &&
	     shared <= hr__pickle_shared_count(pickle));
	if (shared && seen[shared]) return 0;
	seen[shared] = true;
	if (kind == HR__PICKLE_TEXT) MUST(hr__pickle_text(pickle, object, &length)[length] == 0);
	if (kind < HR__PICKLE_LIST) return 0;
	for (uint32_t item = hr__pickle_first(pickle, object); item; item = hr__pickle_next(pickle, item))
		cells += 1 + check_object(pickle, hr__pickle_at(pickle, item), depth + 1, seen);
	return cells;
}

static void check_pickle(const hr__pickle *pickle, size_t size)
{
	bool *seen = calloc((size_t)hr__pickle_shared_count(pickle) + 1, sizeof *seen);
	MUST(seen && check_object(pickle, hr__pickle_root(pickle), 0, seen) <= size);
	free(seen);
}

static void check_json(const hr__pickle *pickle)
{
#ifdef HR_HAVE_JANSSON
	hr__pickle_json json;
	MUST(hr__pickle_json_init(&json, pickle) == HR_OK);
	json_t *value;
	MUST(hr__pickle_json_of(&json, hr__pickle_root(pickle), &value) == HR_OK);
	hr__pickle_json_free(&json);
	json_decref(value);
#else
	(void)pickle;
#endif
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	hr__pickle *pickle, *again;
	uint64_t offset, offset_again;
	hr_status status = read_in_steps(data, size, SIZE_MAX, &offset, &pickle);
	if (status) check_message();
	MUST(offset <= size);
	MUST(read_in_steps(data, size, 3, &offset_again, &again) == status && offset_again == offset);
	hr__pickle_free(again);
	if (status) return 0;
	check_pickle(pickle, size);
	check_json(pickle);
	hr__pickle_free(pickle);
	return 0;
}
