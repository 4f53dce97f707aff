/* fuzz_device_name.c - device texts from users: names, sizes, settings of emulated devices.
 *
 * The first byte of an input selects the parser for the rest. Parsing gives a consistent result, or an error with a message; an
 * error leaves the result unchanged. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/status.h"
#include "core/base/text/text.h"
#include "core/device/internal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define MUST(condition) ((condition) ? (void)0 : (fprintf(stderr, "%s does not hold\n", #condition), abort()))

static void check_message(void)
{
	const char *message = hr_last_message();
	MUST(*message);
	for (; *message; message++) MUST((unsigned char)*message >= 0x20);
}

static void read_name(const char *text)
{
	hr__device_spec spec, again, untouched;
	memset(&untouched, 0x5A, sizeof untouched);
	memset(&spec, 0x5A, sizeof spec);
	hr_status status = hr__device_spec_parse(text, &spec);
	if (status != HR_OK) {
		MUST(status == HR_BAD_DEVICE_NAME);
		MUST(memcmp(&spec, &untouched, sizeof spec) == 0);
		check_message();
		return;
	}
	/* The result, written in its long form, parses to the same. */
	char name[128], number[16] = "*";
	if (!spec.any_number) snprintf(number, sizeof number, "%u", spec.number);
	MUST(spec.type[0] && memchr(spec.type, 0, sizeof spec.type) && spec.number <= INT32_MAX && !(spec.any_number && spec.number));
	snprintf(name, sizeof name, "/job:%s/replica:0/task:0/device:%s:%s", spec.elsewhere ? "elsewhere" : "localhost", spec.type,
	         number);
	MUST(hr__device_spec_parse(name, &again) == HR_OK);
	MUST(strcmp(spec.type, again.type) == 0 && spec.number == again.number && spec.any_number == again.any_number);
	MUST(spec.elsewhere == again.elsewhere);
}

static void find_name(const char *text)
{
	hr_device device = { 0 };
	hr_status status = hr_device_find(text, &device);
	MUST((status == HR_OK) == (device.id != 0));
	if (status == HR_OK) return;
	MUST(status == HR_BAD_DEVICE_NAME || status == HR_NO_SUCH_DEVICE);
	check_message();
}

static void read_size(const char *text)
{
	uint64_t bytes = 0x5A5A, again = 0;
	char written[32];
	if (hr__parse_size(text, &bytes) != HR_OK) {
		MUST(bytes == 0x5A5A);
		MUST(*hr_last_message());
		return;
	}
	snprintf(written, sizeof written, "%llu", (unsigned long long)bytes);
	MUST(hr__parse_size(written, &again) == HR_OK && again == bytes);
}

static void read_settings(const char *text)
{
	hr_emulated_options options, before;
	hr__emulated_defaults(&options);
	memcpy(&before, &options, sizeof before);
	if (hr__parse_emulated(text, &options) != HR_OK) {
		MUST(memcmp(&options, &before, sizeof options) == 0);
		check_message();
	} else if (hr__options_check_emulated(&options) != HR_OK) {
		check_message();
	} else {
		MUST(options.devices <= 8 && options.page_bytes >= 65536 && options.memory_bytes >= options.page_bytes);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	if (size == 0) return 0;
	char *text = malloc(size); /* exact size, so that a sanitizer detects reads past the end */
	if (!text) return 0;
	memcpy(text, data + 1, size - 1);
	text[size - 1] = 0;
	switch (data[0] % 4) {
	case 0: read_name(text); break;
	case 1: find_name(text); break;
	case 2: read_size(text); break;
	case 3: read_settings(text); break;
	}
	free(text);
	return 0;
}
