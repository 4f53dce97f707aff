/* output.h - JSON on standard output. */
#ifndef HR_CLI_OUTPUT_H
#define HR_CLI_OUTPUT_H

#include "base/json.h"

void hr__output_json_begin(hr__json *json);
/* Ends the text with a newline. A failing write is found by main, when it looks whether everything arrived. */
void hr__output_json_end(hr__json *json);

#endif
