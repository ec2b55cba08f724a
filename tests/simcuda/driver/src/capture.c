/* Stream capture. See capture.h.
 *
 * A capturing stream has a frontier: the nodes that its next one will depend on. An event recorded
 * in a capture keeps the frontier of that moment, and a stream that waits for the event takes it
 * into its own, which is how other streams join. When the capture ends everything must have been
 * joined again to the stream it began on.
 *
 * Invariant: streams' and events' capture fields are touched under the graphs' lock only.
 */
#include "capture_state.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "entry.h"
#include "graphs.h"
#include "objects.h"

struct capture *captures;
static _Thread_local CUstreamCaptureMode thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

bool capture_frontier_set(CUgraphNode **frontier, size_t *count, const CUgraphNode *nodes,
                          size_t node_count) {
    CUgraphNode *fresh = calloc(node_count + 1, sizeof(CUgraphNode));
    if (fresh == NULL) {
        return false;
    }
    if (node_count > 0) {
        memcpy(fresh, nodes, node_count * sizeof(CUgraphNode));
    }
    free(*frontier);
    *frontier = fresh;
    *count = node_count;
    return true;
}

bool capture_frontier_merge(CUstream stream, const CUgraphNode *nodes, size_t node_count) {
    CUgraphNode *larger =
        realloc(stream->frontier, (stream->frontier_count + node_count + 1) * sizeof(CUgraphNode));
    if (larger == NULL) {
        return false;
    }
    stream->frontier = larger;
    for (size_t i = 0; i < node_count; i++) {
        size_t at = 0;
        while (at < stream->frontier_count && larger[at] != nodes[i]) {
            at++;
        }
        if (at == stream->frontier_count) {
            larger[stream->frontier_count++] = nodes[i];
        }
    }
    return true;
}

bool capture_join(CUstream stream, struct capture *capture) {
    CUstream *larger = realloc(capture->members, (capture->member_count + 1) * sizeof(CUstream));
    if (larger == NULL) {
        return false;
    }
    capture->members = larger;
    larger[capture->member_count++] = stream;
    stream->capture = capture;
    return true;
}

static void capture_free(struct capture *capture) {
    for (struct capture **link = &captures; *link != NULL; link = &(*link)->next) {
        if (*link == capture) {
            *link = capture->next;
            break;
        }
    }
    if (capture->own_graph && capture->graph != NULL) {
        graph_drop(capture->graph);
    }
    free(capture->members);
    free(capture);
}

/* The capture ends with its last member. */
void capture_part(CUstream stream) {
    struct capture *capture = stream->capture;
    stream->capture = NULL;
    free(stream->frontier);
    stream->frontier = NULL;
    stream->frontier_count = 0;
    if (capture->origin == stream) {
        capture->origin = NULL;
    }
    size_t at = 0;
    while (capture->members[at] != stream) {
        at++;
    }
    capture->members[at] = capture->members[--capture->member_count];
    if (capture->member_count == 0) {
        capture_free(capture);
    }
}

CUresult capture_invalidate(struct capture *capture, CUresult error) {
    capture->invalid = true;
    return error;
}

/* Work on the legacy stream would have to order itself against a capture of the same context. */
struct capture *capture_implied(CUstream stream) {
    if (stream != stream->ctx->legacy) {
        return NULL;
    }
    struct capture *capture = captures;
    while (capture != NULL && (capture->origin == NULL || capture->origin->ctx != stream->ctx ||
                               capture->origin->flags & CU_STREAM_NON_BLOCKING)) {
        capture = capture->next;
    }
    return capture;
}

static CUresult node_add(CUstream stream, struct work *work) {
    struct capture *capture = stream->capture;
    if (capture->invalid) {
        work_free(work);
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    }
    if (work->kind == WORK_CALLBACK || work->kind == WORK_GRAPH || work->kind == WORK_POOL_FREE) {
        work_free(work);
        return capture_invalidate(capture, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    }
    /* A kernel that allows programmatic launch depends on a kernel before it by a programmatic
     * edge. */
    bool programmatic = false;
    for (unsigned i = 0; work->kind == WORK_KERNEL && i < work->launch.attribute_count; i++) {
        programmatic = programmatic ||
                       (work->launch.attributes[i].id ==
                            CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION &&
                        work->launch.attributes[i].value.programmaticStreamSerializationAllowed);
    }
    CUgraphEdgeData *data = calloc(stream->frontier_count + 1, sizeof *data);
    if (data == NULL) {
        work_free(work);
        return capture_invalidate(capture, CUDA_ERROR_OUT_OF_MEMORY);
    }
    for (size_t i = 0; programmatic && i < stream->frontier_count; i++) {
        if (stream->frontier[i]->work->kind == WORK_KERNEL) {
            data[i] = (CUgraphEdgeData){.from_port = CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC,
                                        .type = CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC};
        }
    }
    CUgraphNode node = NULL;
    CUresult result =
        graph_add(capture->graph, work, stream->frontier, data, stream->frontier_count, &node);
    free(data);
    if (result == CUDA_SUCCESS &&
        !capture_frontier_set(&stream->frontier, &stream->frontier_count, &node, 1)) {
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    return result == CUDA_SUCCESS ? result : capture_invalidate(capture, result);
}

CUresult capture_work(CUstream stream, struct work *work, bool *captured) {
    CUresult result = CUDA_SUCCESS;
    graphs_lock();
    struct capture *implied = captures == NULL ? NULL : capture_implied(stream);
    *captured = stream->capture != NULL || implied != NULL;
    if (stream->capture != NULL) {
        result = node_add(stream, work);
    } else if (implied != NULL) {
        work_free(work);
        result = capture_invalidate(implied, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    }
    graphs_unlock();
    return result;
}

CUresult capture_record(CUstream stream, CUevent event, unsigned flags, bool *captured) {
    CUresult result = CUDA_SUCCESS;
    graphs_lock();
    *captured = stream->capture != NULL;
    if (!*captured) {
        event->capture_id = 0;
    } else if (stream->capture->invalid) {
        result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    } else if (flags & CU_EVENT_RECORD_EXTERNAL) {
        struct work work = {.kind = WORK_EVENT_RECORD, .event = event};
        struct work *kept = work_copy(&work);
        result = kept == NULL ? CUDA_ERROR_OUT_OF_MEMORY : node_add(stream, kept);
    } else {
        event->capture_id = stream->capture->id;
        if (!capture_frontier_set(&event->frontier, &event->frontier_count, stream->frontier,
                                  stream->frontier_count)) {
            result = capture_invalidate(stream->capture, CUDA_ERROR_OUT_OF_MEMORY);
        }
    }
    graphs_unlock();
    return result;
}

static struct capture *capture_by_id(uint64_t id) {
    struct capture *capture = captures;
    while (capture != NULL && (id == 0 || capture->id != id)) {
        capture = capture->next;
    }
    return capture;
}

CUresult capture_wait(CUstream stream, CUevent event, unsigned flags, bool *captured) {
    CUresult result = CUDA_SUCCESS;
    graphs_lock();
    struct capture *recorded_in = capture_by_id(event->capture_id);
    *captured = true;
    if (stream->capture != NULL && stream->capture->invalid) {
        result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    } else if (stream->capture != NULL && flags & CU_EVENT_WAIT_EXTERNAL) {
        struct work work = {.kind = WORK_EVENT_WAIT, .event = event};
        struct work *kept = work_copy(&work);
        result = kept == NULL ? CUDA_ERROR_OUT_OF_MEMORY : node_add(stream, kept);
    } else if (recorded_in != NULL) {
        if (stream->capture != NULL && stream->capture != recorded_in) {
            recorded_in->invalid = true;
            result = capture_invalidate(stream->capture, CUDA_ERROR_STREAM_CAPTURE_MERGE);
        } else if (stream == stream->ctx->legacy) {
            result = capture_invalidate(recorded_in, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
        } else {
            bool member = stream->capture != NULL || capture_join(stream, recorded_in);
            if (!member ||
                !capture_frontier_merge(stream, event->frontier, event->frontier_count)) {
                result = capture_invalidate(recorded_in, CUDA_ERROR_OUT_OF_MEMORY);
            }
        }
    } else if (event->capture_id != 0) {
        result = CUDA_ERROR_CAPTURED_EVENT;
    } else if (stream->capture != NULL) {
        result = event_recorded(event)
                     ? capture_invalidate(stream->capture, CUDA_ERROR_STREAM_CAPTURE_ISOLATION)
                     : CUDA_SUCCESS;
    } else {
        *captured = false;
    }
    graphs_unlock();
    return result;
}

CUresult capture_forbids(CUstream stream) {
    graphs_lock();
    CUresult result = CUDA_SUCCESS;
    if (stream->capture != NULL) {
        result = capture_invalidate(stream->capture, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    }
    graphs_unlock();
    return result;
}

bool capture_active(CUstream stream) {
    graphs_lock();
    bool active = stream->capture != NULL;
    graphs_unlock();
    return active;
}

CUresult capture_event_forbids(CUevent event) {
    graphs_lock();
    CUresult result = event->capture_id != 0 ? CUDA_ERROR_CAPTURED_EVENT : CUDA_SUCCESS;
    graphs_unlock();
    return result;
}

CUresult capture_unsafe_call(void) {
    CUresult result = CUDA_SUCCESS;
    if (thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED) {
        return CUDA_SUCCESS;
    }
    graphs_lock();
    for (struct capture *capture = captures; capture != NULL; capture = capture->next) {
        bool mine = pthread_equal(capture->thread, pthread_self());
        bool global = capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL &&
                      thread_mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
        if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED && (mine || global)) {
            result = capture_invalidate(capture, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        }
    }
    graphs_unlock();
    return result;
}

void capture_abandon(CUstream stream) {
    graphs_lock();
    if (stream->capture != NULL) {
        stream->capture->invalid = true;
        capture_part(stream);
    }
    graphs_unlock();
}

/* A stream of that context that is captured. */
static CUstream capture_member_of(CUcontext ctx) {
    for (struct capture *capture = captures; capture != NULL; capture = capture->next) {
        for (size_t i = 0; i < capture->member_count; i++) {
            if (capture->members[i]->ctx == ctx) {
                return capture->members[i];
            }
        }
    }
    return NULL;
}

void capture_context_ends(CUcontext ctx) {
    CUstream stream;
    graphs_lock(); /* recursive */
    while ((stream = capture_member_of(ctx)) != NULL) {
        capture_abandon(stream);
    }
    graphs_unlock();
}

void capture_forget_event(CUevent event) {
    graphs_lock();
    free(event->frontier);
    event->frontier = NULL;
    event->capture_id = 0;
    graphs_unlock();
}

CUresult IMPL(cuThreadExchangeStreamCaptureMode)(CUstreamCaptureMode *mode) {
    if (mode == NULL || (unsigned)*mode > CU_STREAM_CAPTURE_MODE_RELAXED) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    CUstreamCaptureMode before = thread_mode;
    thread_mode = *mode;
    *mode = before;
    return CUDA_SUCCESS;
}
