/* pickle.h - reads Python pickles of plain data, such as torch.cuda.memory._dump_snapshot writes, without Python.
 *
 * A pickle is a program for a small stack machine, and Python's machine can be told to call any function. This one has only the
 * opcodes that build plain data: dict, list, tuple, str, bytes, int, float, bool and None, in protocols 2 to 5. Every other opcode
 * is refused by name, so reading a file never runs code.
 *
 * The file is not trusted:
 *
 *     memory       less than 100 bytes for each byte of the file, and some kilobytes; 4 for each byte of a snapshot
 *     lengths      bytes are stored as they arrive; a length alone allocates nothing
 *     references   an object that occurs many times is stored once, so a tree that doubles at every level stays small
 *     cycles       refused, so the result is a directed acyclic graph
 *     depth        at most HR__PICKLE_DEPTH_MAX, so that code which walks the result may recurse
 *
 * Tuples are read as lists, and bytes as text with one character for each byte. Halves of surrogate pairs, with which Python stores
 * file names that are not UTF-8, become U+FFFD; all text is then valid UTF-8. */
#ifndef HR_ANALYSIS_PICKLE_H
#define HR_ANALYSIS_PICKLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "headroom.h"

#define HR__PICKLE_FIRST_BYTE 0x80 /* of every pickle that can be read */
#define HR__PICKLE_DEPTH_MAX 64u
#define HR__PICKLE_KEY_BYTES_MAX 255u

/* A pickle in memory. Not modified once it is read, so several threads may use it. */
typedef struct hr__pickle hr__pickle;

/* Where the bytes come from. [more] provides the next bytes, valid until it is called again; *count is 0 at the end. */
typedef struct hr__pickle_input {
	hr_status (*more)(void *context, const char **bytes, size_t *count);
	void *context;
} hr__pickle_input;

/* Reads a whole pickle, to be freed with hr__pickle_free. On failure *offset is the position in the input that the message refers
 * to.
 *
 *     HR_BAD_FORMAT      not a pickle, or damaged, or something follows its end
 *     HR_TRUNCATED       the input ends too early
 *     HR_UNSUPPORTED     an opcode that would run code in Python, or builds something other than plain data; another protocol
 *     HR_TOO_MANY        a limit of this reader is exceeded: depth, size of a text, number of objects
 *     HR_NO_HOST_MEMORY
 *     what [more] returned, with its message */
hr_status hr__pickle_read(const hr__pickle_input *input, uint64_t *offset, hr__pickle **out);

/* NULL is allowed. */
void hr__pickle_free(hr__pickle *pickle);

typedef enum hr__pickle_kind {
	HR__PICKLE_NONE = 1,
	HR__PICKLE_FALSE,
	HR__PICKLE_TRUE,
	HR__PICKLE_INTEGER,
	HR__PICKLE_UNSIGNED, /* an integer above INT64_MAX */
	HR__PICKLE_REAL,
	HR__PICKLE_TEXT,
	HR__PICKLE_LIST,
	HR__PICKLE_DICT
} hr__pickle_kind;

/* Objects are numbered; 0 is none. */
uint32_t hr__pickle_root(const hr__pickle *pickle);
hr__pickle_kind hr__pickle_kind_of(const hr__pickle *pickle, uint32_t object);

/* The value of an object, which must be of that kind. Text is followed by a 0. */
int64_t hr__pickle_integer(const hr__pickle *pickle, uint32_t object);
uint64_t hr__pickle_unsigned(const hr__pickle *pickle, uint32_t object);
double hr__pickle_real(const hr__pickle *pickle, uint32_t object);
const char *hr__pickle_text(const hr__pickle *pickle, uint32_t object, size_t *length);

/* Goes through the items of a list, or the keys and values of a dict in turn. Keys are NONE, FALSE, TRUE, INTEGER, UNSIGNED or TEXT
 * of at most HR__PICKLE_KEY_BYTES_MAX bytes without NUL.
 *
 *     for (uint32_t item = hr__pickle_first(pickle, list); item; item = hr__pickle_next(pickle, item))
 *         use(hr__pickle_at(pickle, item)); */
uint32_t hr__pickle_first(const hr__pickle *pickle, uint32_t container);
uint32_t hr__pickle_next(const hr__pickle *pickle, uint32_t item);
uint32_t hr__pickle_at(const hr__pickle *pickle, uint32_t item);

/* The value of a text key in a dict, the last one if the key occurs twice; 0 if there is none or [dict] is not a dict. Linear. */
uint32_t hr__pickle_find(const hr__pickle *pickle, uint32_t dict, const char *key);

/* The number of a text, list or dict that several others may refer to, from 1 to hr__pickle_shared_count; 0 for other objects. Code
 * that converts objects keeps the results of these by number, or its work can be exponential. */
uint32_t hr__pickle_shared(const hr__pickle *pickle, uint32_t object);
uint32_t hr__pickle_shared_count(const hr__pickle *pickle);

#endif
