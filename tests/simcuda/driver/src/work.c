/* Copying, freeing and doing a piece of work. See work.h. */
#include "work.h"

#include <stdlib.h>
#include <string.h>

#include "context.h"
#include "graph_run.h"
#include "graphs.h"
#include "launches.h"
#include "memops.h"
#include "pools.h"
#include "transfers.h"

static void *duplicate(const void *from, size_t bytes) {
    void *to = malloc(bytes > 0 ? bytes : 1);
    if (to != NULL && bytes > 0) {
        memcpy(to, from, bytes);
    }
    return to;
}

static bool launch_own(struct launch *launch) {
    const struct launch from = *launch;
    launch->parameters = duplicate(from.parameters, from.parameter_bytes);
    launch->attributes =
        duplicate(from.attributes, from.attribute_count * sizeof *launch->attributes);
    launch->pointers =
        launch->parameters == NULL ? NULL : launch_pointers(launch->builtin, launch->parameters);
    return launch->parameters != NULL && launch->attributes != NULL && launch->pointers != NULL;
}

struct work *work_copy(const struct work *work) {
    struct work *copy = duplicate(work, sizeof *work);
    bool whole = copy != NULL;
    if (whole && work->kind == WORK_KERNEL) {
        whole = launch_own(&copy->launch);
    }
    if (whole && work->kind == WORK_MEMOPS) {
        copy->memops.operations = duplicate(work->memops.operations,
                                            work->memops.count * sizeof *work->memops.operations);
        whole = copy->memops.operations != NULL;
    }
    if (whole && work->kind == WORK_CHILD) {
        copy->child = graph_copy(work->child);
        whole = copy->child != NULL;
    }
    if (!whole && copy != NULL) {
        work_free(copy);
        copy = NULL;
    }
    return copy;
}

void work_free(struct work *work) {
    if (work == NULL) {
        return;
    }
    switch (work->kind) {
    case WORK_KERNEL:
        free(work->launch.parameters);
        free(work->launch.pointers);
        free(work->launch.attributes);
        break;
    case WORK_MEMOPS:
        free(work->memops.operations);
        break;
    case WORK_COPY:
        free(work->copy.staging);
        break;
    case WORK_CHILD:
        if (work->child != NULL) {
            graph_free(work->child);
        }
        break;
    case WORK_GRAPH:
        run_free(work->run);
        break;
    default:
        break;
    }
    free(work);
}

CUresult work_perform(CUcontext ctx, const struct work *work) {
    switch (work->kind) {
    case WORK_KERNEL:
        return launch_perform(ctx, &work->launch);
    case WORK_COPY:
        return copy_perform(ctx, &work->copy);
    case WORK_FILL:
        return fill_perform(ctx, &work->fill);
    case WORK_MEMOPS:
        return memops_perform(ctx, &work->memops);
    case WORK_HOST:
        work->host.function(work->host.data);
        return CUDA_SUCCESS;
    case WORK_CALLBACK:
        work->callback.function(work->callback.stream, context_health(ctx), work->callback.data);
        return CUDA_SUCCESS;
    case WORK_GRAPH:
        return run_perform(ctx, work->run);
    case WORK_POOL_FREE:
        pool_free_now(work->address);
        return CUDA_SUCCESS;
    case WORK_EMPTY:
    case WORK_CHILD: /* runs take children and events apart themselves */
    case WORK_EVENT_RECORD:
    case WORK_EVENT_WAIT:
        break;
    }
    return CUDA_SUCCESS;
}
