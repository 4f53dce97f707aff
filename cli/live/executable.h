/* executable.h - whether a program can be given a preloaded library. */
#ifndef HR_CLI_EXECUTABLE_H
#define HR_CLI_EXECUTABLE_H

/* NULL if the dynamic loader will preload a library of this command into [program], which is found as execvp finds it; for a script, into its
 * interpreter. Otherwise why not, as the end of a sentence: "is statically linked". A program that cannot be read is not judged: NULL. */
const char *hr__executable_obstacle(const char *program);

#endif
