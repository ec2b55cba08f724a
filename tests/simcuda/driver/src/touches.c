/* See touches.h. */
#include "touches.h"

#include "builtins.h"
#include "graph_run.h"
#include "memops.h"
#include "transfers.h"

static bool meets(uint64_t begin, uint64_t bytes, uint64_t base, uint64_t size) {
    return begin < base + size && base < begin + bytes;
}

static bool copy_touches(const struct copy *copy, uint64_t base, uint64_t size) {
    return meets(copy->source, copy_read_bytes(copy), base, size) ||
           meets(copy->target, copy_written_bytes(copy), base, size);
}

static bool fill_touches(const struct fill *fill, uint64_t base, uint64_t size) {
    uint64_t bytes = (fill->height > 1 ? (fill->height - 1) * fill->pitch : 0) +
                     (uint64_t)fill->width * fill->element_bytes;
    return meets(fill->target, bytes, base, size);
}

static bool launch_touches(const struct launch *launch, uint64_t base, uint64_t size) {
    struct span spans[BUILTIN_MOST_SPANS];
    unsigned count = launch->builtin->spans(launch->parameters, spans);
    for (unsigned i = 0; i < count; i++) {
        if (meets(spans[i].begin, spans[i].bytes, base, size)) {
            return true;
        }
    }
    return false;
}

bool work_touches(const struct work *work, uint64_t base, uint64_t size) {
    switch (work->kind) {
    case WORK_KERNEL:
        return launch_touches(&work->launch, base, size);
    case WORK_COPY:
        return copy_touches(&work->copy, base, size);
    case WORK_FILL:
        return fill_touches(&work->fill, base, size);
    case WORK_MEMOPS:
        return memops_touch(&work->memops, base, size);
    case WORK_GRAPH:
        return run_touches(work->run, base, size);
    case WORK_POOL_FREE:
        return meets(work->address, 1, base, size);
    default:
        return false;
    }
}

const char *work_name(const struct work *work) {
    switch (work->kind) {
    case WORK_KERNEL:
        return work->launch.builtin->name;
    case WORK_COPY:
        return "a copy";
    case WORK_FILL:
        return "a memset";
    case WORK_MEMOPS:
        return "a stream memory operation";
    case WORK_GRAPH:
        return "a graph";
    default:
        return "work";
    }
}
