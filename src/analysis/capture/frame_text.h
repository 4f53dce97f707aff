/* frame_text.h - a frame of a call stack as text. */
#ifndef HR_CAPTURE_FRAME_TEXT_H
#define HR_CAPTURE_FRAME_TEXT_H

#include "headroom_record.h"

#define HR__FRAME_TEXT_BYTES 2200 /* two names, a number and what joins them */

/* "function (file:line)", "function (module+0x1234)", "file:line" or "module+0x1234", as far as known; the module without its
 * directory. Returns [out]. */
const char *hr__frame_text(const hr_frame *frame, char out[HR__FRAME_TEXT_BYTES]);

#endif
