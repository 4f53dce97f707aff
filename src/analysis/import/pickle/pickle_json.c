/* pickle_json.c - see pickle_json.h. */
#include "analysis/import/pickle/pickle_json.h"

#ifdef HR_HAVE_JANSSON

#include <math.h>
#include <stdio.h>

#include "core/base/status.h"
#include "core/os/os.h"

static size_t converted_bytes(const hr__pickle_json *json)
{
	return ((size_t)hr__pickle_shared_count(json->pickle) + 1) * sizeof *json->converted;
}

hr_status hr__pickle_json_init(hr__pickle_json *json, const hr__pickle *pickle)
{
	void *block;
	json->pickle = pickle;
	int error = hr__os()->alloc(converted_bytes(json), &block);
	if (error) return hr__os_fail(error, "reading a pickle");
	json->converted = block;
	return HR_OK;
}

void hr__pickle_json_free(hr__pickle_json *json)
{
	for (uint32_t i = 1; i <= hr__pickle_shared_count(json->pickle); i++) json_decref(json->converted[i]);
	hr__os()->free(json->converted, converted_bytes(json));
}

/* A new reference, or NULL: no memory, or too many objects. */
static json_t *value_of(hr__pickle_json *json, uint32_t object);

static json_t *list_of(hr__pickle_json *json, uint32_t list)
{
	json_t *array = json_array();
	for (uint32_t item = hr__pickle_first(json->pickle, list); array && item; item = hr__pickle_next(json->pickle, item)) {
		if (json_array_append_new(array, value_of(json, hr__pickle_at(json->pickle, item))) == 0) continue;
		json_decref(array);
		array = NULL;
	}
	return array;
}

static const char *key_of(const hr__pickle *pickle, uint32_t key, char number[24])
{
	size_t length;
	switch (hr__pickle_kind_of(pickle, key)) {
	case HR__PICKLE_NONE: return "null";
	case HR__PICKLE_FALSE: return "false";
	case HR__PICKLE_TRUE: return "true";
	case HR__PICKLE_INTEGER: snprintf(number, 24, "%lld", (long long)hr__pickle_integer(pickle, key)); return number;
	case HR__PICKLE_UNSIGNED: snprintf(number, 24, "%llu", (unsigned long long)hr__pickle_unsigned(pickle, key)); return number;
	default: return hr__pickle_text(pickle, key, &length);
	}
}

static json_t *dict_of(hr__pickle_json *json, uint32_t dict)
{
	json_t *object = json_object();
	char number[24];
	for (uint32_t item = hr__pickle_first(json->pickle, dict); object && item; item = hr__pickle_next(json->pickle, item)) {
		const char *key = key_of(json->pickle, hr__pickle_at(json->pickle, item), number);
		item = hr__pickle_next(json->pickle, item);
		if (json_object_set_new_nocheck(object, key, value_of(json, hr__pickle_at(json->pickle, item))) == 0) continue;
		json_decref(object);
		object = NULL;
	}
	return object;
}

static json_t *text_of(const hr__pickle *pickle, uint32_t object)
{
	size_t length;
	const char *text = hr__pickle_text(pickle, object, &length);
	return json_stringn_nocheck(text, length);
}

static json_t *real_of(double value)
{
	return isfinite(value) ? json_real(value) : json_null();
}

static json_t *convert(hr__pickle_json *json, uint32_t object)
{
	switch (hr__pickle_kind_of(json->pickle, object)) {
	case HR__PICKLE_NONE: return json_null();
	case HR__PICKLE_FALSE: return json_false();
	case HR__PICKLE_TRUE: return json_true();
	case HR__PICKLE_INTEGER: return json_integer(hr__pickle_integer(json->pickle, object));
	case HR__PICKLE_UNSIGNED: return json_real((double)hr__pickle_unsigned(json->pickle, object));
	case HR__PICKLE_REAL: return real_of(hr__pickle_real(json->pickle, object));
	case HR__PICKLE_TEXT: return text_of(json->pickle, object);
	case HR__PICKLE_LIST: return list_of(json, object);
	case HR__PICKLE_DICT: return dict_of(json, object);
	}
	return NULL;
}

static json_t *value_of(hr__pickle_json *json, uint32_t object)
{
	uint32_t shared = hr__pickle_shared(json->pickle, object);
	if (shared && json->converted[shared]) return json_incref(json->converted[shared]);
	if (json->made >= HR__PICKLE_JSON_OBJECTS_MAX) return NULL;
	json->made++;
	json_t *value = convert(json, object);
	if (shared) json->converted[shared] = json_incref(value);
	return value;
}

hr_status hr__pickle_json_of(hr__pickle_json *json, uint32_t object, json_t **out)
{
	json->made = 0;
	*out = value_of(json, object);
	if (*out) return HR_OK;
	if (json->made < HR__PICKLE_JSON_OBJECTS_MAX) return hr__fail(HR_NO_HOST_MEMORY, "no memory for an object of a pickle");
	return hr__fail(HR_TOO_MANY, "an object of more than %u parts", HR__PICKLE_JSON_OBJECTS_MAX);
}

#endif
