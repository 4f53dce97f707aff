/* test_unload.c - a thread that used the library ends after the library was unloaded; and the last calls of a thread leak nothing.
 * */
#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <semaphore.h>

#include "fault_os.h"
#include "test.h"

static void *need(void *module, const char *name)
{
	void *found = dlsym(module, name);
	CHECK(found != NULL);
	return found;
}

/* [relative] to the folder of this program. NULL = not built: sanitizers do not support modules. */
static void *load(const char *relative)
{
	char path[PATH_MAX];
	ssize_t length = readlink("/proc/self/exe", path, sizeof path - 100);
	CHECK_GT(length, 0);
	path[length] = 0;
	strcpy(strrchr(path, '/') + 1, relative);
	CHECK(access(path, R_OK) == 0 || HR_TEST_SANITIZED);
	return access(path, R_OK) == 0 ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
}

struct user {
	hr_status (*use)(void *module);
	void *module;
	hr_status status;
	sem_t used, closed;
};

static void *use_and_wait(void *argument)
{
	struct user *user = argument;
	user->status = user->use(user->module);
	sem_post(&user->used);
	sem_wait(&user->closed);
	return NULL; /* and the thread's destructors run */
}

static hr_status use_library(void *module)
{
	hr_allocator allocator;
	void *block;
	hr_status (*get)(const char *, hr_allocator *), (*alloc)(hr_allocator, size_t, void **), (*release)(hr_allocator, void *, hr_stream);
	*(void **)&get = need(module, "hr_allocator_get_default");
	*(void **)&alloc = need(module, "hr_alloc_bytes");
	*(void **)&release = need(module, "hr_free");
	hr_status status = get("CPU:0", &allocator);
	if (!status) status = alloc(allocator, 1000, &block);
	return status ? status : release(allocator, block, HR_STREAM_DEFAULT);
}

static hr_status use_plugin(void *module)
{
	hr_status (*use)(void);
	*(void **)&use = need(module, "plugin_use");
	return use();
}

/* The thread ends after the module was unloaded. */
static void unload_under_a_thread(const char *path, hr_status (*use)(void *), const char *end_name)
{
	for (int round = 0; round < 10; round++) {
		struct user user = { .use = use, .module = load(path) };
		pthread_t thread;
		hr_status (*end)(void);
		if (!user.module) {
			CHECK(HR_TEST_SANITIZED);
			return;
		}
		*(void **)&end = need(user.module, end_name);
		sem_init(&user.used, 0, 0);
		sem_init(&user.closed, 0, 0);
		CHECK_EQ(pthread_create(&thread, NULL, use_and_wait, &user), 0);
		sem_wait(&user.used);
		CHECK_STATUS(HR_OK, user.status);
		CHECK_STATUS(HR_OK, end());
		CHECK_EQ(dlclose(user.module), 0);
		sem_post(&user.closed);
		CHECK_EQ(pthread_join(thread, NULL), 0);
	}
}

static void test_a_thread_may_end_after_the_library_was_closed(void)
{
	unload_under_a_thread("../../libheadroom.so", use_library, "hr_shutdown");
}

static void test_a_thread_may_end_after_a_module_with_the_library_was_closed(void)
{
	unload_under_a_thread("plugin.so", use_plugin, "plugin_end");
}

/* ---- the last calls of a thread ---- */

static hr_allocator allocator;
static pthread_key_t late;
static int rounds;

/* Runs in every round of destructors, and allocates in each. */
static void use_it_late(void *value)
{
	void *block;
	rounds++;
	CHECK_STATUS(HR_OK, hr_alloc_bytes(allocator, 1000, &block));
	CHECK_STATUS(HR_OK, hr_free(allocator, block, HR_STREAM_HOST));
	pthread_setspecific(late, value);
}

static void *end_late(void *argument)
{
	(void)argument;
	void *block;
	CHECK_STATUS(HR_OK, hr_alloc_bytes(allocator, 1000, &block));
	CHECK_STATUS(HR_OK, hr_free(allocator, block, HR_STREAM_HOST));
	pthread_setspecific(late, &late);
	return NULL;
}

static void test_calls_in_the_last_destructors_of_a_thread_leave_nothing(void)
{
	pthread_t thread;
	hr_stats stats;
	hr_fault_os_install();
	CHECK_EQ(pthread_key_create(&late, use_it_late), 0); /* after the library's key, which a constructor creates */
	CHECK_STATUS(HR_OK, hr_allocator_get_default("CPU:0", &allocator));
	CHECK_EQ(pthread_create(&thread, NULL, end_late, NULL), 0);
	CHECK_EQ(pthread_join(thread, NULL), 0);
	CHECK_EQ(rounds, PTHREAD_DESTRUCTOR_ITERATIONS);
	hr_stats_init(&stats);
	CHECK_STATUS(HR_OK, hr_allocator_get_stats(allocator, &stats));
	CHECK_EQ(stats.num_allocs, 1 + PTHREAD_DESTRUCTOR_ITERATIONS);
	CHECK_EQ(stats.bytes_cached, 0); /* none of them left a cache */
	CHECK_STATUS(HR_OK, hr_allocator_check(allocator));
	CHECK_STATUS(HR_OK, hr_shutdown());
	CHECK(hr_fault_os_is_clean());
	hr_fault_os_uninstall();
}

TEST_MAIN(T(test_a_thread_may_end_after_the_library_was_closed), T(test_a_thread_may_end_after_a_module_with_the_library_was_closed),
          T(test_calls_in_the_last_destructors_of_a_thread_leave_nothing))
