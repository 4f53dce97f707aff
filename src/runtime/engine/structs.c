/* structs.c - sizes of the public structs of the runtime. */
#include "runtime/engine/structs.h"

HR__RUNTIME_STRUCTS(HR__STRUCT_DEFINE)
HR__RUNTIME_FIXED_STRUCTS(HR__STRUCT_FIXED)
