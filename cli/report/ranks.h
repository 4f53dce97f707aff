/* ranks.h - `headroom report` of several traces: the ranks of a job. */
#ifndef HR_CLI_RANKS_H
#define HR_CLI_RANKS_H

#include "command.h"

/* Numbers of the options that it takes. */
typedef struct hr__ranks_options {
	int html, out, json, width, max_rows;
} hr__ranks_options;

/* Returns an exit status. */
int hr__report_ranks(const hr__arguments *arguments, hr__ranks_options options);

#endif
