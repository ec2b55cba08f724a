/* Launching functions, and what can be asked about their parameters. */
#pragma once

#include "builtins.h"
#include "context.h"
#include "work.h"

CUresult launch_perform(CUcontext ctx, const struct launch *launch);

/* Packs a caller's parameters: an array of pointers, or a buffer in `extra`. launch->builtin is set
 * already. The launch then owns the packed parameters and the pointers into them. */
CUresult launch_pack(struct launch *launch, void **pointers, void **extra);
/* A fresh array of pointers to each parameter in a packed buffer; NULL when memory is short. */
void **launch_pointers(const struct builtin *builtin, unsigned char *parameters);
