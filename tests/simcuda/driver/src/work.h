/* One piece of work for a device, whether it lies in a stream's queue or is a node of a graph.
 *
 * A work owns everything it points to, except events and the memory that it moves.
 */
#pragma once

#include <cuda.h>
#include <stdbool.h>
#include <stdint.h>

enum work_kind {
    WORK_EMPTY,
    WORK_KERNEL,
    WORK_COPY,
    WORK_FILL,
    WORK_MEMOPS,
    WORK_HOST,
    WORK_CALLBACK,
    WORK_GRAPH,        /* a launch */
    WORK_CHILD,        /* node only: a graph inside a graph */
    WORK_EVENT_RECORD, /* node only */
    WORK_EVENT_WAIT,   /* node only */
    WORK_POOL_FREE,
};

struct launch {
    CUfunction function; /* only handed back: it may be unloaded before the work is done */
    bool is_kernel;      /* the function is a library's kernel */
    const struct builtin *builtin;
    unsigned grid[3], block[3], shared_bytes;
    unsigned char *parameters; /* laid out as the kernel's signature says */
    size_t parameter_bytes;
    void **pointers; /* into parameters, one each: what cuGraphKernelNodeGetParams hands out */
    CUlaunchAttribute *attributes;
    unsigned attribute_count;
};

/* depth slices of height rows of width bytes. Pitches in bytes; strides of 0 are never followed. */
struct copy {
    uint64_t source, target;
    uint64_t source_pitch, source_slice, target_pitch, target_slice;
    size_t width, height, depth;
    bool source_on_host,
        target_on_host; /* as the caller named them, for cuGraphMemcpyNodeGetParams */
    bool staged;        /* the call takes the source's bytes and returns before they arrive */
    void *staging;      /* these bytes, once taken; owned */
};

struct fill {
    uint64_t target, pitch;
    unsigned value, element_bytes;
    size_t width, height; /* width in elements */
};

struct memops {
    CUstreamBatchMemOpParams *operations;
    unsigned count;
};

struct work {
    enum work_kind kind;
    union {
        struct launch launch;
        struct copy copy;
        struct fill fill;
        struct memops memops;
        struct {
            CUhostFn function;
            void *data;
        } host;
        struct {
            CUstreamCallback function;
            CUstream stream;
            void *data;
        } callback;
        struct run *run; /* WORK_GRAPH */
        CUgraph child;   /* owned */
        CUevent event;
        uint64_t address; /* WORK_POOL_FREE */
    };
};

/* A heap copy that owns its parts; NULL when memory is short. */
struct work *work_copy(const struct work *work);
void work_free(struct work *work);

/* Does the work, however long it takes, and gives up when the context is over. */
CUresult work_perform(CUcontext ctx, const struct work *work);
