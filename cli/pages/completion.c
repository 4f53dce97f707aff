/* completion.c - see pages.h. What an option takes follows from the name of its value: FILE, DIR, PATH, alternatives such as yes|no. Names
 * that are not in the value are in `choices`, each of which a test gives to the command. */
#include "pages/pages.h"

#include <stdio.h>
#include <string.h>

static const struct option_choices {
	const char *command, *option, *words;
} choices[] = {
	{ "report", "--view", "summary timeline op scope peak leaks tensors steps allocators" },
	{ "report", "--preset", "time_and_memory memory leaks" },
	{ "report", "--export", "xplane chrome memory_viz rmm pprof" },
	{ "plan", "--policy", "learned lru" },
	{ "run", "--device", "cuda cpu none" },
	{ "run", "--framework", "torch jax tensorflow cupy auto" },
};

typedef enum value_kind { VALUE_NONE, VALUE_FREE, VALUE_FILE, VALUE_FOLDER, VALUE_WORDS } value_kind;

/* What [option] takes. VALUE_WORDS: [words] has them, separated by spaces. A value that may be left out follows a '=' and is not completed. */
static value_kind kind_of(const hr__command *command, const hr__option *option, char words[256])
{
	if (!option->value || option->value[0] == '[') return VALUE_NONE;
	for (size_t i = 0; i < sizeof choices / sizeof *choices; i++) {
		if (strcmp(choices[i].command, command->name) != 0 || strcmp(choices[i].option, option->name) != 0) continue;
		snprintf(words, 256, "%s", choices[i].words);
		return VALUE_WORDS;
	}
	if (strchr(option->value, '|')) {
		snprintf(words, 256, "%s", option->value);
		for (char *at = words; *at; at++)
			if (*at == '|') *at = ' ';
		return VALUE_WORDS;
	}
	if (strcmp(option->value, "FILE") == 0 || strcmp(option->value, "PATH") == 0) return VALUE_FILE;
	return strcmp(option->value, "DIR") == 0 ? VALUE_FOLDER : VALUE_FREE;
}

/* The first part of a help text, for a list, without characters that the shells treat specially inside single quotes and brackets. */
static void print_brief(const char *text)
{
	size_t length = strcspn(text, ";.:(");
	for (size_t i = 0; i < length; i++)
		if (!strchr("'\\[]\n", text[i])) putchar(text[i]);
}

/* ---- bash ---- */

static void print_bash_command(const hr__command *command)
{
	char words[256];
	printf("\t%s)\n\t\tcase $prev in\n", command->name);
	for (const hr__option *option = command->options; option->name; option++) {
		value_kind kind = kind_of(command, option, words);
		if (kind == VALUE_NONE) continue;
		printf("\t\t%s) ", option->name);
		if (kind == VALUE_WORDS) printf("COMPREPLY=($(compgen -W '%s' -- \"$cur\")); ", words);
		else if (kind != VALUE_FREE) printf("_headroom_paths %s \"$cur\"; ", kind == VALUE_FILE ? "-f" : "-d");
		puts("return ;;");
	}
	printf("\t\tesac\n\t\toptions='");
	for (const hr__option *option = command->options; option->name; option++) printf("%s ", option->name);
	printf("--help'\n\t\toperands='%s' ;;\n", command->takes_program ? "-c" : command->most_operands ? "-f" : "");
}

/* Options that are followed by a value, of all commands that take a program. */
static void print_bash_valued(const hr__command *const *commands, size_t count)
{
	char words[256];
	const char *separator = "";
	for (size_t i = 0; i < count; i++) {
		for (const hr__option *option = commands[i]->options; commands[i]->takes_program && option->name; option++) {
			if (kind_of(commands[i], option, words) == VALUE_NONE) continue;
			printf("%s%s", separator, option->name);
			separator = " | ";
		}
	}
}

static void print_bash(const hr__command *const *commands, size_t count)
{
	puts("# bash completion of headroom, made by 'headroom help --completion bash'\n"
	     "_headroom_paths()\n{\n\tlocal path\n\twhile IFS= read -r path; do COMPREPLY+=(\"$path\"); done < <(compgen \"$1\" -- \"$2\")\n}\n\n"
	     "_headroom()\n{\n"
	     "\tlocal cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} options='' operands='' i\n"
	     "\tCOMPREPLY=()\n"
	     "\tif [ \"$COMP_CWORD\" -eq 1 ]; then");
	printf("\t\tCOMPREPLY=($(compgen -W '");
	for (size_t i = 0; i < count; i++) printf("%s ", commands[i]->name);
	printf("help --help --version' -- \"$cur\"))\n\t\treturn\n\tfi\n\tif [ \"${COMP_WORDS[1]}\" = run ]; then # in the arguments of the program: files\n"
	       "\t\tfor ((i = 2; i < COMP_CWORD; i++)); do\n\t\t\tcase ${COMP_WORDS[i]} in\n\t\t\t");
	print_bash_valued(commands, count);
	puts(") i=$((i + 1)) ;;\n\t\t\t-*) ;;\n\t\t\t*) _headroom_paths -f \"$cur\"; return ;;\n\t\t\tesac\n\t\tdone\n\tfi\n"
	     "\tcase ${COMP_WORDS[1]} in");
	for (size_t i = 0; i < count; i++) print_bash_command(commands[i]);
	printf("\thelp)\n\t\toptions='--man --completion'\n\t\tif [[ $prev = --completion ]]; then COMPREPLY=($(compgen -W 'bash zsh fish' -- \"$cur\")); return; fi\n"
	       "\t\tif [[ $cur != -* ]]; then COMPREPLY=($(compgen -W '");
	for (size_t i = 0; i < count; i++) printf("%s ", commands[i]->name);
	puts("' -- \"$cur\")); return; fi ;;\n\tesac\n"
	     "\tif [[ $cur = -* ]]; then COMPREPLY=($(compgen -W \"$options\" -- \"$cur\"))\n"
	     "\telif [ -n \"$operands\" ]; then _headroom_paths \"$operands\" \"$cur\"\n\tfi\n}\n"
	     "complete -o filenames -F _headroom headroom");
}

/* ---- zsh ---- */

static void print_zsh_command(const hr__command *command)
{
	char words[256];
	printf("\t%s)\n\t\t_arguments \\\n", command->name);
	for (const hr__option *option = command->options; option->name; option++) {
		value_kind kind = kind_of(command, option, words);
		printf("\t\t\t'%s[", option->name);
		print_brief(option->help);
		putchar(']');
		if (kind == VALUE_WORDS) printf(":value:(%s)", words);
		else if (kind == VALUE_FILE) printf(":file:_files");
		else if (kind == VALUE_FOLDER) printf(":folder:_files -/");
		else if (kind == VALUE_FREE) printf(":%s:", option->value);
		puts("' \\");
	}
	if (command->takes_program) puts("\t\t\t'*::program:_normal' \\");
	bool many = command->most_operands == HR__OPERANDS_MAX;
	if (!command->takes_program && many) puts("\t\t\t'*:file:_files' \\");
	for (int i = 1; !command->takes_program && !many && i <= command->most_operands; i++) printf("\t\t\t'%d:file:_files' \\\n", i);
	puts("\t\t\t'--help[this text]' ;;");
}

static void print_zsh(const hr__command *const *commands, size_t count)
{
	puts("#compdef headroom\n# zsh completion of headroom, made by 'headroom help --completion zsh'\n_headroom()\n{\n\tlocal command\n\tlocal -a commands\n\tcommands=(");
	for (size_t i = 0; i < count; i++) {
		printf("\t\t'%s:", commands[i]->name);
		print_brief(commands[i]->summary);
		puts("'");
	}
	puts("\t\t'help:the options of a command'\n\t)\n"
	     "\tif (( CURRENT == 2 )); then _describe command commands; return; fi\n"
	     "\tcommand=${words[2]}\n\tshift words\n\t(( CURRENT-- ))\n\tcase $command in");
	for (size_t i = 0; i < count; i++) print_zsh_command(commands[i]);
	puts("\thelp) _describe command commands ;;\n\tesac\n}\n_headroom \"$@\"");
}

/* ---- fish ---- */

static void print_fish_command(const hr__command *command)
{
	char words[256];
	const char *name = command->name;
	printf("complete -c headroom -n __fish_use_subcommand -a %s -d '", name);
	print_brief(command->summary);
	puts("'");
	if (command->most_operands || command->takes_program)
		printf("complete -c headroom -n '__fish_seen_subcommand_from %s' %s\n", name, command->takes_program ? "-a '(__fish_complete_subcommand)'" : "-F");
	for (const hr__option *option = command->options; option->name; option++) {
		value_kind kind = kind_of(command, option, words);
		printf("complete -c headroom -n '__fish_seen_subcommand_from %s' -l %s", name, option->name + 2);
		if (kind == VALUE_WORDS) printf(" -x -a '%s'", words);
		else if (kind == VALUE_FILE) printf(" -r -F");
		else if (kind == VALUE_FOLDER) printf(" -x -a '(__fish_complete_directories)'");
		else if (kind == VALUE_FREE) printf(" -x");
		printf(" -d '");
		print_brief(option->help);
		puts("'");
	}
}

static void print_fish(const hr__command *const *commands, size_t count)
{
	puts("# fish completion of headroom, made by 'headroom help --completion fish'\ncomplete -c headroom -f\n"
	     "complete -c headroom -l help -d 'this text'\ncomplete -c headroom -n __fish_use_subcommand -l version -d 'the version'\n"
	     "complete -c headroom -n __fish_use_subcommand -a help -d 'the options of a command'");
	for (size_t i = 0; i < count; i++) print_fish_command(commands[i]);
}

bool hr__completion_print(const hr__command *const *commands, size_t count, const char *shell)
{
	static const struct {
		const char *name;
		void (*print)(const hr__command *const *, size_t);
	} shells[] = { { "bash", print_bash }, { "zsh", print_zsh }, { "fish", print_fish } };
	for (size_t i = 0; i < sizeof shells / sizeof *shells; i++) {
		if (strcmp(shells[i].name, shell) != 0) continue;
		shells[i].print(commands, count);
		return true;
	}
	return false;
}
