/* pickle_objects.h - the objects of a pickle, as pickle.c builds them. pickle.h has the functions that read them.
 *
 *     objects   [ 1: None | 2: False | 3: True | 4: 512 | 5: "addr" | 6: dict | ... ]
 *     cells                                                             '--> { object 5, next } --> { object 4, next 0 }
 *
 * Acyclic: an object is sealed when it becomes part of another one, and a sealed list or dict cannot be modified. So whatever is
 * added to a container is complete, and cannot come to contain that container later. Python writes a container's items before it
 * uses the container, unless the data has a cycle. */
#ifndef HR_ANALYSIS_PICKLE_OBJECTS_H
#define HR_ANALYSIS_PICKLE_OBJECTS_H

#include "analysis/import/pickle/pickle.h"
#include "analysis/reader/list.h"

#define HR__PICKLE_OBJECTS_MAX (1u << 30)

enum { HR__PICKLE_NONE_OBJECT = 1, HR__PICKLE_FALSE_OBJECT, HR__PICKLE_TRUE_OBJECT }; /* numbers of the objects that always exist */

typedef struct hr__pickle_object {
	uint8_t kind;
	uint8_t sealed;  /* part of another object, so complete */
	uint16_t height; /* 0 for scalars and empty containers */
	uint32_t shared; /* see hr__pickle_shared */
	union {
		int64_t integer;
		uint64_t magnitude; /* of UNSIGNED */
		double real;
		uint64_t text; /* position in [text] of the pickle: uint32_t length, bytes, 0 */
		struct {
			uint32_t first, last; /* cells; 0: none */
		};
	};
} hr__pickle_object;
_Static_assert(sizeof(hr__pickle_object) == 16, "pickle.h promises a bound on memory");

struct hr__pickle {
	hr__list objects; /* of hr__pickle_object; number 0 is not used */
	hr__list cells;   /* of struct pickle_cell; number 0 is not used */
	hr__list text;    /* of bytes */
	uint32_t root;
	uint32_t shared_count;
};

/* A pickle without a root. HR_NO_HOST_MEMORY. */
hr_status hr__pickle_create(hr__pickle **out);

static inline hr__pickle_object *hr__pickle_object_at(const hr__pickle *pickle, uint32_t object)
{
	HR_ASSERT(object > 0);
	return hr__list_at(&pickle->objects, object);
}

/* Adds an item to a list of objects, cells or their numbers. HR_TOO_MANY, HR_NO_HOST_MEMORY. */
hr_status hr__pickle_list_add(hr__list *list, const void *item);

/* Appends a part to a list or dict and seals the part. HR_UNSUPPORTED if the container is sealed, HR_TOO_MANY if it gets too deep,
 * HR_NO_HOST_MEMORY. */
hr_status hr__pickle_add_part(hr__pickle *pickle, uint32_t container, uint32_t part);

#endif
