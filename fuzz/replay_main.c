/* replay_main.c - runs a fuzz target over files and folders of inputs, for builds without libFuzzer.
 *
 * This makes every corpus input a regression test under any compiler, and lets a crash be debugged:
 *
 *     build/fuzz/fuzz_arena fuzz/corpus/arena crash-1234 */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerInitialize(int *argc, char ***argv) __attribute__((weak));

static unsigned long inputs;

static int replay_file(const char *path, size_t size)
{
	FILE *file = fopen(path, "rb");
	/* Exactly the input's size, so that a sanitizer detects reads past its end. */
	uint8_t *data = malloc(size > 0 ? size : 1);
	int failed = file == NULL || data == NULL || fread(data, 1, size, file) != size;
	if (failed) perror(path);
	else LLVMFuzzerTestOneInput(data, size);
	free(data);
	if (file != NULL) fclose(file);
	inputs++;
	return failed;
}

static int replay(const char *path)
{
	struct stat info;
	if (stat(path, &info) != 0) {
		perror(path);
		return 1;
	}
	if (!S_ISDIR(info.st_mode)) return replay_file(path, (size_t)info.st_size);

	struct dirent **names;
	int count = scandir(path, &names, NULL, alphasort);
	int failed = count < 0;
	for (int i = 0; i < count; i++) {
		char child[4096];
		if (names[i]->d_name[0] != '.') {
			snprintf(child, sizeof child, "%s/%s", path, names[i]->d_name);
			failed |= replay(child);
		}
		free(names[i]);
	}
	if (count >= 0) free(names);
	return failed;
}

int main(int argc, char **argv)
{
	if (LLVMFuzzerInitialize != NULL) LLVMFuzzerInitialize(&argc, &argv);
	int failed = 0;
	LLVMFuzzerTestOneInput((const uint8_t *)"", 0);
	for (int i = 1; i < argc; i++) failed |= replay(argv[i]);
	printf("%lu inputs replayed\n", inputs);
	return failed;
}
