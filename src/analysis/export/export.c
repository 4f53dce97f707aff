/* export.c - the list of formats. Each format is implemented in the file of its name. */
#include "analysis/export/export.h"

#include <string.h>

#include "core/base/assert.h"
#include "core/base/status.h"
#include "analysis/export/export_formats.h"

static const char *const formats[] = {
#define HR__EXPORT_ROW(id, name) [HR__EXPORT_##id] = name,
	HR__EXPORT_TABLE(HR__EXPORT_ROW)
#undef HR__EXPORT_ROW
};

const char *hr__export_name(enum hr__export_format format)
{
	return (unsigned)format < HR__EXPORT_FORMATS ? formats[format] : "?";
}

hr_status hr__export_find(const char *name, enum hr__export_format *out)
{
	for (int i = 0; i < HR__EXPORT_FORMATS; i++) {
		if (!name || strcmp(name, formats[i]) != 0) continue;
		*out = (enum hr__export_format)i;
		return HR_OK;
	}
	char list[128] = "";
	for (int i = 0; i < HR__EXPORT_FORMATS; i++) {
		if (i > 0) strcat(list, i + 1 < HR__EXPORT_FORMATS ? ", " : " or ");
		strcat(list, formats[i]);
	}
	return hr__fail(HR_INVALID_ARGUMENT, "no such format; expected %s", list);
}

hr_status hr__export_write(const hr__capture *capture, enum hr__export_format format, const char *path)
{
	HR_ASSERT(capture != NULL);
	if (!path || !path[0]) return hr__fail(HR_INVALID_ARGUMENT, "no path to export to");
	switch (format) {
	case HR__EXPORT_CHROME: return hr__export_chrome(capture, path);
	case HR__EXPORT_MEMORY_VIZ: return hr__export_memory_viz(capture, path);
	case HR__EXPORT_XPLANE: return hr__export_xplane(capture, path, NULL);
	case HR__EXPORT_RMM_CSV: return hr__export_rmm(capture, path);
	case HR__EXPORT_PPROF: return hr__export_pprof(capture, path);
	case HR__EXPORT_FORMATS: break;
	}
	return hr__fail(HR_INVALID_ARGUMENT, "%d is not an export format", (int)format);
}
