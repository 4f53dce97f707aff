/* status.c - statuses, their names, and each thread's last message.
 *
 * The message is in thread-local storage of the initial-exec model, which exists from the start of the thread. So setting it needs
 * no memory and cannot fail, even when the error is that memory ran out. A message is built in a local buffer and then copied, so
 * it may quote the previous message. */
#include "core/base/status.h"

#include <stdio.h>
#include <string.h>

#include "core/base/assert.h"
#include "core/base/text/text.h"

#define MESSAGE_BYTES 512

static _Thread_local char message[MESSAGE_BYTES] __attribute__((tls_model("initial-exec")));
static _Thread_local hr_status last; /* the status that belongs to the message */

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
	return message;
}

void hr__last_clear(void)
{
	message[0] = 0;
	last = HR_OK;
}

hr__last hr__last_get(void)
{
	hr__last found = { .status = last };
	_Static_assert(sizeof found.message == MESSAGE_BYTES, "a message fits");
	memcpy(found.message, message, sizeof message);
	return found;
}

void hr__last_set(const hr__last *to)
{
	last = to->status;
	memcpy(message, to->message, sizeof message);
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
	memcpy(message, text, length + 1);
	return last = status;
}

hr_status hr__fail_in(hr_status status, const char *format, ...)
{
	HR_ASSERT(status != HR_OK);
	char text[MESSAGE_BYTES];
	va_list arguments;
	va_start(arguments, format);
	size_t length = format_message(text, format, arguments);
	va_end(arguments);
	if (message[0] != 0) {
		length = append(text, length, ": ");
		length = append(text, length, message);
	}
	memcpy(message, text, length + 1);
	return last = status;
}
