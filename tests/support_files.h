/* support_files.h - files of a test: in a folder of its own, which is removed when the test's process ends. */
#ifndef HR_TESTS_SUPPORT_FILES_H
#define HR_TESTS_SUPPORT_FILES_H

#include <sys/stat.h>

#include "test.h"

static struct {
	char path[128];
	pid_t owner; /* processes that the test forks do not remove it */
} own_folder;

HR_TEST_UNUSED static void remove_own_folder(void)
{
	char command[160];
	snprintf(command, sizeof command, "rm -rf '%s'", own_folder.path);
	if (own_folder.owner == getpid() && system(command) != 0) puts("# the test's folder was not removed");
}

/* The folder, made by the first call. */
HR_TEST_UNUSED static const char *folder_of_test(void)
{
	const char *temporary = getenv("TMPDIR");
	if (own_folder.path[0]) return own_folder.path;
	snprintf(own_folder.path, sizeof own_folder.path, "%s/hr_test_XXXXXX", temporary ? temporary : "/tmp");
	CHECK(mkdtemp(own_folder.path) != NULL);
	own_folder.owner = getpid();
	atexit(remove_own_folder);
	return own_folder.path;
}

/* The path of [name] in the folder; valid until the eighth call after it. */
HR_TEST_UNUSED static const char *in_folder(const char *name)
{
	static char paths[8][512];
	static unsigned next;
	char *path = paths[next++ % 8];
	snprintf(path, sizeof paths[0], "%s/%s", folder_of_test(), name);
	return path;
}

HR_TEST_UNUSED static bool exists(const char *path)
{
	struct stat facts;
	return lstat(path, &facts) == 0;
}

/* The contents of a file, for the caller to free, with a 0 after them; NULL [size] = not wanted. */
HR_TEST_UNUSED static void *load(const char *path, size_t *size)
{
	struct stat facts;
	FILE *file = fopen(path, "rb");
	CHECK(file != NULL && fstat(fileno(file), &facts) == 0);
	size_t bytes = (size_t)facts.st_size;
	char *contents = calloc(1, bytes + 1);
	CHECK(contents != NULL && fread(contents, 1, bytes, file) == bytes);
	fclose(file);
	if (size) *size = bytes;
	return contents;
}

#endif
