/* Modules, libraries and the functions in them; each holds all built-in kernels (builtins.h). */
#pragma once

#include <cuda.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "builtins.h"

struct CUfunc_st {
    const struct builtin *builtin;
    CUmodule module;   /* NULL for a library's */
    CUlibrary library; /* NULL for a module's */
    atomic_bool loaded;
};

/* A launch takes a function or, cast to one, a library's kernel. NULL when it is neither. */
struct CUfunc_st *function_of(CUfunction handle);

/* Unloads the modules of a context that ends. */
void modules_end(CUcontext ctx);
/* Does a function's first launch wait for the whole context (CUDA_MODULE_LOADING, lazy by default)?
 */
bool modules_load_lazily(void);
