/* The border of the simulated driver: every exported call passes here.
 *
 * entries.h and entries.c are generated (generate_entries.py); a module implements a symbol by
 * defining `CUresult IMPL(cuMemAlloc_v2)(...)`. The generated export counts the call, asks faults.c
 * whether it has to fail, remembers which default stream the caller means, and calls the
 * implementation.
 *
 * Invariant: implementations never call exports, so a call is counted and injected exactly once.
 */
#pragma once

#include <cuda.h>
#include <stdbool.h>
#include <stddef.h>

#include "entries.h"

#define SIM_EXPORT __attribute__((visibility("default")))
#define IMPL(symbol) sim_##symbol

typedef void (*entry_function)(void);

struct entry {
    const char *symbol;
    const char *name; /* without version and stream suffixes */
    entry_function function;
    int cuda_version; /* since when cuGetProcAddress hands it out, e.g. 12030 */
    bool per_thread;  /* NULL means the per-thread default stream */
    bool implemented;
};

extern const struct entry entry_table[ENTRY_COUNT];

struct entry_scope {
    bool outer_per_thread;
};

/* Before and after each implemented call. The result of entry_begin is not CUDA_SUCCESS when a
 * fault is injected; the implementation is not called then. */
CUresult entry_begin(struct entry_scope *scope, enum entry_index index, bool per_thread);
void entry_end(const struct entry_scope *scope);
CUresult entry_unsupported(enum entry_index index);

/* True while this thread is inside a call whose NULL stream is the per-thread one. */
bool entry_per_thread_stream(void);
