/* The kernels that the simulated device can run. include/simcuda.h documents their parameters. */
#pragma once

#include <cuda.h>
#include <stddef.h>
#include <stdint.h>

enum { BUILTIN_COUNT = 11, BUILTIN_MOST_PARAMETERS = 9, BUILTIN_MOST_SPANS = 4 };

struct span {
    uint64_t begin, bytes;
};

struct builtin {
    const char *name;
    size_t parameter_bytes;
    size_t parameter_count;
    struct {
        size_t offset, size;
    } parameters[BUILTIN_MOST_PARAMETERS];
    /* Runs to its end; gives up without an error when the context is over. */
    CUresult (*run)(CUcontext ctx, const unsigned char *parameters);
    /* The memory that its parameters name; returns how many spans. */
    unsigned (*spans)(const unsigned char *parameters, struct span *spans);
};

extern const struct builtin builtins[BUILTIN_COUNT];

/* NULL for an unknown name. */
const struct builtin *builtin_find(const char *name);
