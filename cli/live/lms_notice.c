/* lms_notice.c - `headroom run --lms`: a line at the end of a program that did not use Large Model Support, because a setting without effect is
 * a mistake that is otherwise found late.
 *
 * libheadroom creates the file HEADROOM_RUN_MARK when Large Model Support is set up on an allocator, in the program or in a process that it
 * starts. A separate process waits for the program's end and looks for that file. The program itself replaces `headroom run` (exec), so its
 * signals and exit status need no forwarding. The waiting process is not a child of the program, which may wait for all of its children,
 * and has a session of its own, so that signals of the terminal do not end it. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "command.h"
#include "core/os/os.h"
#include "live/lms_notice.h"

#define MARK "used"
#define POLL_MS 100 /* where the system cannot wait for a process that is not a child */

#define NO_EFFECT "headroom: run: --lms had no effect: the program did not import PyTorch and made no tensors of Headroom. "
static const char notice_with_python[] = NO_EFFECT "PyTorch is found in Python programs that read PYTHONPATH (not with python -I, -E or -S)\n";
static const char notice_without_python[] =
	NO_EFFECT "PyTorch is not found, because the Python package of Headroom is not beside this command: install it with 'pip install .', or set "
			  "HEADROOM_PYTHON_DIR to the folder that contains it\n";

static int open_process(pid_t process)
{
#ifdef SYS_pidfd_open
	return (int)syscall(SYS_pidfd_open, process, 0);
#else
	(void)process;
	return -1;
#endif
}

static void wait_for_end(int descriptor, pid_t process)
{
	struct pollfd entry = { .fd = descriptor, .events = POLLIN };
	if (descriptor >= 0) {
		while (poll(&entry, 1, -1) < 0 && errno == EINTR) {}
	} else {
		while (kill(process, 0) == 0 || errno == EPERM) poll(NULL, 0, POLL_MS);
	}
}

/* For results that compilers want to be used, of calls whose failure has no remedy. */
static void ignore(ssize_t result)
{
	(void)result;
}

/* The waiting process. It keeps no file of the program open but the standard error. */
static _Noreturn void wait_and_tell(int descriptor, pid_t process, const char *folder, const char *mark, const char *notice)
{
	int nothing = open("/dev/null", O_RDWR);
	if (nothing >= 0) {
		dup2(nothing, STDIN_FILENO);
		dup2(nothing, STDOUT_FILENO);
	}
	for (int fd = STDERR_FILENO + 1; fd < 1024; fd++)
		if (fd != descriptor) close(fd);
	signal(SIGPIPE, SIG_IGN);
	ignore(chdir("/")); /* only so that no file system stays busy */
	wait_for_end(descriptor, process);
	if (access(mark, F_OK) != 0) ignore(write(STDERR_FILENO, notice, strlen(notice)));
	unlink(mark);
	rmdir(folder);
	_exit(0);
}

static bool make_folder(char folder[PATH_MAX])
{
	const char *base = getenv("TMPDIR");
	int length = snprintf(folder, PATH_MAX - 16, "%s/headroom-run-XXXXXX", base && base[0] == '/' ? base : "/tmp");
	if (length > 0 && length < PATH_MAX - 16 && mkdtemp(folder)) return true;
	hr__complain("run: cannot make a folder for temporary files, so that no line will say whether --lms had an effect: %s", hr__os_error(errno));
	return false;
}

bool hr__lms_notice_start(bool python)
{
	char folder[PATH_MAX], mark[PATH_MAX + sizeof MARK + 1];
	pid_t process = getpid();
	if (!make_folder(folder)) return false;
	snprintf(mark, sizeof mark, "%s/" MARK, folder);
	int descriptor = open_process(process);
	pid_t child = setenv("HEADROOM_RUN_MARK", mark, 1) == 0 ? fork() : -1;
	if (child == 0) {
		/* The middle process ends at once, so that the waiting one is adopted by another process than the program. */
		setsid();
		pid_t waiting = fork();
		if (waiting == 0) wait_and_tell(descriptor, process, folder, mark, python ? notice_with_python : notice_without_python);
		_exit(waiting < 0);
	}
	int status = 1;
	if (child > 0)
		while (waitpid(child, &status, 0) < 0 && errno == EINTR) {}
	if (descriptor >= 0) close(descriptor);
	if (status == 0) return true;
	hr__complain("run: cannot start a process that says at the end whether --lms had an effect: %s", hr__os_error(errno));
	rmdir(folder);
	unsetenv("HEADROOM_RUN_MARK");
	return false;
}

void hr__lms_notice_cancel(void)
{
	const char *mark = getenv("HEADROOM_RUN_MARK");
	int fd = mark ? open(mark, O_WRONLY | O_CREAT | O_CLOEXEC, 0600) : -1;
	if (fd >= 0) close(fd);
}
