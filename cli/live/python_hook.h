/* python_hook.h - `headroom run` and Python programs: a start-up hook installs the plug-in for PyTorch when they import torch. */
#ifndef HR_CLI_PYTHON_HOOK_H
#define HR_CLI_PYTHON_HOOK_H

#include <limits.h>
#include <stdbool.h>

/* Puts the folder of the hook in front of PYTHONPATH. False, with a message if [required], when the Python package was not found. */
bool hr__python_hook_set(bool required);

/* The folder of the hook, PACKAGE/_start; false when the Python package was not found. */
bool hr__python_hook_find(char out[PATH_MAX]);

#endif
