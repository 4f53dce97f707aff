/* own_folder.h - where this command is: files that belong to it are found from there. */
#ifndef HR_CLI_OWN_FOLDER_H
#define HR_CLI_OWN_FOLDER_H

#include <limits.h>
#include <stdbool.h>

/* The folder of this command's file. False if it is not known; [out] is then "". */
bool hr__own_folder(char out[PATH_MAX]);

#endif
