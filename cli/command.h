/* command.h - shared by the subcommands of `headroom`: description of a command, parsing of its arguments, exit statuses.
 *
 * A command is a table entry. Its help, its option parser and the messages about wrong options are all derived from that entry, so
 * they cannot disagree. Results go to standard output, everything else to standard error. */
#ifndef HR_CLI_COMMAND_H
#define HR_CLI_COMMAND_H

#include <stdbool.h>
#include <stdint.h>

#include "headroom.h"

#define HR__EXIT_DONE 0 /* success */
#define HR__EXIT_NO 1   /* the answer is no: for example, the trace does not fit */
#define HR__EXIT_BAD 2  /* wrong usage, bad input, or the output could not be written */
#define HR__EXIT_HELP "0 success, 1 the answer is no, 2 wrong usage or bad input"

#define HR__OPTIONS_MAX 24
#define HR__OPERANDS_MAX 1024

typedef struct hr__option {
	const char *name;  /* "--limit" */
	const char *value; /* name of the value in the help text; "[=NAME]": it may be left out; NULL: the option is a switch */
	const char *help;
} hr__option;

typedef struct hr__command hr__command;

/* Parsed arguments of one call. */
typedef struct hr__arguments {
	const hr__command *command;
	const char *values[HR__OPTIONS_MAX]; /* indexed like the command's options; NULL: not given; "": given without a value */
	const char *operands[HR__OPERANDS_MAX];
	int operand_count;
	char **rest; /* if the command takes a program: the program's name and arguments, terminated by NULL */
} hr__arguments;

struct hr__command {
	const char *name;
	const char *operands; /* "TRACE", for help; "" if the command takes none */
	const char *summary;  /* one line, for the list of commands */
	const char *about;    /* paragraphs, for the command's help */
	const char *examples; /* command lines */
	const char *exits;    /* meaning of the exit status; NULL: HR__EXIT_HELP */
	int least_operands, most_operands;
	bool takes_program;   /* the first operand and everything after it, including options, are a program and its arguments */
	const hr__option *options;                  /* terminated by an entry without a name */
	int (*run)(const hr__arguments *arguments); /* returns an exit status */
};

extern const hr__command hr__command_demo, hr__command_run, hr__command_top, hr__command_metrics, hr__command_report, hr__command_diff, hr__command_replay, hr__command_plan, hr__command_oom,
	hr__command_devices;

/* Parses [count] arguments. Returns false after printing the requested help or an error message; *exit_status is then the exit
 * status of the command. */
bool hr__arguments_read(const hr__command *command, int count, char **texts, hr__arguments *out, int *exit_status);

/* Whether option number [option] was given. */
bool hr__arguments_has(const hr__arguments *arguments, int option);

/* The value of an option as an integer from [least] to [most]. *out is unchanged if the option was not given. False: the value is
 * wrong, and a message was printed. The functions below follow the same rules. */
bool hr__arguments_count(const hr__arguments *arguments, int option, uint64_t least, uint64_t most, uint64_t *out);
/* --device-index of commands that read one device of a recording. */
bool hr__arguments_device_index(const hr__arguments *arguments, int option, int64_t *out);
#define HR__DEVICE_INDEX_HELP "which device of a recording that has several, counted from 0; default: the one with most events"
bool hr__arguments_size(const hr__arguments *arguments, int option, uint64_t *out);
/* A decimal number from [least] to [most], optionally followed by [unit]. */
bool hr__arguments_decimal(const hr__arguments *arguments, int option, const char *unit, double least, double most, double *out);

void hr__command_help(const hr__command *command);

/* The name in [names] (terminated by NULL) that [text] is most likely a misspelling of; NULL when none is close. */
const char *hr__nearest(const char *text, const char *const *names);

/* Prints "headroom: <message>" to standard error, with control characters escaped. The second one prints the thread's last message.
 * Both return HR__EXIT_BAD. */
int hr__complain(const char *format, ...) __attribute__((format(printf, 1, 2)));
int hr__complain_last(void);
/* Prints such a line with the reason when GPU:0 is emulated because no CUDA device was found. Prints nothing when CUDA was
 * disabled. */
void hr__note_emulated(void);

#endif
