/* shut_down.c - see shut_down.h. */
#include "shut_down.h"

#include <stdio.h>

#include "core/base/status.h"

hr_status hr__shut_down(void)
{
	char message[512];
	hr_status before = hr_last_status();
	snprintf(message, sizeof message, "%s", hr_last_message());
	hr_status status = hr_shutdown();
	if (status != HR_LEAKED) return status;
	if (before) hr__fail(before, "%s", message);
	return HR_OK;
}
