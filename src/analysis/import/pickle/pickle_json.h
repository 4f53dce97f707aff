/* pickle_json.h - objects of a pickle as JSON values, as if Python had read the pickle and written it with json.dump.
 *
 * Objects that the pickle refers to many times are converted once, and the JSON values refer to the same value. */
#ifndef HR_IMPORT_PICKLE_JSON_H
#define HR_IMPORT_PICKLE_JSON_H

#ifdef HR_HAVE_JANSSON

#include <jansson.h>

#include "analysis/import/pickle/pickle.h"

/* An empty dict has 1 byte in a pickle and 200 in jansson. */
#define HR__PICKLE_JSON_OBJECTS_MAX (1u << 20)

typedef struct hr__pickle_json {
	const hr__pickle *pickle;
	json_t **converted; /* by the number of a shared object, from 1; NULL: not yet */
	uint32_t made;      /* values, in the current call of hr__pickle_json_of */
} hr__pickle_json;

/* [pickle] must outlive [json], which is to be freed with hr__pickle_json_free. HR_NO_HOST_MEMORY, with nothing to free. */
hr_status hr__pickle_json_init(hr__pickle_json *json, const hr__pickle *pickle);
void hr__pickle_json_free(hr__pickle_json *json);

/* Converts an object; *out is a new reference. HR_TOO_MANY if that takes more than HR__PICKLE_JSON_OBJECTS_MAX values, not counting
 * those that were converted before; HR_NO_HOST_MEMORY.
 *
 * Integers above INT64_MAX become the nearest real numbers. Real numbers that JSON does not have (NaN, infinity) become null. Keys
 * that are numbers, booleans or None become their text. */
hr_status hr__pickle_json_of(hr__pickle_json *json, uint32_t object, json_t **out);

#endif

#endif
