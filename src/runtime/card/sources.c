/* sources.c - embeds the programs of card/kernels/ into the library with the assembler's .incbin.
 *
 * HR__KERNELS_DIR is the directory of the files, HR__HOST_KERNELS_DIR that of the kernels of the host, of which programs use parts. The build defines
 * both, and rebuilds this file when one of the files changes. */
#include "runtime/card/card.h"

#define BEGIN_TEXT(name)                 \
	".pushsection .rodata\n"             \
	".hidden hr__source_" #name "\n"     \
	".globl hr__source_" #name "\n"      \
	"hr__source_" #name ":\n"
#define END_TEXT(name)                   \
	".hidden hr__source_" #name "_end\n" \
	".globl hr__source_" #name "_end\n"  \
	"hr__source_" #name "_end:\n"        \
	".byte 0\n"                          \
	".popsection\n"
#define TEXT_OF(name)                                                            \
	extern const char hr__source_##name[] __attribute__((visibility("hidden"))); \
	extern const char hr__source_##name##_end[] __attribute__((visibility("hidden")));

#define PART(folder, file) ".incbin \"" folder "/" file "\"\n"
__asm__(BEGIN_TEXT(COMMON) PART(HR__KERNELS_DIR, "prelude.cuh") PART(HR__KERNELS_DIR, "arguments.h") PART(HR__HOST_KERNELS_DIR, "philox.h")
        PART(HR__HOST_KERNELS_DIR, "bfloat16.h") PART(HR__KERNELS_DIR, "after.cuh") END_TEXT(COMMON));
TEXT_OF(COMMON)

#define PROGRAM(name, file)                                                                        \
	__asm__(BEGIN_TEXT(name) ".incbin \"" HR__KERNELS_DIR "/" file ".cuh\"\n" END_TEXT(name)); \
	TEXT_OF(name)
HR__PROGRAMS(PROGRAM)

hr__card_source hr__source_of(enum hr__card_program program)
{
	/* The addresses are subtracted as integers, because in C they belong to different arrays. */
#define LENGTH(name) (size_t)((uintptr_t)hr__source_##name##_end - (uintptr_t)hr__source_##name)
#define ROW(name, file) { file ".cuh", hr__source_##name, LENGTH(name) },
	const hr__card_source sources[] = { HR__PROGRAMS(ROW) { "common", hr__source_COMMON, LENGTH(COMMON) } };
	return sources[program];
}
