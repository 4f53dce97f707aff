/* hooks.h - the table of upward calls. A layer calls only layers below itself; every call in the other direction goes through this table.
 *
 * The table is defined by the highest layer of libheadroom (core/record/hooks.c), and is the only symbol that lower layers use from above.
 * The entries of `record` are always set, because a program is recorded by its environment without calling that layer. The others are NULL until
 * the layer that they belong to is first used. An entry that was set is not cleared, except `step`. */
#ifndef HR_BASE_HOOKS_H
#define HR_BASE_HOOKS_H

#include <stdbool.h>
#include <stdint.h>

#include "headroom.h"
#include "core/base/shared.h"

struct hr__lms_hooks;
struct hr__leaks;
struct hr__report_ranks;

typedef struct hr__hooks {
	/* core/record. begin: an allocator is about to be created; costs one load after the first time. end: hr_shutdown, before recordings and
	 * allocators are closed. forget: in the child after fork. No lock is held. */
	void (*record_begin)(void);
	hr_status (*record_end)(void);
	void (*record_forget)(void);
	/* For an out-of-memory report: what the other ranks of the job published (core/memory/oom/report.h). One call at a time. */
	void (*record_ranks)(struct hr__report_ranks *out);

	/* core/lms: what memory asks of the layer that has tensors (core/memory/allocator.h). */
	_Atomic(const struct hr__lms_hooks *) lms;

	/* Called by core/lms before the event of a step's begin and after the event of its end, with the id of the allocator and the number of the
	 * step, and no lock held. Steps of several allocators may overlap; those of one allocator do not. */
	_Atomic(void (*)(uint64_t allocator, uint64_t number, bool begins)) step;

	/* runtime: called by hr_shutdown before anything is closed. [forgets]: in the child after fork; resources are dropped, not released.
	 * [leaks] receives what the program had not released. */
	_Atomic(void (*)(bool forgets, struct hr__leaks *leaks)) runtime_end;

	/* analysis: writes the trace file [path] as session [session] to the TensorBoard log directory [directory]. */
	_Atomic(hr_status (*)(const char *path, const char *directory, const char *session)) export_tensorboard;
} hr__hooks;

HR__SHARED extern hr__hooks hr__hooks_table;

#endif
