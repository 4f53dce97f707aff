/* executable.c - reads as much of a program's ELF file as decides whether the dynamic loader preloads libraries into it.
 *
 *     statically linked             no dynamic loader: no PT_INTERP
 *     another class or machine      the loader refuses libraries of this command's
 *     another C library             musl's loader ends a program whose preloaded library needs the GNU C library
 *     setuid, setgid                the loader ignores LD_PRELOAD with a path
 *     libasan, libtsan, ... needed  they end the process if another library comes before them */
#define _GNU_SOURCE
#include "live/executable.h"

#include <elf.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define SCRIPTS_MAX 4 /* an interpreter that is a script, and so on: as the kernel */

#if defined(__x86_64__)
#define OWN_MACHINE EM_X86_64
#else
#define OWN_MACHINE EM_AARCH64
#endif

typedef struct program_file {
	const unsigned char *bytes;
	size_t size;
	mode_t mode;
} program_file;

/* ---- finding and reading ---- */

static bool is_program(const char *path)
{
	struct stat info;
	return stat(path, &info) == 0 && S_ISREG(info.st_mode) && access(path, X_OK) == 0;
}

static bool find(const char *name, char out[PATH_MAX])
{
	const char *path = getenv("PATH");
	if (strchr(name, '/')) return snprintf(out, PATH_MAX, "%s", name) < PATH_MAX && is_program(out);
	for (const char *at = path ? path : "/bin:/usr/bin"; *at;) {
		size_t length = strcspn(at, ":");
		if (snprintf(out, PATH_MAX, "%.*s/%s", length ? (int)length : 1, length ? at : ".", name) < PATH_MAX && is_program(out)) return true;
		at += length;
		at += *at == ':';
	}
	return false;
}

static bool map_file(const char *path, program_file *out)
{
	struct stat info;
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	bool known = fd >= 0 && fstat(fd, &info) == 0 && info.st_size > 0;
	void *bytes = known ? mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_PRIVATE, fd, 0) : MAP_FAILED;
	if (fd >= 0) close(fd);
	if (bytes == MAP_FAILED) return false;
	*out = (program_file){ bytes, (size_t)info.st_size, info.st_mode };
	return true;
}

/* [bytes] bytes of the file from [offset] on; NULL if it is too short. */
static const void *part(const program_file *file, uint64_t offset, uint64_t bytes)
{
	return offset <= file->size && bytes <= file->size - offset ? file->bytes + offset : NULL;
}

/* ---- ELF ---- */

static const Elf64_Phdr *segment(const program_file *file, const Elf64_Ehdr *header, uint32_t type)
{
	for (unsigned i = 0; i < header->e_phnum; i++) {
		const Elf64_Phdr *at = part(file, header->e_phoff + (uint64_t)i * header->e_phentsize, sizeof *at);
		if (at && at->p_type == type) return at;
	}
	return NULL;
}

/* The offset in the file of a virtual address; the file's size if there is none. */
static uint64_t offset_of(const program_file *file, const Elf64_Ehdr *header, uint64_t address)
{
	for (unsigned i = 0; i < header->e_phnum; i++) {
		const Elf64_Phdr *at = part(file, header->e_phoff + (uint64_t)i * header->e_phentsize, sizeof *at);
		if (at && at->p_type == PT_LOAD && address >= at->p_vaddr && address - at->p_vaddr < at->p_filesz)
			return at->p_offset + (address - at->p_vaddr);
	}
	return file->size;
}

static bool is_sanitizer(const char *library)
{
	static const char *const names[] = { "libasan.", "libtsan.", "libhwasan.", "liblsan.", "libclang_rt.asan", "libclang_rt.tsan" };
	for (size_t i = 0; i < sizeof names / sizeof *names; i++)
		if (strncmp(library, names[i], strlen(names[i])) == 0) return true;
	return false;
}

static bool needs_sanitizer(const program_file *file, const Elf64_Ehdr *header, const Elf64_Phdr *dynamic)
{
	uint64_t names = file->size, count = dynamic->p_filesz / sizeof(Elf64_Dyn);
	const Elf64_Dyn *entries = part(file, dynamic->p_offset, dynamic->p_filesz);
	for (uint64_t i = 0; entries && i < count; i++)
		if (entries[i].d_tag == DT_STRTAB) names = offset_of(file, header, entries[i].d_un.d_ptr);
	for (uint64_t i = 0; entries && i < count && entries[i].d_tag != DT_NULL; i++) {
		if (entries[i].d_tag != DT_NEEDED || entries[i].d_un.d_val >= file->size) continue;
		uint64_t at = names + entries[i].d_un.d_val;
		if (at < file->size && memchr(file->bytes + at, 0, file->size - at) && is_sanitizer((const char *)file->bytes + at)) return true;
	}
	return false;
}

/* By the name of the loader, .../ld-linux-x86-64.so.2. */
static bool is_gnu(const program_file *file, const Elf64_Phdr *loader)
{
	const char *name = part(file, loader->p_offset, loader->p_filesz);
	return name && memmem(name, loader->p_filesz, "/ld-linux", 9);
}

static const char *obstacle_of_elf(const program_file *file)
{
	const unsigned char *ident = part(file, 0, EI_NIDENT);
	const Elf64_Ehdr *header = part(file, 0, sizeof *header);
	if (!ident || memcmp(ident, ELFMAG, SELFMAG) != 0) return NULL;
	if (ident[EI_CLASS] == ELFCLASS32) return "is a 32-bit program";
	if (!header) return NULL;
	if (header->e_machine != OWN_MACHINE) return "is for another machine";
	const Elf64_Phdr *dynamic = segment(file, header, PT_DYNAMIC), *loader = segment(file, header, PT_INTERP);
	if (!dynamic || !loader) return "is statically linked";
	if (!is_gnu(file, loader)) return "does not use the GNU C library";
	return needs_sanitizer(file, header, dynamic) ? "was compiled with a sanitizer, which admits no preloaded library" : NULL;
}

/* ---- scripts ---- */

/* The interpreter in the first line, "#!/bin/sh -e". */
static bool interpreter_of(const program_file *file, char out[PATH_MAX])
{
	size_t end = 2, limit = file->size < PATH_MAX ? file->size : PATH_MAX;
	if (limit < 3 || memcmp(file->bytes, "#!", 2) != 0) return false;
	while (end < limit && (file->bytes[end] == ' ' || file->bytes[end] == '\t')) end++;
	size_t begin = end;
	while (end < limit && !strchr(" \t\n", file->bytes[end])) end++;
	if (end == limit || end == begin) return false;
	memcpy(out, file->bytes + begin, end - begin);
	out[end - begin] = 0;
	return true;
}

static const char *obstacle(const char *path, int scripts_left)
{
	program_file file;
	char interpreter[PATH_MAX];
	const char *found = NULL;
	if (!map_file(path, &file)) return NULL;
	if (interpreter_of(&file, interpreter)) found = scripts_left ? obstacle(interpreter, scripts_left - 1) : NULL;
	else if (file.mode & (S_ISUID | S_ISGID)) found = "runs with the rights of its owner (setuid)";
	else found = obstacle_of_elf(&file);
	munmap((void *)(uintptr_t)file.bytes, file.size);
	return found;
}

const char *hr__executable_obstacle(const char *program)
{
	char path[PATH_MAX];
	return find(program, path) ? obstacle(path, SCRIPTS_MAX) : NULL;
}
