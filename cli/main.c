/* main.c - the `headroom` command: finds and runs the subcommand, then checks that its output was written. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "command.h"
#include "core/os/os.h"
#include "headroom_analysis.h"
#include "pages/pages.h"
#include "analysis/import/quote.h"
#include "terminal/term.h"

static const hr__command *const commands[] = { &hr__command_demo, &hr__command_run,    &hr__command_top, &hr__command_metrics, &hr__command_report,  &hr__command_diff,
	                                           &hr__command_replay, &hr__command_plan, &hr__command_oom, &hr__command_devices };
#define COMMANDS (sizeof commands / sizeof *commands)

static const hr__command *find_command(const char *name)
{
	for (size_t i = 0; i < COMMANDS; i++)
		if (strcmp(commands[i]->name, name) == 0) return commands[i];
	return NULL;
}

static void print_command(const char *name, const char *summary)
{
	printf("  %s%-10s%s ", hr__style(stdout, HR__STYLE_STRONG), name, hr__style(stdout, HR__STYLE_PLAIN));
	hr__term_wrap(summary, 13, 13, hr__term_text_width());
}

static void print_help(void)
{
	printf("headroom %s - where device memory went, why it ran out, how to do with less\n\n"
	       "usage: headroom COMMAND [ARGUMENT]...\n\n",
	       hr_version());
	for (size_t i = 0; i < COMMANDS; i++)
		print_command(commands[i]->name, commands[i]->summary);
	print_command("help", "this text, or that of a command: headroom help replay");
	printf("\n'headroom COMMAND --help' lists the options of a command, with examples.\n"
	       "'headroom help --man [COMMAND]' prints the manual page, and\n"
	       "'headroom help --completion SHELL' the completion of bash, zsh or fish.\n"
	       "'headroom --version' prints the version.\n"
	       "SIZE is a number of bytes with an optional unit: 1073741824, 1GiB, 1.5G, 512MB.\n"
	       "Exit status: " HR__EXIT_HELP ".\n");
}

static int unknown_command(const char *name)
{
	const char *names[COMMANDS + 2];
	char quoted[HR__QUOTE_BYTES];
	for (size_t i = 0; i < COMMANDS; i++) names[i] = commands[i]->name;
	names[COMMANDS] = "help";
	names[COMMANDS + 1] = NULL;
	const char *near = hr__nearest(name, names);
	bool is_option = name[0] == '-';
	hr__complain("unknown %s %s%s%s%s", is_option ? "option" : "command", hr__quote(name, strlen(name), quoted),
	             near ? "; did you mean " : "", near ? near : "", near ? "?" : "");
	fprintf(stderr, "Try 'headroom --help'.\n");
	return HR__EXIT_BAD;
}

static bool asks_for_help(const char *text)
{
	return strcmp(text, "help") == 0 || strcmp(text, "--help") == 0 || strcmp(text, "-h") == 0;
}

static int print_man(int count, char **texts)
{
	const hr__command *command = count > 0 ? find_command(texts[0]) : NULL;
	if (count > 0 && !command) return unknown_command(texts[0]);
	hr__man_print(commands, COMMANDS, command);
	return HR__EXIT_DONE;
}

static int print_completion(int count, char **texts)
{
	char quoted[HR__QUOTE_BYTES];
	if (count > 0 && hr__completion_print(commands, COMMANDS, texts[0])) return HR__EXIT_DONE;
	return hr__complain("--completion takes bash, zsh or fish%s%s", count > 0 ? ", not " : "", count > 0 ? hr__quote(texts[0], strlen(texts[0]), quoted) : "");
}

static int help_about(int count, char **texts)
{
	if (count > 0 && strcmp(texts[0], "--man") == 0) return print_man(count - 1, texts + 1);
	if (count > 0 && strcmp(texts[0], "--completion") == 0) return print_completion(count - 1, texts + 1);
	if (count == 0 || asks_for_help(texts[0])) {
		print_help();
		return HR__EXIT_DONE;
	}
	const hr__command *command = find_command(texts[0]);
	if (!command) return unknown_command(texts[0]);
	hr__command_help(command);
	return HR__EXIT_DONE;
}

static int dispatch(int count, char **texts)
{
	hr__arguments arguments;
	int exit_status = HR__EXIT_DONE;
	if (count == 0) {
		hr__complain("which command?");
		fprintf(stderr, "Try 'headroom --help'.\n");
		return HR__EXIT_BAD;
	}
	if (strcmp(texts[0], "help") == 0) return help_about(count - 1, texts + 1);
	if (asks_for_help(texts[0])) return help_about(0, NULL);
	if (strcmp(texts[0], "--version") == 0) {
		printf("headroom %s\n", hr_version());
		return HR__EXIT_DONE;
	}
	const hr__command *command = find_command(texts[0]);
	if (!command) return unknown_command(texts[0]);
	if (!hr__arguments_read(command, count - 1, texts + 1, &arguments, &exit_status)) return exit_status;
	if (hr_environment_check() != HR_OK) hr__complain_last();
	return command->run(&arguments);
}

int main(int argc, char **argv)
{
	hr_analysis_register();
	int exit_status = dispatch(argc - 1, argv + 1);
	/* A full disk may be reported only by the last write. */
	errno = 0;
	bool written = fflush(stdout) == 0 && !ferror(stdout);
	if (!written) return hr__complain("cannot write to standard output: %s", errno ? hr__os_error(errno) : "an earlier write failed");
	return exit_status;
}
