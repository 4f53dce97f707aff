/* name.h - reading device names: a pure function over text, which knows nothing of the devices that exist.
 *
 *   name   = [ "/job:" job ] [ "/replica:" number ] [ "/task:" number ] device
 *   device = "/device:" part | "/" part | part        (the last only when nothing stands before it)
 *   part   = type [ ":" number ] | type ":*"
 *
 * type is a letter followed by letters, digits and "_"; upper and lower case are the same. job is the same, or "*"; so are the
 * numbers of replica and task. Numbers are decimal, at most 2^31 - 1; zeros may stand in front. */
#ifndef HR_DEVICE_NAME_H
#define HR_DEVICE_NAME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "headroom.h"

typedef struct hr__device_spec {
	char type[16];   /* upper case */
	uint32_t number; /* 0 when any_number */
	bool any_number; /* "GPU:*" or "GPU" */
	bool elsewhere;  /* names another job than localhost, or a replica or task other than 0 */
} hr__device_spec;

/* Reads [text], which must not be NULL. HR_BAD_DEVICE_NAME: the message quotes the text and says what a name looks like. */
hr_status hr__device_spec_parse(const char *text, hr__device_spec *out);

/* Writes [text] in quotes for a message: cut after 64 bytes with "...", control characters, quotes and what is not ASCII as \xNN.
 * Returns [out]. */
#define HR__QUOTE_CAPACITY 272
char *hr__device_quote(const char *text, char out[HR__QUOTE_CAPACITY]);

#endif
