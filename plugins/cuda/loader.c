/* loader.c - dlsym and dlopen, in front of those of the dynamic loader.
 *
 * dlsym answers for the driver's memory calls (driver_calls.h) and leaves everything else to the loader. dlopen takes RTLD_DEEPBIND out, because a
 * library that is loaded with it would find the loader's dlsym instead of this one.
 *
 * Both end in a jump to the loader's function, not in a call: the loader takes the return address for that of the caller, whose library decides what
 * RTLD_NEXT means, which RUNPATH is searched and which namespace is meant. A compiler makes that jump only where it optimises, so it is written in
 * assembly.
 *
 *     dlsym(library, name)     decision = hr__loader_decide(library, name); if it is made, return it; jump to the loader's dlsym
 *     dlopen(file, flags)      hr__loader_prepare(); jump to the loader's dlopen with flags & hr__loader_flags
 *
 * The loader's functions are found with dlvsym, which this library does not replace, so the search cannot come back here. That gives the next dlsym
 * after this library's, so other preloaded libraries keep their place. */
#define _GNU_SOURCE
#include "loader.h"

#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "driver.h"
#include "settings.h"

typedef void *(*symbol_function)(void *library, const char *name);
typedef void *(*open_function)(const char *file, int flags);

/* What dlsym does: returns [value], or, if no decision is [made], goes on to the loader. Two registers. */
typedef struct loader_decision {
	void *value;
	uint64_t made;
} loader_decision;

/* Used by the assembly below. */
#define FOR_ASSEMBLY __attribute__((visibility("hidden"), used))
FOR_ASSEMBLY symbol_function hr__loader_dlsym;
FOR_ASSEMBLY open_function hr__loader_dlopen;
FOR_ASSEMBLY int hr__loader_flags; /* of dlopen, without RTLD_DEEPBIND unless Headroom is off */
FOR_ASSEMBLY void hr__loader_prepare(void);
FOR_ASSEMBLY loader_decision hr__loader_decide(void *library, const char *name);

/* Versions that the C library has given the functions: since 2.34, and the first ones of x86-64 and arm64. */
static const char *const versions[] = { "GLIBC_2.34", "GLIBC_2.2.5", "GLIBC_2.17" };

static void *next_versioned(const char *name)
{
	void *found = NULL;
	for (size_t i = 0; i < sizeof versions / sizeof *versions && !found; i++) found = dlvsym(RTLD_NEXT, name, versions[i]);
	return found;
}

/* Idempotent: threads that arrive together store the same values. */
void hr__loader_prepare(void)
{
	if (hr__loader_dlopen) return;
	void *symbol = next_versioned("dlsym"), *open = next_versioned("dlopen");
	if (!symbol || !open) hr__settings_die("the C library has no dlsym or dlopen of a known version; run the program without libheadroom_cuda.so in LD_PRELOAD");
	memcpy(&hr__loader_dlsym, &symbol, sizeof symbol);
	hr__loader_flags = hr__settings_get()->on ? ~RTLD_DEEPBIND : ~0;
	__atomic_thread_fence(__ATOMIC_RELEASE);
	memcpy(&hr__loader_dlopen, &open, sizeof open);
}

void *hr__loader_symbol(void *library, const char *name)
{
	hr__loader_prepare();
	return hr__loader_dlsym(library, name);
}

void *hr__loader_loaded(const char *name)
{
	hr__loader_prepare();
	return hr__loader_dlopen(name, RTLD_LAZY | RTLD_NOLOAD);
}

bool hr__loader_is_own(const void *address)
{
	Dl_info of, self;
	return dladdr(address, &of) && dladdr((const void *)(uintptr_t)hr__loader_prepare, &self) && of.dli_fbase == self.dli_fbase;
}

/* The function that answers for [name], if the loader's answer is the driver's function or this library's own. */
static loader_decision decide_for_driver(void *library, const char *name)
{
	const loader_decision none = { NULL, 0 };
	void *real, *found = hr__loader_dlsym(library, name);
	bool own = found && hr__loader_is_own(found);
	/* Without this library in front the loader would have looked further. */
	if (own) found = hr__loader_dlsym(RTLD_NEXT, name);
	if (!found) return own ? (loader_decision){ NULL, 1 } : none;
	void *answer = hr__settings_get()->on && hr__driver_find() ? hr__driver_answer(name, &real) : NULL;
	if (answer && found == real) return (loader_decision){ answer, 1 };
	return own ? (loader_decision){ found, 1 } : none;
}

loader_decision hr__loader_decide(void *library, const char *name)
{
	hr__loader_prepare();
	/* All other names, quickly. */
	if (!name || name[0] != 'c' || name[1] != 'u' || !hr__driver_is_answered(name)) return (loader_decision){ NULL, 0 };
	return decide_for_driver(library, name);
}

/* For libheadroom (src/core/os/library.c): the driver's functions as they are. */
HR__EXPORT void *headroom_cuda_driver_symbol(void *library, const char *name);
HR__EXPORT void *headroom_cuda_driver_symbol(void *library, const char *name)
{
	return hr__loader_symbol(library, name);
}

#if defined(__x86_64__)
__asm__(".text\n"
        ".globl dlsym\n.type dlsym, @function\n"
        "dlsym:\n"
        "	.cfi_startproc\n"
        "	endbr64\n"
        "	push %rdi\n	.cfi_adjust_cfa_offset 8\n"
        "	push %rsi\n	.cfi_adjust_cfa_offset 8\n"
        "	sub $8, %rsp\n	.cfi_adjust_cfa_offset 8\n"
        "	call hr__loader_decide\n"
        "	add $8, %rsp\n	.cfi_adjust_cfa_offset -8\n"
        "	pop %rsi\n	.cfi_adjust_cfa_offset -8\n"
        "	pop %rdi\n	.cfi_adjust_cfa_offset -8\n"
        "	test %rdx, %rdx\n"
        "	jnz 1f\n"
        "	jmp *hr__loader_dlsym(%rip)\n"
        "1:	ret\n"
        "	.cfi_endproc\n"
        ".size dlsym, . - dlsym\n"
        ".globl dlopen\n.type dlopen, @function\n"
        "dlopen:\n"
        "	.cfi_startproc\n"
        "	endbr64\n"
        "	push %rdi\n	.cfi_adjust_cfa_offset 8\n"
        "	push %rsi\n	.cfi_adjust_cfa_offset 8\n"
        "	sub $8, %rsp\n	.cfi_adjust_cfa_offset 8\n"
        "	call hr__loader_prepare\n"
        "	add $8, %rsp\n	.cfi_adjust_cfa_offset -8\n"
        "	pop %rsi\n	.cfi_adjust_cfa_offset -8\n"
        "	pop %rdi\n	.cfi_adjust_cfa_offset -8\n"
        "	and hr__loader_flags(%rip), %esi\n"
        "	jmp *hr__loader_dlopen(%rip)\n"
        "	.cfi_endproc\n"
        ".size dlopen, . - dlopen\n");
#elif defined(__aarch64__)
__asm__(".text\n"
        ".globl dlsym\n.type dlsym, %function\n"
        "dlsym:\n"
        "	.cfi_startproc\n"
        "	stp x29, x30, [sp, #-32]!\n	.cfi_adjust_cfa_offset 32\n	.cfi_offset x29, -32\n	.cfi_offset x30, -24\n"
        "	stp x0, x1, [sp, #16]\n"
        "	bl hr__loader_decide\n"
        "	mov x2, x0\n"
        "	mov x3, x1\n"
        "	ldp x0, x1, [sp, #16]\n"
        "	ldp x29, x30, [sp], #32\n	.cfi_adjust_cfa_offset -32\n	.cfi_restore x29\n	.cfi_restore x30\n"
        "	cbnz x3, 1f\n"
        "	adrp x16, hr__loader_dlsym\n"
        "	ldr x16, [x16, #:lo12:hr__loader_dlsym]\n"
        "	br x16\n"
        "1:	mov x0, x2\n"
        "	ret\n"
        "	.cfi_endproc\n"
        ".size dlsym, . - dlsym\n"
        ".globl dlopen\n.type dlopen, %function\n"
        "dlopen:\n"
        "	.cfi_startproc\n"
        "	stp x29, x30, [sp, #-32]!\n	.cfi_adjust_cfa_offset 32\n	.cfi_offset x29, -32\n	.cfi_offset x30, -24\n"
        "	stp x0, x1, [sp, #16]\n"
        "	bl hr__loader_prepare\n"
        "	ldp x0, x1, [sp, #16]\n"
        "	ldp x29, x30, [sp], #32\n	.cfi_adjust_cfa_offset -32\n	.cfi_restore x29\n	.cfi_restore x30\n"
        "	adrp x16, hr__loader_flags\n"
        "	ldr w16, [x16, #:lo12:hr__loader_flags]\n"
        "	and w1, w1, w16\n"
        "	adrp x16, hr__loader_dlopen\n"
        "	ldr x16, [x16, #:lo12:hr__loader_dlopen]\n"
        "	br x16\n"
        "	.cfi_endproc\n"
        ".size dlopen, . - dlopen\n");
#else
#error "Headroom runs on x86-64 and arm64"
#endif
