/* Launching graphs. See graph_run.h.
 *
 * A launch copies the work, so that parameters may be set, and the executable destroyed, while it
 * runs.
 *
 * One stream's worker runs a launch. It does whatever node is free, and passes by nodes that wait
 * for a flag or an event until nothing else is left to do: a branch that waits never holds up a
 * branch that it may be waiting for. (Branches do not overlap in time; a real device would overlap
 * them.)
 */
#include "graph_run.h"

#include <stdlib.h>
#include <string.h>

#include "entry.h"
#include "events.h"
#include "graph_exec.h"
#include "memops.h"
#include "objects.h"
#include "standing.h"
#include "streams.h"
#include "touches.h"

enum { PAUSE_NS = 100000 };

struct run {
    size_t count;
    struct run_step {
        struct work *work;   /* NULL: disabled */
        struct fence *fence; /* of an event's record or wait */
        size_t *after;
        size_t after_count;
        bool done;
        unsigned next; /* memory operations that are done */
    } * steps;
};

void run_free(struct run *run) {
    if (run == NULL) {
        return;
    }
    for (size_t i = 0; i < run->count; i++) {
        struct run_step *step = &run->steps[i];
        /* A launch that was dropped must not leave anybody waiting for its records. */
        if (step->fence != NULL) {
            if (step->work->kind == WORK_EVENT_RECORD) {
                fence_complete(step->fence);
            }
            fence_release(step->fence);
        }
        work_free(step->work);
        free(step->after);
    }
    free(run->steps);
    free(run);
}

bool run_touches(const struct run *run, uint64_t base, uint64_t size) {
    for (size_t i = 0; i < run->count; i++) {
        const struct work *work = run->steps[i].work;
        if (work != NULL && work_touches(work, base, size)) {
            return true;
        }
    }
    return false;
}

/* The events that a launch waits for and records are those of the moment of the launch. */
static bool run_bind_event(struct run_step *step) {
    CUevent event = step->work->event;
    if (!object_is(event, OBJECT_EVENT)) {
        return true;
    }
    if (step->work->kind == WORK_EVENT_WAIT) {
        step->fence = event_fence(event);
        return true;
    }
    step->fence = fence_new();
    if (step->fence != NULL) {
        event_set_fence(event, fence_hold(step->fence));
    }
    return step->fence != NULL;
}

static struct run *run_new(CUgraphExec exec) {
    struct run *run = calloc(1, sizeof *run);
    if (run == NULL) {
        return NULL;
    }
    run->steps = calloc(exec->count + 1, sizeof *run->steps);
    bool whole = run->steps != NULL;
    for (size_t i = 0; i < exec->count && whole; i++) {
        const struct step *step = &exec->steps[i];
        struct run_step *copy = &run->steps[i];
        run->count++;
        copy->after_count = step->after_count;
        copy->after = calloc(step->after_count + 1, sizeof *copy->after);
        copy->work = step->enabled ? work_copy(step->work) : NULL;
        whole = copy->after != NULL && (copy->work != NULL || !step->enabled);
        if (whole) {
            memcpy(copy->after, step->after, step->after_count * sizeof *copy->after);
        }
        if (whole && copy->work != NULL &&
            (copy->work->kind == WORK_EVENT_RECORD || copy->work->kind == WORK_EVENT_WAIT)) {
            whole = run_bind_event(copy);
        }
    }
    if (!whole) {
        run_free(run);
        run = NULL;
    }
    return run;
}

static bool step_is_free(const struct run *run, const struct run_step *step) {
    for (size_t i = 0; i < step->after_count; i++) {
        if (!run->steps[step->after[i]].done) {
            return false;
        }
    }
    return true;
}

/* Does a step, or as much of it as can be done without waiting. */
static CUresult step_try(CUcontext ctx, struct run_step *step) {
    CUresult result = CUDA_SUCCESS;
    step->done = true;
    if (step->work == NULL) {
        return CUDA_SUCCESS;
    }
    switch (step->work->kind) {
    case WORK_MEMOPS:
        result = memops_advance(ctx, &step->work->memops, &step->next);
        step->done = step->next == step->work->memops.count;
        break;
    case WORK_EVENT_WAIT:
        step->done = step->fence == NULL || fence_is_done(step->fence, NULL);
        break;
    case WORK_EVENT_RECORD:
        if (step->fence != NULL) {
            fence_complete(step->fence);
        }
        break;
    default:
        result = work_perform(ctx, step->work);
        break;
    }
    return result;
}

static void stand(bool *stands, bool now) {
    if (now != *stands) {
        *stands = now;
        now ? standing_begin() : standing_end();
    }
}

CUresult run_perform(CUcontext ctx, struct run *run) {
    size_t left = run->count;
    bool stands = false;
    CUresult result = CUDA_SUCCESS;
    while (left > 0 && !context_is_over(ctx) && result == CUDA_SUCCESS) {
        const struct run_step *blocked = NULL;
        bool moved = false;
        for (size_t i = 0; i < run->count && !context_is_over(ctx); i++) {
            struct run_step *step = &run->steps[i];
            if (step->done || !step_is_free(run, step)) {
                continue;
            }
            result = step_try(ctx, step);
            if (result != CUDA_SUCCESS) {
                break;
            }
            moved = moved || step->done;
            left -= step->done;
            if (!step->done && blocked == NULL) {
                blocked = step;
            }
        }
        bool waits = !moved && blocked != NULL && result == CUDA_SUCCESS;
        stand(&stands, waits && blocked->work->kind == WORK_MEMOPS);
        if (!waits) {
            continue;
        }
        if (stands) {
            memops_sleep(&blocked->work->memops, blocked->next, PAUSE_NS);
        } else {
            machine_sleep_until(machine_now_ns() + PAUSE_NS);
        }
    }
    stand(&stands, false);
    return result;
}

CUresult IMPL(cuGraphLaunch)(CUgraphExec hGraph, CUstream hStream) {
    CUstream stream;
    CUresult result = stream_resolve(hStream, &stream);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    graphs_lock();
    struct run *run = object_is(hGraph, OBJECT_GRAPH_EXEC) ? run_new(hGraph) : NULL;
    bool known = object_is(hGraph, OBJECT_GRAPH_EXEC);
    graphs_unlock();
    if (run == NULL) {
        return known ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_INVALID_VALUE;
    }
    struct work *work = calloc(1, sizeof *work);
    if (work == NULL) {
        run_free(run);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    work->kind = WORK_GRAPH;
    work->run = run;
    return stream_submit(stream, work, NULL);
}

CUresult IMPL(cuGraphUpload)(CUgraphExec hGraph, CUstream hStream) {
    CUstream stream;
    CUresult result = stream_resolve(hStream, &stream);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    return object_is(hGraph, OBJECT_GRAPH_EXEC) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
