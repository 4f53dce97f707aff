/* pickle_opcodes.c - see pickle_opcodes.h. */
#include "analysis/import/pickle/pickle_opcodes.h"

#include "core/base/status.h"

struct refused_opcode {
	unsigned char byte;
	enum { RUNS = 1, BUILDS_OTHER, OLD } why; /* RUNS: imports a name or calls something */
	const char *name;
};

static const struct refused_opcode refused[] = {
	{ 'c', RUNS, "GLOBAL" },
	{ 0x93, RUNS, "STACK_GLOBAL" },
	{ 'R', RUNS, "REDUCE" },
	{ 'b', RUNS, "BUILD" },
	{ 'i', RUNS, "INST" },
	{ 'o', RUNS, "OBJ" },
	{ 0x81, RUNS, "NEWOBJ" },
	{ 0x92, RUNS, "NEWOBJ_EX" },
	{ 0x82, RUNS, "EXT1" },
	{ 0x83, RUNS, "EXT2" },
	{ 0x84, RUNS, "EXT4" },
	{ 'P', RUNS, "PERSID" },
	{ 'Q', RUNS, "BINPERSID" },
	{ 0x8F, BUILDS_OTHER, "EMPTY_SET" },
	{ 0x90, BUILDS_OTHER, "ADDITEMS" },
	{ 0x91, BUILDS_OTHER, "FROZENSET" },
	{ 0x96, BUILDS_OTHER, "BYTEARRAY8" },
	{ 0x97, BUILDS_OTHER, "NEXT_BUFFER" },
	{ 0x98, BUILDS_OTHER, "READONLY_BUFFER" },
	{ '0', BUILDS_OTHER, "POP" },
	{ '1', BUILDS_OTHER, "POP_MARK" },
	{ '2', BUILDS_OTHER, "DUP" },
	{ 'I', OLD, "INT" },
	{ 'L', OLD, "LONG" },
	{ 'F', OLD, "FLOAT" },
	{ 'S', OLD, "STRING" },
	{ 'V', OLD, "UNICODE" },
	{ 'd', OLD, "DICT" },
	{ 'l', OLD, "LIST" },
	{ 'p', OLD, "PUT" },
	{ 'g', OLD, "GET" },
};

static hr_status refuse(const struct refused_opcode *opcode)
{
	switch (opcode->why) {
	case RUNS:
		return hr__fail(
			HR_UNSUPPORTED,
			"the opcode %s would run code from this file. Headroom never does, and a memory snapshot has no such opcode. "
			"Do not load the file in Python unless you trust its origin",
			opcode->name);
	case BUILDS_OTHER:
		return hr__fail(
			HR_UNSUPPORTED,
			"the opcode %s is not supported: expected dicts, lists, tuples, texts and numbers, as in a PyTorch snapshot",
			opcode->name);
	case OLD: break;
	}
	return hr__fail(HR_UNSUPPORTED, "the opcode %s of protocols 0 and 1 is not supported; save the data with protocol 2 or later",
	                opcode->name);
}

hr_status hr__pickle_opcode_refuse(unsigned char opcode)
{
	for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
		if (refused[i].byte == opcode) return refuse(&refused[i]);
	return hr__fail(HR_BAD_FORMAT, "the pickle is damaged: expected an opcode, found the byte 0x%02X", opcode);
}
