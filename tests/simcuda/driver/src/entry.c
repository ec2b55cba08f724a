/* Counting, the default stream of a call, and cuGetProcAddress. See entry.h. */
#include "entry.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "faults.h"
#include "simcuda.h"

static atomic_ullong calls[ENTRY_COUNT];
static _Thread_local bool per_thread_stream;

CUresult entry_begin(struct entry_scope *scope, enum entry_index index, bool per_thread) {
    scope->outer_per_thread = per_thread_stream;
    per_thread_stream = per_thread;
    atomic_fetch_add_explicit(&calls[index], 1, memory_order_relaxed);
    return faults_on_call(&entry_table[index]);
}

void entry_end(const struct entry_scope *scope) {
    per_thread_stream = scope->outer_per_thread;
}

CUresult entry_unsupported(enum entry_index index) {
    atomic_fetch_add_explicit(&calls[index], 1, memory_order_relaxed);
    return CUDA_ERROR_NOT_SUPPORTED;
}

bool entry_per_thread_stream(void) {
    return per_thread_stream;
}

/* The newest symbol of a name that a program built for cuda_version may know; NULL when there is
 * none. */
static const struct entry *entry_find(const char *name, int cuda_version, bool per_thread,
                                      bool *name_known) {
    const struct entry *best = NULL;
    for (size_t i = 0; i < ENTRY_COUNT; i++) {
        const struct entry *entry = &entry_table[i];
        if (strcmp(entry->name, name) != 0) {
            continue;
        }
        *name_known = true;
        if (entry->cuda_version <= cuda_version && entry->per_thread == per_thread &&
            (best == NULL || entry->cuda_version > best->cuda_version)) {
            best = entry;
        }
    }
    return best;
}

CUresult IMPL(cuGetProcAddress_v2)(const char *symbol, void **pfn, int cudaVersion,
                                   cuuint64_t flags, CUdriverProcAddressQueryResult *symbolStatus) {
    const cuuint64_t known =
        CU_GET_PROC_ADDRESS_LEGACY_STREAM | CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
    if (symbol == NULL || pfn == NULL || (flags & ~known) != 0 || flags == known) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    /* Since CUDA 12 the plain name stands for the call with flags; no typedef says so. */
    if (strcmp(symbol, "cuGraphInstantiate") == 0 && cudaVersion >= 12000) {
        symbol = "cuGraphInstantiateWithFlags";
    }
    bool name_known = false;
    const struct entry *entry = NULL;
    if (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) {
        entry = entry_find(symbol, cudaVersion, true, &name_known);
    }
    if (entry == NULL) {
        entry = entry_find(symbol, cudaVersion, false, &name_known);
    }
    *pfn = NULL;
    if (entry != NULL) {
        memcpy(pfn, &entry->function, sizeof *pfn);
    }
    if (symbolStatus != NULL) {
        *symbolStatus = entry != NULL ? CU_GET_PROC_ADDRESS_SUCCESS
                        : name_known  ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
                                      : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    }
    /* The first version of the call has no status to tell why; both fail alike, as the driver's do.
     */
    return entry != NULL          ? CUDA_SUCCESS
           : symbolStatus != NULL ? CUDA_SUCCESS
                                  : CUDA_ERROR_NOT_FOUND;
}

CUresult IMPL(cuGetProcAddress)(const char *symbol, void **pfn, int cudaVersion, cuuint64_t flags) {
    return IMPL(cuGetProcAddress_v2)(symbol, pfn, cudaVersion, flags, NULL);
}

SIM_EXPORT uint64_t simcuda_calls(const char *symbol) {
    for (size_t i = 0; i < ENTRY_COUNT; i++) {
        if (strcmp(entry_table[i].symbol, symbol) == 0) {
            return atomic_load_explicit(&calls[i], memory_order_relaxed);
        }
    }
    return 0;
}

SIM_EXPORT uint64_t simcuda_unsupported_calls(void) {
    uint64_t sum = 0;
    for (size_t i = 0; i < ENTRY_COUNT; i++) {
        if (!entry_table[i].implemented) {
            sum += atomic_load_explicit(&calls[i], memory_order_relaxed);
        }
    }
    return sum;
}

/* One line a process, written by one append so that lines of several processes do not mix. */
__attribute__((destructor)) static void entry_report(void) {
    const char *path = getenv("SIMCUDA_REPORT");
    if (path == NULL) {
        return;
    }
    char *text = NULL;
    size_t length = 0;
    FILE *line = open_memstream(&text, &length);
    if (line == NULL) {
        return;
    }
    fprintf(line, "{\"pid\": %d, \"calls\": {", (int)getpid());
    const char *comma = "";
    for (size_t i = 0; i < ENTRY_COUNT; i++) {
        unsigned long long count = atomic_load_explicit(&calls[i], memory_order_relaxed);
        if (count == 0) {
            continue;
        }
        fprintf(line, "%s\"%s\": %llu", comma, entry_table[i].symbol, count);
        comma = ", ";
    }
    fprintf(line, "}, \"unsupported\": [");
    comma = "";
    for (size_t i = 0; i < ENTRY_COUNT; i++) {
        if (!entry_table[i].implemented && atomic_load_explicit(&calls[i], memory_order_relaxed)) {
            fprintf(line, "%s\"%s\"", comma, entry_table[i].symbol);
            comma = ", ";
        }
    }
    fprintf(line, "]}\n");
    if (fclose(line) == 0) {
        FILE *report = fopen(path, "ae");
        if (report != NULL) {
            fwrite(text, 1, length, report);
            fclose(report);
        }
    }
    free(text);
}
