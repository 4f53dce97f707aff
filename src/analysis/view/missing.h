/* missing.h - what a trace of another program cannot show, in words. */
#ifndef HR_VIEW_MISSING_H
#define HR_VIEW_MISSING_H

#include "analysis/capture/capture.h"

/* The line that a view needs if the file does not have what the view shows, such as steps; NULL if it has, and for Headroom's own
 * recordings, in which a program marks what it wants. */
const char *hr__view_missing(const hr__capture *capture, const char *view);

#endif
