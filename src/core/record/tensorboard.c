/* tensorboard.c - see tensorboard.h. */
#include "core/record/tensorboard.h"

#include "core/base/atomic.h"
#include "core/base/hooks.h"
#include "core/base/status.h"

typedef hr_status (*export_function)(const char *path, const char *directory, const char *session);

static export_function find_exporter(void)
{
	return hr__load_acquire(&hr__hooks_table.export_tensorboard);
}

hr_status hr__tensorboard_available(void)
{
	if (find_exporter()) return HR_OK;
	if (!hr__analysis_load)
		return hr__fail(HR_UNSUPPORTED, "a log for TensorBoard needs libheadroom_analysis: link it, and call hr_analysis_register() first");
	return hr__analysis_load();
}

hr_status hr__tensorboard_export(const char *path, const char *directory, const char *session)
{
	hr_status status = hr__tensorboard_available();
	return status ? status : find_exporter()(path, directory, session);
}
