#include <stdio.h>
#include "command.h"
static int run(const hr__arguments *a){(void)a;return 0;}
static const hr__option options[]={{NULL,NULL,NULL}};
const hr__command hr__command_generate = {.name="generate",.operands="",.summary="s",.about="a",.examples="",.options=options,.run=run};
