/* shut_down.h - the end of a part of a command that used the library. */
#ifndef HR_CLI_SHUT_DOWN_H
#define HR_CLI_SHUT_DOWN_H

#include "headroom.h"

/* hr_shutdown after a replay: blocks that the trace did not free are not an error, and an earlier message is kept. */
hr_status hr__shut_down(void);

#endif
