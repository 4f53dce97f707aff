/* support_program.h - random programs of the runtime: ops with their own memory and in place, updates of variables, gradients. What the
 * program fetches is hashed, so that two runs can be compared. */
#ifndef HR_TESTS_SUPPORT_PROGRAM_H
#define HR_TESTS_SUPPORT_PROGRAM_H

#include "headroom_runtime.h"
#include "support_drop.h"
#include "test.h"

#define SIDE 64

static hr_value normal(uint64_t seed)
{
	return hr_random_normal(HR_DTYPE_FLOAT32, HR_DIMS(SIDE, SIDE), seed);
}

/* Contents that cannot be computed again. */
static hr_value data_of(float first)
{
	float data[SIDE * SIDE];
	for (int i = 0; i < SIDE * SIDE; i++) data[i] = first + (float)i / 64;
	return hr_constant(HR_DTYPE_FLOAT32, HR_DIMS(SIDE, SIDE), data);
}

/* Fetches a kept value. */
static void peek(hr_value value, float *out)
{
	CHECK_STATUS(HR_OK, hr_value_fetch(value, out, SIDE * SIDE * sizeof *out));
}

#define VALUES 8
#define HASHES_MAX 4096u

struct program {
	uint64_t state;
	hr_allocator drops; /* after each op everything that can be dropped is; id 0 = nothing */
	const char *scope;  /* of its variables */
	hr_value values[VALUES];
	hr_variable variables[2];
	uint64_t hashes[HASHES_MAX];
	uint32_t hash_count;
	uint64_t dropped;
};

static uint32_t pick(struct program *program, uint32_t below)
{
	return (uint32_t)(hr_rand(&program->state) % below);
}

static void note(struct program *program, hr_value value)
{
	float data[SIDE * SIDE];
	uint64_t hash = UINT64_C(14695981039346656037);
	peek(value, data);
	for (size_t i = 0; i < sizeof data; i++) hash = (hash ^ ((const uint8_t *)data)[i]) * UINT64_C(1099511628211);
	CHECK_LT(program->hash_count, HASHES_MAX);
	program->hashes[program->hash_count++] = hash;
}

static void drop_now(struct program *program)
{
	if (program->drops.id) program->dropped += drop_all(program->drops);
}

/* An operand: a kept value, a variable's contents, or a temporary that nothing else has. */
static hr_value operand(struct program *program)
{
	switch (pick(program, 8)) {
	case 0: return hr_variable_read(program->variables[pick(program, 2)]);
	case 1: return normal(pick(program, 1000));
	case 2: return hr_transpose(program->values[pick(program, VALUES)], (const int[]){ 1, 0 }, 2);
	default: return program->values[pick(program, VALUES)];
	}
}

/* An op whose results stay between -1 and 1, or near it. */
static hr_value one_op(struct program *program, hr_value a)
{
	const float ones[SIDE] = { 1, -1 };
	drop_now(program);
	switch (pick(program, 15)) {
	case 0: return hr_add(hr_scale(a, 0.5, 0), operand(program));
	case 1: return hr_tanh(hr_matmul(a, operand(program)));
	case 2: return hr_tanh(hr_add(hr_matmul_transposed(a, true, operand(program), false), operand(program)));
	case 3: return hr_relu(a);
	case 4: return hr_gelu(a);
	case 5: return hr_scale(a, -0.75, 0.125);
	case 6: return hr_softmax(a);
	case 7: return hr_sub(operand(program), a);
	case 8: return hr_maximum(a, operand(program));
	case 9: return hr_broadcast_to(hr_reduce_mean(a, (int)pick(program, 2), true), HR_DIMS(SIDE, SIDE));
	case 10: return hr_attend(a, operand(program), hr_tanh(operand(program)), 4, 0.25, pick(program, 2));
	case 11: return hr_dropout(a, 0.25, pick(program, 9), hr_full(HR_DTYPE_INT64, HR_SCALAR, pick(program, 99)), true);
	case 12: return hr_tanh(hr_batch_norm(a, hr_full(HR_DTYPE_FLOAT32, HR_DIMS(SIDE), 0.5), hr_full(HR_DTYPE_FLOAT32, HR_DIMS(SIDE), 0.25), 1e-3, NULL, NULL));
	case 13: return hr_cast(hr_cast(a, HR_DTYPE_BFLOAT16), HR_DTYPE_FLOAT32);
	default:
		return hr_layer_norm(a, hr_constant(HR_DTYPE_FLOAT32, HR_DIMS(SIDE), ones), hr_full(HR_DTYPE_FLOAT32, HR_DIMS(SIDE), 0.5), 1e-5);
	}
}

/* Up to four ops, of which the later ones may run in place. */
static void make_value(struct program *program)
{
	uint32_t at = pick(program, VALUES);
	hr_value made = operand(program);
	for (uint32_t i = pick(program, 4) + 1; i > 0; i--) made = one_op(program, made);
	CHECK(made.id);
	hr_value_release(program->values[at]);
	program->values[at] = hr_value_keep(made);
}

static void update(struct program *program)
{
	hr_variable variable = program->variables[pick(program, 2)];
	switch (pick(program, 3)) {
	case 0: hr_assign_add(variable, hr_scale(operand(program), 0.01, 0)); break;
	case 1: hr_assign_sub(variable, operand(program)); break;
	default: hr_assign(variable, hr_tanh(operand(program)));
	}
}

static void take_gradients(struct program *program)
{
	hr_value of[2] = { program->values[0], program->values[1] }, gradients[2];
	hr_tape_begin();
	hr_value y = hr_tanh(hr_matmul(of[0], of[1]));
	drop_now(program);
	y = hr_attend(y, of[1], y, 2, 0.125, true);
	drop_now(program);
	y = hr_layer_norm(hr_add(hr_gelu(y), of[0]), hr_full(HR_DTYPE_FLOAT32, HR_DIMS(SIDE), 1.5), hr_full(HR_DTYPE_FLOAT32, HR_DIMS(SIDE), 0.5), 1e-5);
	drop_now(program);
	hr_value loss = hr_reduce_mean(hr_mul(y, hr_softmax(hr_variable_read(program->variables[0]))), HR_ALL_AXES, false);
	drop_now(program);
	CHECK_STATUS(HR_OK, hr_gradients(loss, of, 2, gradients));
	hr_tape_end();
	for (int i = 0; i < 2; i++) {
		hr_value_release(program->values[2 + i]);
		program->values[2 + i] = hr_value_keep(hr_tanh(gradients[i]));
	}
}

/* Runs [ops] steps in the thread's session. */
static void run_program(struct program *program, uint64_t seed, uint32_t ops)
{
	program->state = seed;
	program->hash_count = 0;
	program->dropped = 0;
	for (int i = 0; i < VALUES; i++) program->values[i] = hr_value_keep(i % 2 ? data_of((float)-i) : normal(seed + (uint64_t)i));
	hr_variable_scope_push(program->scope, HR_REUSE_OR_MAKE);
	program->variables[0] = hr_get_variable("a", HR_DTYPE_FLOAT32, HR_DIMS(SIDE, SIDE), HR_NORMAL(0.5, 1));
	program->variables[1] = hr_get_variable("b", HR_DTYPE_FLOAT32, HR_DIMS(SIDE, SIDE), HR_ZEROS);
	hr_variable_scope_pop();
	for (uint32_t i = 0; i < ops; i++) {
		uint32_t kind = pick(program, 16);
		if (kind < 11) make_value(program);
		else if (kind < 13) update(program);
		else if (kind < 14) take_gradients(program);
		else note(program, program->values[pick(program, VALUES)]);
		drop_now(program);
	}
	for (int i = 0; i < VALUES; i++) {
		note(program, program->values[i]);
		hr_value_release(program->values[i]);
	}
	for (int i = 0; i < 2; i++) {
		hr_value contents = hr_value_keep(hr_variable_read(program->variables[i]));
		note(program, contents);
		hr_value_release(contents);
	}
}

#endif
