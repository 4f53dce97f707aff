/* man.c - see pages.h. The pages use the macros of man(7) alone. */
#include "pages/pages.h"

#include <stdio.h>
#include <string.h>

/* Text in which no character is special to roff. A '.' or ''' at the begin of a line would be a request; '-' would be a hyphen. */
static void print_text(const char *text, size_t length)
{
	bool begins = true;
	for (size_t i = 0; i < length; i++) {
		char c = text[i];
		if (begins && (c == '.' || c == '\'')) fputs("\\&", stdout);
		begins = c == '\n';
		if (c == '\\') fputs("\\e", stdout);
		else if (c == '-') fputs("\\-", stdout);
		else if (c == '\'') fputs("\\(aq", stdout);
		else if (c == '^') fputs("\\(ha", stdout);
		else if (c == '~') fputs("\\(ti", stdout);
		else if (c == '`') fputs("\\(ga", stdout);
		else putchar(c);
	}
}

static void print_string(const char *text)
{
	print_text(text, strlen(text));
}

static void print_line(const char *text)
{
	print_string(text);
	putchar('\n');
}

static void print_header(const char *name, const char *summary)
{
	fputs(".TH ", stdout);
	for (const char *at = name; *at; at++) putchar(*at >= 'a' && *at <= 'z' ? *at - 'a' + 'A' : *at);
	printf(" 1 \"\" \"Headroom %s\" \"Headroom\"\n.SH NAME\n", hr_version());
	print_string(name);
	fputs(" \\- ", stdout);
	print_line(summary);
}

/* Paragraphs are lines; a line that begins with two spaces is a list item, a word and its description, as hr__term_wrap prints it. */
static void print_paragraphs(const char *text)
{
	bool in_list = false;
	while (*text) {
		size_t length = strcspn(text, "\n");
		bool is_item = strncmp(text, "  ", 2) == 0;
		if (is_item) {
			size_t word = strcspn(text + 2, " \n"), gap = strspn(text + 2 + word, " ");
			fputs(".TP\n.B ", stdout);
			print_text(text + 2, word);
			putchar('\n');
			print_text(text + 2 + word + gap, length - 2 - word - gap);
			putchar('\n');
		} else if (length > 0) {
			if (in_list) puts(".PP");
			print_text(text, length);
			putchar('\n');
		} else if (strncmp(text + 1, "  ", 2) != 0) {
			puts(".PP");
		}
		in_list = is_item;
		text += length + (text[length] == '\n');
	}
}

static void print_option(const char *name, const char *value, const char *help)
{
	fputs(".TP\n.B ", stdout);
	print_string(name);
	if (value) {
		fputs(value[0] == '[' ? "\\fI" : " \\fI", stdout);
		print_string(value);
		fputs("\\fR", stdout);
	}
	putchar('\n');
	print_line(help);
}

static void print_see_also(const hr__command *const *commands, size_t count, const hr__command *command)
{
	puts(".SH SEE ALSO");
	if (command) fputs(".BR headroom (1)", stdout);
	for (size_t i = 0, printed = command ? 1 : 0; i < count; i++) {
		if (commands[i] == command) continue;
		if (printed++) puts(",");
		fputs(".BR headroom\\-", stdout);
		print_string(commands[i]->name);
		fputs(" (1)", stdout);
	}
	putchar('\n');
}

static void print_command(const hr__command *const *commands, size_t count, const hr__command *command)
{
	char name[64];
	snprintf(name, sizeof name, "headroom-%s", command->name);
	print_header(name, command->summary);
	fputs(".SH SYNOPSIS\n.B headroom ", stdout);
	print_line(command->name);
	if (!command->takes_program && *command->operands) printf(".I %s\n", command->operands);
	puts("[\\fIOPTION\\fR]...");
	if (command->takes_program) printf("[\\-\\-] \\fI%s\\fR\n", command->operands);
	puts(".SH DESCRIPTION");
	print_paragraphs(command->about);
	puts(".SH OPTIONS");
	for (const hr__option *option = command->options; option->name; option++) print_option(option->name, option->value, option->help);
	print_option("--help", NULL, "Print a summary of the options.");
	puts(".PP\nSIZE is a number of bytes with an optional unit: 1073741824, 1GiB, 1.5G, 512MB.");
	puts(".SH EXIT STATUS");
	print_line(command->exits ? command->exits : HR__EXIT_HELP);
	puts(".SH EXAMPLES\n.nf");
	print_line(command->examples);
	puts(".fi");
	print_see_also(commands, count, command);
}

static void print_overview(const hr__command *const *commands, size_t count)
{
	print_header("headroom", "where device memory went, why it ran out, how to do with less");
	puts(".SH SYNOPSIS\n.B headroom\n.I COMMAND\n[\\fIARGUMENT\\fR]...\n.SH DESCRIPTION\n"
	     "Headroom is a memory manager for tensor programs. This command runs programs under it, and reads what they recorded: memory over\n"
	     "time, what held it at the peak, what leaks, why a request did not fit, and what a program would cost with less memory.\n.SH COMMANDS");
	for (size_t i = 0; i < count; i++) {
		fputs(".TP\n.BR headroom\\-", stdout);
		print_string(commands[i]->name);
		puts(" (1)");
		print_line(commands[i]->summary);
	}
	puts(".TP\n.B headroom help\n[\\fICOMMAND\\fR] prints the options of a command, with examples.\n"
	     ".TP\n.B headroom help \\-\\-man\n[\\fICOMMAND\\fR] prints this page, or that of a command, as roff source.\n"
	     ".TP\n.B headroom help \\-\\-completion\n\\fISHELL\\fR prints the completion of bash, zsh or fish.\n"
	     ".TP\n.B headroom \\-\\-version\nprints the version.\n"
	     ".SH ENVIRONMENT\nVariables whose names begin with HEADROOM_ are settings of programs that use the library. One that is wrong is\n"
	     "ignored, and this command names it. The page environment.md of the installed documentation (share/doc/headroom) describes all.\n"
	     ".SH EXIT STATUS\n" HR__EXIT_HELP);
	print_see_also(commands, count, NULL);
}

void hr__man_print(const hr__command *const *commands, size_t count, const hr__command *command)
{
	if (command) print_command(commands, count, command);
	else print_overview(commands, count);
}
