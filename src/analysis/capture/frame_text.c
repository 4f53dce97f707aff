/* frame_text.c - see frame_text.h. */
#include "analysis/capture/frame_text.h"

#include <stdio.h>
#include <string.h>

static const char *base_name(const char *path)
{
	const char *slash = strrchr(path, '/');
	return slash && slash[1] ? slash + 1 : path;
}

const char *hr__frame_text(const hr_frame *frame, char out[HR__FRAME_TEXT_BYTES])
{
	const char *function = hr_name_text(frame->function), *module = base_name(hr_name_text(frame->module));
	char place[HR__FRAME_TEXT_BYTES / 2] = "";
	if (frame->file && frame->line) snprintf(place, sizeof place, "%s:%u", hr_name_text(frame->file), frame->line);
	else if (frame->file) snprintf(place, sizeof place, "%s", hr_name_text(frame->file));
	else if (frame->module) snprintf(place, sizeof place, "%s+0x%llx", module, (unsigned long long)frame->offset);
	if (frame->function && place[0]) snprintf(out, HR__FRAME_TEXT_BYTES, "%.1024s (%s)", function, place);
	else snprintf(out, HR__FRAME_TEXT_BYTES, "%s", frame->function ? function : place[0] ? place : "(other)");
	return out;
}
