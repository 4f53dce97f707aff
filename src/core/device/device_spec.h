/* device_spec.h - parses device names: a pure function over text, independent of the devices that exist.
 *
 *   name   = [ "/job:" job ] [ "/replica:" number ] [ "/task:" number ] device
 *   device = "/device:" part | "/" part | part        (the last only at the start of a name)
 *   part   = type [ ":" number ] | type ":*"
 *
 * type is a letter followed by letters, digits and "_"; case is ignored. job has the same form, or is "*". The numbers of replica
 * and task may be "*". Numbers are decimal, at most 2^31 - 1; leading zeros are allowed. */
#ifndef HR_DEVICE_DEVICE_SPEC_H
#define HR_DEVICE_DEVICE_SPEC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "headroom.h"

typedef struct hr__device_spec {
	char type[16];   /* upper case */
	uint32_t number; /* 0 when any_number */
	bool any_number; /* "GPU:*" or "GPU" */
	bool elsewhere;  /* names a job other than localhost, or a replica or task other than 0 */
} hr__device_spec;

/* Parses [text], which must not be NULL. HR_BAD_DEVICE_NAME: the message quotes the text and shows the form of a name. */
hr_status hr__device_spec_parse(const char *text, hr__device_spec *out);

/* Quotes [text] for a message: cut after 64 bytes with "..."; control characters, quotes and bytes that are not ASCII become \xNN.
 * Returns [out]. */
#define HR__QUOTE_CAPACITY 272
char *hr__device_quote(const char *text, char out[HR__QUOTE_CAPACITY]);

#endif
