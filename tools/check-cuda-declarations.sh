#!/usr/bin/env bash
# Compares src/core/device/backends/cuda_driver.h and plugins/cuda/driver_calls.h with a real cuda.h, if one is found: sizes, offsets, numbers
# and the type of every call.
#   tools/check-cuda-declarations.sh [folder with cuda.h]
#
# Looks in the given folder, $CUDA_HOME/include, /usr/local/cuda*/include, /usr/include, and pip's packages (nvidia/cu13,
# nvidia/cuda_runtime). `pip install --target X nvidia-cuda-runtime` installs a cuda.h.
set -uo pipefail
cd "$(dirname "$0")/.."

candidates=("$@" "${CUDA_HOME:+$CUDA_HOME/include}" /usr/local/cuda/include /usr/local/cuda-*/include /usr/local/include /usr/include)
while read -r site; do
	candidates+=("$site"/nvidia/cu*/include "$site"/nvidia/cuda_runtime/include)
done < <(python3 -c 'import site, sys; print("\n".join(dict.fromkeys(site.getsitepackages() + [site.getusersitepackages()] + sys.path)))' 2>/dev/null)

# Keeps each distinct cuda.h once. It must define CUDA_VERSION: Linux has another header of that name.
found=() seen=
for folder in "${candidates[@]}"; do
	[ -n "$folder" ] && grep -qs '^#define CUDA_VERSION' "$folder/cuda.h" || continue
	real=$(realpath "$folder/cuda.h")
	case $seen in *"|$real|"*) continue ;; esac
	seen="$seen|$real|"
	found+=("$folder")
done
if [ ${#found[@]} -eq 0 ]; then
	echo "cuda declarations: skipped: no cuda.h found"
	exit 0
fi

# Our types are renamed while our header is included, so that both sets can coexist. The tables are expanded later, with CUDA's types.
types="CUresult CUdevice CUdeviceptr CUmemGenericAllocationHandle CUcontext CUstream CUevent CUhostFn CUdevice_attribute
	CUmemAllocationGranularity_flags CUmemLocation CUmemAllocationProp CUmemAccessDesc CUctx_st CUstream_st CUevent_st
	CUfunction CUmemoryPool CUpointer_attribute CUstreamCaptureStatus CUkernel CUmodule CUlibrary CUlaunchAttribute CUlaunchConfig
	CUlaunchAttribute_st CUkern_st CUmod_st CUlib_st CUfunc_st CUmemPoolHandle_st
	CUgraph CUgraphExec CUgraph_st CUgraphExec_st CUstreamCaptureMode
	CUgraphNode CUgraphNode_st CUgraphEdgeData CUgraphEdgeData_st CUipcMemHandle CUipcMemHandle_st CUmemPool_attribute
	CUdevice_P2PAttribute CUmemPoolProps"
program=$(mktemp --suffix=.c)
trap 'rm -f "$program"' EXIT
{
	for type in $types; do echo "#define $type our_$type"; done
	echo '#include "driver_calls.h"'
	for type in $types; do echo "#undef $type"; done
	cat <<'END'
#include <cuda.h>
#include <stddef.h>

#define SAME_SIZE(type) _Static_assert(sizeof(type) == sizeof(our_##type), "size of " #type);
#define SAME_FIELD(type, field)                                                                      \
	_Static_assert(offsetof(type, field) == offsetof(our_##type, field) &&                           \
	               sizeof(((type *)0)->field) == sizeof(((our_##type *)0)->field), #type "." #field);
SAME_SIZE(CUresult)
SAME_SIZE(CUdevice)
SAME_SIZE(CUdeviceptr)
SAME_SIZE(CUmemGenericAllocationHandle)
SAME_SIZE(CUcontext)
SAME_SIZE(CUstream)
SAME_SIZE(CUevent)
SAME_SIZE(CUhostFn)
SAME_SIZE(CUdevice_attribute)
SAME_SIZE(CUmemAllocationGranularity_flags)
SAME_SIZE(CUmemLocation)
SAME_FIELD(CUmemLocation, type)
SAME_FIELD(CUmemLocation, id)
SAME_SIZE(CUmemAllocationProp)
SAME_FIELD(CUmemAllocationProp, type)
SAME_FIELD(CUmemAllocationProp, requestedHandleTypes)
SAME_FIELD(CUmemAllocationProp, location)
SAME_FIELD(CUmemAllocationProp, win32HandleMetaData)
SAME_FIELD(CUmemAllocationProp, allocFlags.compressionType)
SAME_FIELD(CUmemAllocationProp, allocFlags.gpuDirectRDMACapable)
SAME_FIELD(CUmemAllocationProp, allocFlags.usage)
SAME_FIELD(CUmemAllocationProp, allocFlags.reserved)
SAME_SIZE(CUmemAccessDesc)
SAME_FIELD(CUmemAccessDesc, location)
SAME_FIELD(CUmemAccessDesc, flags)
_Static_assert(__builtin_types_compatible_p(CUhostFn, our_CUhostFn), "CUhostFn");

#define SAME_NUMBER(name, value) _Static_assert((int)name == (value), #name);
HR__CUDA_NUMBERS(SAME_NUMBER)

#define SAME_CALL(name, parameters) _Static_assert(__builtin_types_compatible_p(__typeof__(&name), CUresult(*) parameters), #name);
HR__CUDA_CALLS(SAME_CALL)
HR__CUDA_KERNEL_CALLS(SAME_CALL)
SAME_SIZE(CUgraph)
SAME_SIZE(CUgraphExec)
SAME_SIZE(CUstreamCaptureMode)

SAME_SIZE(CUfunction)
SAME_SIZE(CUmemoryPool)
SAME_SIZE(CUmemPoolProps)
SAME_FIELD(CUmemPoolProps, allocType)
SAME_FIELD(CUmemPoolProps, handleTypes)
SAME_FIELD(CUmemPoolProps, location)
SAME_FIELD(CUmemPoolProps, maxSize)
SAME_FIELD(CUmemPoolProps, usage)
SAME_SIZE(CUmemPool_attribute)
SAME_SIZE(CUdevice_P2PAttribute)
SAME_SIZE(CUpointer_attribute)
SAME_SIZE(CUlaunchConfig)
SAME_FIELD(CUlaunchConfig, gridDimX)
SAME_FIELD(CUlaunchConfig, hStream)
SAME_FIELD(CUlaunchConfig, attrs)
SAME_FIELD(CUlaunchConfig, numAttrs)
SAME_SIZE(CUstreamCaptureStatus)
HR__PROGRAM_NUMBERS(SAME_NUMBER)
HR__MADE_CALLS(SAME_CALL)

/* Calls that take an enum or an array of options are declared with int; both are passed alike. cuGetProcAddress without _v2 is in cudaTypedefs.h
 * alone, as are the types of the per-thread variants, which are those of the other ones. */
#undef cuGetProcAddress
#include <cudaTypedefs.h>
#define cuGetProcAddress ((CUresult(*)(const char *, void **, int, unsigned long long))(PFN_cuGetProcAddress_v11030)0)
#define cuGetProcAddress_v2 ((CUresult(*)(const char *, void **, int, unsigned long long, int *))(PFN_cuGetProcAddress_v12000)0)
#define SAME_ANSWERED(symbol, name, since, parameters) \
	_Static_assert(__builtin_types_compatible_p(__typeof__(&*symbol), CUresult(*) parameters), #symbol);
HR__ANSWERED_PLAIN(SAME_ANSWERED)
HR__ANSWERED_STREAM(SAME_ANSWERED)

/* The version since which a name has its signature. */
#define SAME_VERSION(symbol, name, since, parameters) \
	_Static_assert(sizeof(PFN_##name##_v##since) == sizeof(void *), #symbol);
HR__ANSWERED_PLAIN(SAME_VERSION)
HR__ANSWERED_STREAM(SAME_VERSION)
END
} >"$program"

rc=0
for folder in "${found[@]}"; do
	version=$(sed -n 's/^#define CUDA_VERSION \([0-9]*\)/\1/p' "$folder/cuda.h" | head -1)
	if "${CC:-cc}" -std=gnu11 -Wall -Wextra -Werror -fsyntax-only -Isrc -Iplugins/cuda -I"$folder" "$program"; then
		echo "cuda declarations: agree with $folder/cuda.h (CUDA $((version / 1000)).$((version % 1000 / 10)))"
	else
		echo "check-cuda-declarations: cuda_driver.h or driver_calls.h differs from $folder/cuda.h" >&2
		rc=1
	fi
done
exit $rc
