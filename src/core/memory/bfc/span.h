/* span.h - blocks of whole pages at a stable address, with or without memory. Without locks; only one thread at a time may use a given
 * span. */
#ifndef HR_MEMORY_SPAN_H
#define HR_MEMORY_SPAN_H

#include "core/memory/allocator.h"

typedef struct hr__span hr__span;

/* Allocates addresses and memory for a request, which is counted and refused like any other. */
hr_status hr__span_take(hr__allocator *allocator, const hr_request *request, hr__span **out);
/* Unmaps and releases the memory, keeps the addresses; not counted as a free. The memory must be idle, except for streams named by
 * hr_allocation_record_stream, which are waited for. On failure nothing has changed. */
hr_status hr__span_vacate(hr__span *span);
/* Maps memory at the same addresses again; not counted as a request. [clear] (may be NULL) is called once the pages are available,
 * just before they are mapped; if it fails, so does this call. */
hr_status hr__span_occupy(hr__span *span, const hr_request *request, bool inactive, hr_status (*clear)(void *context), void *context);
/* Releases memory and addresses; counted as a free. Idle as for hr__span_vacate. On failure nothing has changed. */
hr_status hr__span_give(hr__span *span);
/* Abandons a span whose memory the device refused to release. The memory stays with the allocator until that is closed. */
void hr__span_abandon(hr__span *span);

bool hr__span_has_memory(const hr__span *span);
uint64_t hr__span_address(const hr__span *span);
uint64_t hr__span_bytes(const hr__span *span);

#endif
