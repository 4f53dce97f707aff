// after.cuh - what every program has after arguments.h.

// Stores the first error that a kernel of the session finds.
BOTH void fault(const hr__k_faults &faults, int code, int64_t wrong, int64_t choices)
{
	if (!faults.to || atomicCAS(&faults.to->found, 0, 1) != 0) return;
	hr__k_fault found = faults.with;
	found.found = 1;
	found.code = code;
	found.wrong = wrong;
	found.choices = choices;
	*faults.to = found;
}
