/* command.h - what the subcommands of `headroom` share: how one is described, how its arguments are read, how it ends.
 *
 * A command is a table entry. Its help, the reading of its options and the messages about wrong ones all come out of that entry, so
 * that they cannot disagree. Results go to standard output, everything else to standard error. */
#ifndef HR_CLI_COMMAND_H
#define HR_CLI_COMMAND_H

#include <stdbool.h>
#include <stdint.h>

#include "headroom.h"

/* Exit statuses. */
#define HR__EXIT_DONE 0 /* done */
#define HR__EXIT_NO 1   /* the thing asked about does not hold: the trace does not fit */
#define HR__EXIT_BAD 2  /* usage or bad input, or the output could not be written */
#define HR__EXIT_HELP "0 success, 1 the answer is no, 2 wrong usage or bad input"

#define HR__OPTIONS_MAX 24
#define HR__OPERANDS_MAX 2

typedef struct hr__option {
	const char *name;  /* "--limit" */
	const char *value; /* what help calls its value; NULL: a switch */
	const char *help;
} hr__option;

typedef struct hr__command hr__command;

/* The arguments of one call. */
typedef struct hr__arguments {
	const hr__command *command;
	const char *values[HR__OPTIONS_MAX]; /* in the order of the command's options; NULL: not given; "" for a switch that was */
	const char *operands[HR__OPERANDS_MAX];
	int operand_count;
	char **rest; /* of a command that takes a program: its name and arguments, ended by NULL */
} hr__arguments;

struct hr__command {
	const char *name;
	const char *operands; /* "TRACE", for help; "" when it takes none */
	const char *summary;  /* one line for the list of commands */
	const char *about;    /* paragraphs for its own help */
	const char *examples; /* lines to type */
	const char *exits;    /* what its exit status means; NULL: as for all */
	int least_operands, most_operands;
	bool takes_program;   /* the first operand and everything behind it, options too, are a program and its arguments */
	const hr__option *options;                  /* ended by one without a name */
	int (*run)(const hr__arguments *arguments); /* returns an exit status */
};

extern const hr__command hr__command_demo, hr__command_run, hr__command_top, hr__command_report, hr__command_diff, hr__command_replay, hr__command_plan, hr__command_oom,
	hr__command_devices, hr__command_generate;

/* Reads [count] arguments. False when help was asked for and printed, or something is wrong and was said; *exit_status is then the
 * status to end with. */
bool hr__arguments_read(const hr__command *command, int count, char **texts, hr__arguments *out, int *exit_status);

/* Whether option number [option] was given. */
bool hr__arguments_has(const hr__arguments *arguments, int option);

/* Its value as a whole number from [least] to [most], or as a size; *out is left alone when the option was not given. False when
 * the value is wrong, which was said. */
bool hr__arguments_count(const hr__arguments *arguments, int option, uint64_t least, uint64_t most, uint64_t *out);
/* --device-index of commands that read one device of a recording; [out] stays as it is without it. */
bool hr__arguments_device_index(const hr__arguments *arguments, int option, int64_t *out);
#define HR__DEVICE_INDEX_HELP "which device of a recording that has several, counted from 0; default: the one with most events"
bool hr__arguments_size(const hr__arguments *arguments, int option, uint64_t *out);
/* A decimal number from [least] to [most], perhaps with [unit] behind it. */
bool hr__arguments_decimal(const hr__arguments *arguments, int option, const char *unit, double least, double most, double *out);

/* Prints the help of a command to standard output. */
void hr__command_help(const hr__command *command);

/* The name in [names] (ended by NULL) that [text] was perhaps meant to be; NULL when none is near. */
const char *hr__nearest(const char *text, const char *const *names);

/* "headroom: <message>" on standard error, without anything that a terminal would obey. Both return HR__EXIT_BAD. The second one prints the thread's last message. */
int hr__complain(const char *format, ...) __attribute__((format(printf, 1, 2)));
int hr__complain_last(void);
/* One such line where GPU:0 is emulated because no CUDA device was found: why. None where CUDA was switched off. */
void hr__note_emulated(void);

#endif
