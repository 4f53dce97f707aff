/* python_hook.h - `headroom run` and Python programs: a start-up hook installs the plug-in for PyTorch when they import torch. */
#ifndef HR_CLI_PYTHON_HOOK_H
#define HR_CLI_PYTHON_HOOK_H

#include <stdbool.h>

/* Puts the folder of the hook in front of PYTHONPATH. False, with a message if [required], when the Python package was not found. */
bool hr__python_hook_set(bool required);

#endif
