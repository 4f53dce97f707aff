/* register.c - makes the exporters known to libheadroom, which cannot call them itself. */
#include "analysis/export/export_formats.h"
#include "core/base/atomic.h"
#include "core/base/hooks.h"
#include "headroom_analysis.h"

static hr_status export_tensorboard(const char *path, const char *directory, const char *session)
{
	hr__capture *capture;
	hr_status status = hr__capture_open(path, NULL, NULL, &capture);
	if (status) return status;
	status = hr__export_xplane(capture, directory, session);
	hr__capture_close(capture);
	return status;
}

hr_status hr_analysis_register(void)
{
	hr__store_release(&hr__hooks_table.export_tensorboard, export_tensorboard);
	return HR_OK;
}
