/* analysis_load.c - loads libheadroom_analysis.so when it is first needed. Compiled into the shared library only (tensorboard.h). */
#include <string.h>

#include "core/base/atomic.h"
#include "core/base/hooks.h"
#include "core/base/status.h"
#include "core/os/library.h"
#include "core/record/tensorboard.h"

hr_status hr__analysis_load(void)
{
	char why[256];
	hr_status (*register_analysis)(void);
	hr__library *library = hr__library_open(HR__ANALYSIS_LIBRARY, why, sizeof why);
	if (!library) return hr__fail(HR_UNSUPPORTED, "a log for TensorBoard needs " HR__ANALYSIS_LIBRARY ": %s", why);
	/* Data and function pointers are the same thing to the loader, but not to C. */
	void *symbol = hr__library_symbol(library, "hr_analysis_register");
	memcpy(&register_analysis, &symbol, sizeof symbol);
	if (!register_analysis) return hr__fail(HR_UNSUPPORTED, HR__ANALYSIS_LIBRARY " has no hr_analysis_register: it is of another version");
	return register_analysis();
}
