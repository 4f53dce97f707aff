/* tape.c - recording op calls for gradients. A tape keeps only the values that gradients read (grad_in_mask and grad_out_mask of
 * the op's row). Of a checkpoint block it keeps only the inputs. */
#include <string.h>

#include "core/base/atomic.h"
#include "core/base/status.h"
#include "core/os/os.h"
#include "runtime/graph/tape.h"

static _Thread_local struct hr__op_tape *tape;
static _Thread_local uint32_t block_now; /* current checkpoint block; 0 = none */
static _Thread_local hr__role role_now;
static hr__atomic_u32 last_block;

bool hr__tape_is_there(void)
{
	return tape != NULL;
}

bool hr__tape_is_on(void)
{
	return tape && tape->on;
}

hr_status hr_tape_begin(void)
{
	void *block;
	if (tape) return hr__fail(HR_IN_USE, "a tape is on already; hr_tape_end first");
	hr_status status = hr__runtime_begin();
	if (status) return status;
	int error = hr__os()->alloc(sizeof(struct hr__op_tape), &block);
	if (error) return hr__os_fail(error, "cannot get host memory for a tape");
	tape = block;
	tape->on = true;
	return HR_OK;
}

void hr__op_call_release(hr__op_call *call)
{
	for (uint32_t i = 0; i < HR__OP_INPUTS; i++) {
		hr_value_release(call->in_values[i]);
		call->in_values[i] = HR_NO_VALUE;
	}
	for (uint32_t i = 0; i < HR__OP_OUTPUTS; i++) {
		hr_value_release(call->out_values[i]);
		call->out_values[i] = HR_NO_VALUE;
	}
}

hr_status hr_tape_end(void)
{
	if (!tape) return hr__fail(HR_INVALID_ARGUMENT, "hr_tape_end without hr_tape_begin");
	for (uint32_t i = 0; i < tape->count; i++) hr__op_call_release(&tape->calls[i]);
	if (tape->calls) hr__os()->free(tape->calls, tape->capacity * sizeof *tape->calls);
	hr__os()->free(tape, sizeof *tape);
	tape = NULL;
	return HR_OK;
}

struct hr__op_tape *hr__tape_current(void)
{
	return tape;
}

uint32_t hr__block_current(void)
{
	return block_now;
}

uint32_t hr__block_set(uint32_t block)
{
	uint32_t before = block_now;
	block_now = block;
	return before;
}

hr__role hr__role_current(void)
{
	return role_now;
}

hr__role hr__role_set(hr__role role)
{
	hr__role before = role_now;
	role_now = role;
	return before;
}

hr_status hr_checkpoint_begin(void)
{
	if (block_now) return hr__fail(HR_IN_USE, "a checkpointed block is open already; call hr_checkpoint_end first");
	block_now = hr__fetch_add_relaxed(&last_block, 1) + 1;
	return HR_OK;
}

hr_status hr_checkpoint_end(void)
{
	if (!block_now) return hr__fail(HR_INVALID_ARGUMENT, "hr_checkpoint_end without hr_checkpoint_begin");
	block_now = 0;
	return HR_OK;
}

static bool grow(void)
{
	return tape->capacity <= 1u << 22 && !hr__os_grow(&tape->calls, &tape->capacity, sizeof *tape->calls, 64);
}

/* Whether [number] is an output of a call in the current checkpoint block. */
static bool is_from_block(uint64_t number)
{
	for (uint32_t n = tape->count; n-- > 0 && tape->calls[n].block == block_now;)
		for (uint32_t i = 0; i < hr__ops[tape->calls[n].kind].out_count; i++)
			if (tape->calls[n].outs[i] == number) return true;
	return false;
}

bool hr__tape_keeps(enum hr__op_kind kind, uint32_t input, uint64_t number)
{
	if (!hr__tape_is_on()) return false;
	return block_now ? !number || !is_from_block(number) : hr__ops[kind].grad_in_mask >> input & 1;
}

void hr__tape_note(enum hr__op_kind kind, const hr__attrs *attrs, const hr_value *ins, const hr__type *in_types, uint32_t in_count,
                   const hr_value *outs, const hr__type *out_types)
{
	const hr__op *op = &hr__ops[kind];
	if (tape->broken || (tape->count == tape->capacity && !grow())) {
		tape->broken = true;
		return;
	}
	hr__op_call *call = &tape->calls[tape->count];
	*call = (hr__op_call){ .kind = kind, .in_count = in_count, .block = block_now, .scope = hr_name_scope_current() };
	if (attrs) call->attrs = *attrs;
	call->attrs.data = NULL; /* owned by the caller */
	for (uint32_t i = 0; i < in_count; i++) {
		call->ins[i] = hr__value_serial(ins[i]);
		call->in_types[i] = in_types[i];
		if (!hr__tape_keeps(kind, i, call->ins[i])) continue;
		call->in_values[i] = hr_value_keep(hr__value_alias(ins[i]));
		tape->broken |= !call->in_values[i].id;
	}
	for (uint32_t i = 0; i < op->out_count; i++) {
		call->outs[i] = hr__value_serial(outs[i]);
		call->out_types[i] = out_types[i];
		bool keeps = block_now ? kind == HR__OP_CONSTANT : op->grad_out_mask >> i & 1; /* a constant's data are gone */
		if (!keeps) continue;
		call->out_values[i] = hr_value_keep(hr__value_alias(outs[i]));
		tape->broken |= !call->out_values[i].id;
	}
	tape->count++;
}
