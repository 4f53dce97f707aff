/* status.c - statuses, their names, and each thread's last message.
 *
 * A thread gets memory for messages at its first failure, and keeps it. Thread-local storage of the initial-exec model would need no
 * memory, but a program that loads the library late has only about 1.6 KiB of that for all its libraries. Without memory the text of the status stands for the message.
 * A message is built in a local buffer and then copied, so it may quote the previous message. */
#include "core/base/status.h"

#include <stdio.h>
#include <string.h>

#include "core/base/assert.h"
#include "core/base/atomic.h"
#include "core/base/text/text.h"

#define MESSAGE_BYTES 512

static _Thread_local char *message __attribute__((tls_model("initial-exec"))); /* MESSAGE_BYTES; NULL: no failure yet, or no memory for it */
static _Thread_local hr_status last; /* the status that belongs to the message */

/* Before core/os has started, and in a program that is linked without it: for one thread. */
static void *first_memory(size_t bytes)
{
	static char memory[MESSAGE_BYTES];
	static hr__atomic_u32 taken;
	HR_ASSERT(bytes == sizeof memory);
	(void)bytes;
	return hr__fetch_or_acq_rel(&taken, 1) ? NULL : memory;
}

void *(*hr__message_memory)(size_t bytes) = first_memory;

#define TEXT_OF(x) #x
#define VERSION_TEXT(major, minor, patch) TEXT_OF(major) "." TEXT_OF(minor) "." TEXT_OF(patch)

const char *hr_version(void)
{
	return VERSION_TEXT(HR_VERSION_MAJOR, HR_VERSION_MINOR, HR_VERSION_PATCH);
}

const char *hr_status_name(hr_status status)
{
	switch (status) {
#define STATUS_NAME(name, number, text) \
	case HR_##name: return "HR_" #name;
		HR_STATUS_TABLE(STATUS_NAME)
#undef STATUS_NAME
	}
	return "HR_?";
}

const char *hr_status_text(hr_status status)
{
	switch (status) {
#define STATUS_TEXT(name, number, text) \
	case HR_##name: return text;
		HR_STATUS_TABLE(STATUS_TEXT)
#undef STATUS_TEXT
	}
	return "not a status";
}

hr_status hr_last_status(void)
{
	return last;
}

const char *hr_last_message(void)
{
	if (message) return message;
	return last == HR_OK ? "" : hr_status_text(last);
}

/* [text] is shorter than MESSAGE_BYTES. */
static void store(hr_status status, const char *text, size_t length)
{
	HR_ASSERT(length < MESSAGE_BYTES && text[length] == 0);
	last = status;
	if (!message && length > 0) message = hr__message_memory(MESSAGE_BYTES);
	if (message) memcpy(message, text, length + 1);
}

void hr__last_clear(void)
{
	store(HR_OK, "", 0);
}

void hr__message_forget(void)
{
	message = NULL;
}

hr__last hr__last_get(void)
{
	hr__last found = { .status = last };
	_Static_assert(sizeof found.message == MESSAGE_BYTES, "a message fits");
	const char *text = hr_last_message();
	memcpy(found.message, text, strlen(text) + 1);
	return found;
}

void hr__last_set(const hr__last *to)
{
	store(to->status, to->message, strnlen(to->message, MESSAGE_BYTES - 1));
}

/* Formats into [out] (MESSAGE_BYTES long) and returns the length; a long text is cut at a character boundary. Messages contain names of
 * the program and of files, and are printed. */
static size_t format_message(char *out, const char *format, va_list arguments)
{
	char text[MESSAGE_BYTES];
	int wanted = vsnprintf(text, sizeof text, format, arguments);
	if (wanted < 0) {
		/* vsnprintf fails only on an encoding error of a wide string; the format itself is still informative. */
		wanted = snprintf(text, sizeof text, "%s", format);
	}
	size_t length = wanted < 0 ? 0 : (size_t)wanted;
	return hr__text_escape(text, length < sizeof text ? length : hr__utf8_trim(text, sizeof text - 1), out, MESSAGE_BYTES);
}

/* Appends as much of [text] as fits to the [length] bytes in [out]; returns the new length. */
static size_t append(char *out, size_t length, const char *text)
{
	size_t room = MESSAGE_BYTES - 1 - length;
	size_t wanted = strlen(text);
	size_t taken = wanted <= room ? wanted : hr__utf8_trim(text, room);
	memcpy(out + length, text, taken);
	out[length + taken] = 0;
	return length + taken;
}

hr_status hr__fail(hr_status status, const char *format, ...)
{
	HR_ASSERT(status != HR_OK);
	char text[MESSAGE_BYTES];
	va_list arguments;
	va_start(arguments, format);
	size_t length = format_message(text, format, arguments);
	va_end(arguments);
	store(status, text, length);
	return status;
}

hr_status hr__fail_in(hr_status status, const char *format, ...)
{
	HR_ASSERT(status != HR_OK);
	char text[MESSAGE_BYTES];
	va_list arguments;
	va_start(arguments, format);
	size_t length = format_message(text, format, arguments);
	va_end(arguments);
	if (hr_last_message()[0] != 0) {
		length = append(text, length, ": ");
		length = append(text, length, hr_last_message());
	}
	store(status, text, length);
	return status;
}
