/* lms_notice.h - a line at the end of `headroom run --lms` when nothing in the program used Large Model Support. */
#ifndef HR_CLI_LMS_NOTICE_H
#define HR_CLI_LMS_NOTICE_H

#include <stdbool.h>

/* Starts a process that waits for the end of this one, and then prints the line if Large Model Support was not used. Call it right before exec.
 * [python]: the start-up hook of Python is set. False, with a message, if that is not possible; the program can run without it. */
bool hr__lms_notice_start(bool python);

/* No line: the program was not started. */
void hr__lms_notice_cancel(void);

#endif
