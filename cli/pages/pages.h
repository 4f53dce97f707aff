/* pages.h - manual pages and shell completion, written from the tables of the commands, so that they cannot disagree with them. */
#ifndef HR_CLI_PAGES_H
#define HR_CLI_PAGES_H

#include <stddef.h>

#include "command.h"

/* Prints the manual page headroom(1), or headroom-NAME(1) if [command] is not NULL, as roff source. */
void hr__man_print(const hr__command *const *commands, size_t count, const hr__command *command);

/* Prints the completion of [shell]: "bash", "zsh" or "fish". False: no such shell. */
bool hr__completion_print(const hr__command *const *commands, size_t count, const char *shell);

#endif
