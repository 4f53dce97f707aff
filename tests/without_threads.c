/* without_threads.c - in place of pthread_create in the test programs that cmake/tests.cmake says start no thread: ThreadSanitizer does not run them. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *argument);

int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *argument)
{
	(void)thread, (void)attributes, (void)run, (void)argument;
	fprintf(stderr, "this program is in without_threads of cmake/tests.cmake, and starts a thread: take it out there, so that ThreadSanitizer runs it\n");
	abort();
}
