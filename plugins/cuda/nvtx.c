/* nvtx.c - NVTX ranges as name scopes.
 *
 * A program that uses NVTX loads the library that NVTX_INJECTION64_PATH names and calls its InitializeInjectionNvtx2, which fills in tables of functions.
 * `headroom run` sets the variable to this library, unless a tool has set it. The interface is declared here: NVTX is headers that a program compiles in,
 * and these numbers and structs have not changed since version 2.
 *
 * Only ranges that a thread pushes and pops nest, so only they are scopes; those with a start and an end may overlap. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <wchar.h>

#include "driver_calls.h"
#include "headroom_oom.h"
#include "settings.h"

enum { TABLE_OF_CALLBACKS = 1 };
enum { MODULE_CORE = 1, MODULE_CORE2 = 5 };
enum { CORE_PUSH_EX = 8, CORE_PUSH_A = 9, CORE_PUSH_W = 10, CORE_POP = 11 };
enum { CORE2_PUSH_EX = 4, CORE2_POP = 5, CORE2_REGISTER_A = 10, CORE2_REGISTER_W = 11 };
enum { MESSAGE_ASCII = 1, MESSAGE_WIDE = 2, MESSAGE_REGISTERED = 3 };

typedef void (*nvtx_function)(void);

typedef struct nvtx_callbacks {
	size_t struct_size;
	int (*get_table)(int module, nvtx_function ***table, unsigned int *size);
} nvtx_callbacks;

typedef struct nvtx_attributes {
	uint16_t version, size;
	uint32_t category;
	int32_t color_type;
	uint32_t color;
	int32_t payload_type, reserved;
	uint64_t payload;
	int32_t message_type;
	union {
		const char *ascii;
		const wchar_t *wide;
		const void *registered; /* as register_ascii returned it: the text */
	} message;
} nvtx_attributes;

#define TEXT_BYTES 512

/* Ranges that the thread has pushed, and how many of them are scopes: the innermost of more than 64 are not. */
static __thread int pushed, entered;

static int push(const char *text)
{
	if (pushed == entered && hr_name_scope_push(text && text[0] ? text : "(range)") == HR_OK) entered++;
	return pushed++;
}

static int pop(void)
{
	if (!pushed) return -1;
	if (pushed-- == entered) {
		hr_name_scope_pop();
		entered--;
	}
	return pushed;
}

/* Characters outside of ASCII become "?". */
static const char *narrow(const wchar_t *wide, char out[TEXT_BYTES])
{
	size_t length = 0;
	for (; wide && wide[length] && length + 1 < TEXT_BYTES; length++) out[length] = wide[length] < 128 ? (char)wide[length] : '?';
	out[length] = 0;
	return out;
}

static int push_ex(const nvtx_attributes *attributes)
{
	char text[TEXT_BYTES];
	if (!attributes) return push(NULL);
	switch (attributes->message_type) {
	case MESSAGE_ASCII: return push(attributes->message.ascii);
	case MESSAGE_WIDE: return push(narrow(attributes->message.wide, text));
	case MESSAGE_REGISTERED: return push(attributes->message.registered);
	default: return push(NULL);
	}
}

static int push_wide(const wchar_t *wide)
{
	char text[TEXT_BYTES];
	return push(narrow(wide, text));
}

static int push_in_domain(void *domain, const nvtx_attributes *attributes)
{
	(void)domain;
	return push_ex(attributes);
}

static int pop_in_domain(void *domain)
{
	(void)domain;
	return pop();
}

/* The handle of a registered string is its interned text. */
static const void *register_ascii(void *domain, const char *text)
{
	(void)domain;
	return hr_name_text(hr_name_intern(text));
}

static const void *register_wide(void *domain, const wchar_t *wide)
{
	char text[TEXT_BYTES];
	return register_ascii(domain, narrow(wide, text));
}

#define FUNCTION(name) (nvtx_function)(uintptr_t)(name)

static void fill(const nvtx_callbacks *callbacks, int module, const nvtx_function *functions, unsigned int count)
{
	nvtx_function **table;
	unsigned int size;
	if (!callbacks->get_table(module, &table, &size)) return;
	for (unsigned int i = 0; i < count && i < size; i++)
		if (functions[i] && table[i]) *table[i] = functions[i];
}

HR__EXPORT int InitializeInjectionNvtx2(const void *(*get_export)(uint32_t table));
HR__EXPORT int InitializeInjectionNvtx2(const void *(*get_export)(uint32_t table))
{
	static const nvtx_function core[] = { [CORE_PUSH_EX] = FUNCTION(push_ex), [CORE_PUSH_A] = FUNCTION(push), [CORE_PUSH_W] = FUNCTION(push_wide),
		                                  [CORE_POP] = FUNCTION(pop) };
	static const nvtx_function core2[] = { [CORE2_PUSH_EX] = FUNCTION(push_in_domain), [CORE2_POP] = FUNCTION(pop_in_domain),
		                                   [CORE2_REGISTER_A] = FUNCTION(register_ascii), [CORE2_REGISTER_W] = FUNCTION(register_wide) };
	const nvtx_callbacks *callbacks = hr__settings_get()->on ? get_export(TABLE_OF_CALLBACKS) : NULL;
	if (!callbacks || callbacks->struct_size < sizeof *callbacks) return 0;
	fill(callbacks, MODULE_CORE, core, sizeof core / sizeof *core);
	fill(callbacks, MODULE_CORE2, core2, sizeof core2 / sizeof *core2);
	return 1;
}
