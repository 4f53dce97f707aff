/* output.h - JSON on standard output. */
#ifndef HR_CLI_OUTPUT_H
#define HR_CLI_OUTPUT_H

#include "core/base/text/json.h"

void hr__output_json_begin(hr__json *json);
/* Ends the text with a newline. main reports failed writes when the command ends. */
void hr__output_json_end(hr__json *json);

#endif
