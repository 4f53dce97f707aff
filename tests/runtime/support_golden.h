/* support_golden.h - reads the files of tests/runtime/golden/. tools/golden.py writes them and documents their format.
 *
 * Any error in a file fails the test, with the file and the line. */
#ifndef HR_TESTS_RUNTIME_SUPPORT_GOLDEN_H
#define HR_TESTS_RUNTIME_SUPPORT_GOLDEN_H

#include <ctype.h>
#include <math.h>
#include <stdarg.h>

#include "headroom.h"
#include "test.h"

#define GOLDEN_PARAMETERS 8
#define GOLDEN_TENSORS 12 /* inputs of a case; outputs and gradients of a case */
#define GOLDEN_WORD 64

struct golden_tensor {
	hr_dtype dtype;
	int rank;
	int64_t dims[HR_SHAPE_MAX_RANK], count;
	double *values;
	double *scales; /* of the expected values: errors are measured relative to it */
	int input;      /* of a gradient: the input it is with respect to */
};

struct golden_case {
	char op[GOLDEN_WORD];
	double parameters[GOLDEN_PARAMETERS];
	int parameter_count, in_count, out_count, grad_count;
	struct golden_tensor in[GOLDEN_TENSORS], out[GOLDEN_TENSORS], grad[GOLDEN_TENSORS], weights;
	int line;
};

struct golden_file {
	char path[256];
	FILE *stream;
	int line, cases;
	char word[GOLDEN_WORD]; /* the next word, not yet used; "" at the end of the file */
};

__attribute__((format(printf, 2, 3), noreturn)) static void golden_bad(const struct golden_file *file, const char *format, ...)
{
	char why[256], text[640];
	va_list arguments;
	va_start(arguments, format);
	vsnprintf(why, sizeof why, format, arguments);
	va_end(arguments);
	snprintf(text, sizeof text, "%s:%d: %s (tools/golden.py writes this file; tests run from the root of the repository)", file->path,
	         file->line, why);
	hr_test_fail(__FILE__, __LINE__, text);
}

/* ---- words ---- */

static int golden_letter(struct golden_file *file)
{
	int c = fgetc(file->stream);
	if (c == '\n') file->line++;
	return c;
}

static void golden_next(struct golden_file *file)
{
	size_t length = 0;
	int c = golden_letter(file);
	while (c == '#' || (c != EOF && isspace(c))) {
		if (c == '#') while (c != '\n' && c != EOF) c = golden_letter(file);
		else c = golden_letter(file);
	}
	for (; c != EOF && !isspace(c); c = fgetc(file->stream)) {
		if (length + 1 == sizeof file->word) golden_bad(file, "a word is longer than %d letters", GOLDEN_WORD - 1);
		file->word[length++] = (char)c;
	}
	ungetc(c, file->stream);
	file->word[length] = 0;
}

static bool golden_is(const struct golden_file *file, const char *word)
{
	return strcmp(file->word, word) == 0;
}

/* Parses a number at [at]; *behind gets its end. */
static double golden_number(struct golden_file *file, const char *at, char **behind)
{
	double number = strtod(at, behind);
	if (!file->word[0]) golden_bad(file, "the file ends in the middle of a case");
	if (*behind == at || !isfinite(number)) golden_bad(file, "\"%s\" is no number", file->word);
	return number;
}

/* NUMBER or NUMBER~SCALE; without SCALE, the scale is the number's magnitude. */
static void golden_pair(struct golden_file *file, double *number, double *scale)
{
	char *behind;
	*number = golden_number(file, file->word, &behind);
	*scale = fabs(*number);
	if (*behind == '~') *scale = golden_number(file, behind + 1, &behind);
	if (*behind || *scale < 0) golden_bad(file, "\"%s\" is no number", file->word);
	golden_next(file);
}

/* ---- tensors ---- */

static void golden_dims(struct golden_file *file, struct golden_tensor *tensor)
{
	const char *at = file->word;
	tensor->rank = 0;
	tensor->count = 1;
	if (*at++ != '[') golden_bad(file, "expected a shape, not \"%s\"", file->word);
	while (*at && *at != ']') {
		char *behind;
		long long dim = strtoll(at, &behind, 10);
		if (behind == at || dim < 0 || dim > 1000000 || tensor->rank == HR_SHAPE_MAX_RANK || (*behind != ',' && *behind != ']'))
			golden_bad(file, "\"%s\" is no shape", file->word);
		tensor->dims[tensor->rank++] = dim;
		tensor->count *= dim;
		at = behind + (*behind == ',');
	}
	if (strcmp(at, "]") != 0 || tensor->count > 1000000) golden_bad(file, "\"%s\" is no shape", file->word);
	golden_next(file);
}

static void golden_tensor(struct golden_file *file, struct golden_tensor *tensor)
{
	golden_dims(file, tensor);
	if (!tensor->dtype) tensor->dtype = HR_DTYPE_FLOAT32;
	tensor->values = calloc((size_t)tensor->count + 1, sizeof(double));
	tensor->scales = calloc((size_t)tensor->count + 1, sizeof(double));
	if (!tensor->values || !tensor->scales) golden_bad(file, "no memory for %lld numbers", (long long)tensor->count);
	for (int64_t i = 0; i < tensor->count; i++) golden_pair(file, &tensor->values[i], &tensor->scales[i]);
}

static void golden_drop(struct golden_tensor *tensor)
{
	free(tensor->values);
	free(tensor->scales);
}

static hr_dtype golden_dtype(struct golden_file *file)
{
	hr_dtype dtype = HR_DTYPE_FLOAT32;
	if (golden_is(file, "int32")) dtype = HR_DTYPE_INT32;
	else if (golden_is(file, "int64")) dtype = HR_DTYPE_INT64;
	else if (!golden_is(file, "float32")) golden_bad(file, "\"%s\" is no dtype", file->word);
	golden_next(file);
	return dtype;
}

/* ---- cases ---- */

static struct golden_tensor *golden_room(struct golden_file *file, struct golden_tensor *tensors, int *count)
{
	if (*count == GOLDEN_TENSORS) golden_bad(file, "a case has more than %d tensors of a kind", GOLDEN_TENSORS);
	return &tensors[(*count)++];
}

static void golden_block(struct golden_file *file, struct golden_case *of)
{
	struct golden_tensor *tensor = &of->weights;
	char kind = file->word[0];
	bool known = golden_is(file, "in") || golden_is(file, "out") || golden_is(file, "grad") || golden_is(file, "weights");
	if (!known) golden_bad(file, "expected in, weights, out or grad, not \"%s\"", file->word);
	golden_next(file);
	if (kind == 'w' && tensor->values) golden_bad(file, "a case has weights twice");
	if (kind == 'o') tensor = golden_room(file, of->out, &of->out_count);
	if (kind == 'i') tensor = golden_room(file, of->in, &of->in_count), tensor->dtype = golden_dtype(file);
	if (kind == 'g') {
		double input, scale;
		golden_pair(file, &input, &scale);
		tensor = golden_room(file, of->grad, &of->grad_count);
		tensor->input = (int)input;
		if (tensor->input < 0 || tensor->input >= of->in_count) golden_bad(file, "there is no input %d", tensor->input);
	}
	golden_tensor(file, tensor);
}

static void golden_open(struct golden_file *file, const char *name)
{
	memset(file, 0, sizeof *file);
	file->line = 1;
	snprintf(file->path, sizeof file->path, "tests/runtime/golden/%s.txt", name);
	file->stream = fopen(file->path, "r");
	if (!file->stream) golden_bad(file, "cannot be opened: %s", strerror(errno));
	golden_next(file);
}

/* Reads the next case; false at the end, after checking that all cases were there. */
static bool golden_read(struct golden_file *file, struct golden_case *out)
{
	double cases, scale;
	memset(out, 0, sizeof *out);
	out->line = file->line;
	if (golden_is(file, "case")) {
		golden_next(file);
		snprintf(out->op, sizeof out->op, "%s", file->word);
		golden_next(file);
		while (file->word[0] && !isalpha((unsigned char)file->word[0])) {
			if (out->parameter_count == GOLDEN_PARAMETERS) golden_bad(file, "more than %d parameters", GOLDEN_PARAMETERS);
			golden_pair(file, &out->parameters[out->parameter_count++], &scale);
		}
		do golden_block(file, out);
		while (!golden_is(file, "case") && !golden_is(file, "end"));
		file->cases++;
		return true;
	}
	if (!golden_is(file, "end")) golden_bad(file, "expected case or end, not \"%s\"", file->word);
	golden_next(file);
	golden_pair(file, &cases, &scale);
	if (cases != file->cases || file->cases == 0) golden_bad(file, "%d cases were read, of %g", file->cases, cases);
	if (file->word[0]) golden_bad(file, "\"%s\" is behind the end", file->word);
	fclose(file->stream);
	return false;
}

static void golden_free(struct golden_case *of)
{
	for (int i = 0; i < of->in_count; i++) golden_drop(&of->in[i]);
	for (int i = 0; i < of->out_count; i++) golden_drop(&of->out[i]);
	for (int i = 0; i < of->grad_count; i++) golden_drop(&of->grad[i]);
	golden_drop(&of->weights);
}

#endif
