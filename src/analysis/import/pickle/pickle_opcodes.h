/* pickle_opcodes.h - the opcodes of the pickle format that pickle.c does not execute. */
#ifndef HR_ANALYSIS_PICKLE_OPCODES_H
#define HR_ANALYSIS_PICKLE_OPCODES_H

#include "headroom.h"

/* Sets the message for an opcode that is not one of plain data. Returns HR_UNSUPPORTED, or HR_BAD_FORMAT if no pickle has it. */
hr_status hr__pickle_opcode_refuse(unsigned char opcode);

#endif
