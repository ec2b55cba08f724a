/* Stream capture. See capture.h.
 *
 * A capturing stream has a frontier: the nodes that its next one will depend on. An event recorded
 * in a capture keeps the frontier of that moment, and a stream that waits for the event takes it
 * into its own, which is how other streams join. When the capture ends everything must have been
 * joined again to the stream it began on.
 *
 * Invariant: streams' and events' capture fields are touched under the graphs' lock only.
 */
#include "capture.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "entry.h"
#include "graphs.h"
#include "objects.h"

struct capture {
    struct capture *next;
    uint64_t id;
    CUgraph graph;
    bool own_graph;
    CUstream origin;
    CUstreamCaptureMode mode;
    pthread_t thread;
    CUstream *members; /* streams in this capture */
    size_t member_count;
    size_t nodes_before; /* in the graph before the capture; need no joining */
    bool invalid;
};

static struct capture *captures;
static uint64_t next_id = 1;
static _Thread_local CUstreamCaptureMode thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

static bool frontier_set(CUgraphNode **frontier, size_t *count, const CUgraphNode *nodes,
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

static bool frontier_merge(CUstream stream, const CUgraphNode *nodes, size_t node_count) {
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

static bool stream_join(CUstream stream, struct capture *capture) {
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
static void stream_part(CUstream stream) {
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

static CUresult invalidate(struct capture *capture, CUresult error) {
    capture->invalid = true;
    return error;
}

/* Work on the legacy stream would have to order itself against a capture of the same context. */
static struct capture *capture_implied(CUstream stream) {
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
        return invalidate(capture, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
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
        return invalidate(capture, CUDA_ERROR_OUT_OF_MEMORY);
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
        !frontier_set(&stream->frontier, &stream->frontier_count, &node, 1)) {
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    return result == CUDA_SUCCESS ? result : invalidate(capture, result);
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
        result = invalidate(implied, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
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
        if (!frontier_set(&event->frontier, &event->frontier_count, stream->frontier,
                          stream->frontier_count)) {
            result = invalidate(stream->capture, CUDA_ERROR_OUT_OF_MEMORY);
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
            result = invalidate(stream->capture, CUDA_ERROR_STREAM_CAPTURE_MERGE);
        } else if (stream == stream->ctx->legacy) {
            result = invalidate(recorded_in, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
        } else {
            bool member = stream->capture != NULL || stream_join(stream, recorded_in);
            if (!member || !frontier_merge(stream, event->frontier, event->frontier_count)) {
                result = invalidate(recorded_in, CUDA_ERROR_OUT_OF_MEMORY);
            }
        }
    } else if (event->capture_id != 0) {
        result = CUDA_ERROR_CAPTURED_EVENT;
    } else if (stream->capture != NULL) {
        result = event_recorded(event)
                     ? invalidate(stream->capture, CUDA_ERROR_STREAM_CAPTURE_ISOLATION)
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
        result = invalidate(stream->capture, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
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
            result = invalidate(capture, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        }
    }
    graphs_unlock();
    return result;
}

void capture_abandon(CUstream stream) {
    graphs_lock();
    if (stream->capture != NULL) {
        stream->capture->invalid = true;
        stream_part(stream);
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

static CUresult capture_begin(CUstream handle, CUgraph graph, const CUgraphNode *after,
                              size_t after_count, CUstreamCaptureMode mode) {
    CUstream stream;
    CUresult result = stream_resolve(handle, &stream);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (stream == stream->ctx->legacy || (unsigned)mode > CU_STREAM_CAPTURE_MODE_RELAXED) {
        return stream == stream->ctx->legacy ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
                                             : CUDA_ERROR_INVALID_VALUE;
    }
    struct capture *capture = calloc(1, sizeof *capture);
    if (capture == NULL) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    graphs_lock();
    capture->own_graph = graph == NULL;
    capture->graph = graph == NULL ? graph_new() : graph;
    capture->origin = stream;
    capture->mode = mode;
    capture->thread = pthread_self();
    capture->id = next_id++;
    if (stream->capture != NULL) {
        result = CUDA_ERROR_ILLEGAL_STATE;
    } else if (capture->graph == NULL ||
               !frontier_set(&stream->frontier, &stream->frontier_count, after, after_count)) {
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (result == CUDA_SUCCESS) {
        capture->nodes_before = capture->graph->count;
        capture->next = captures;
        captures = capture;
        if (!stream_join(stream, capture)) {
            result = CUDA_ERROR_OUT_OF_MEMORY;
        }
    }
    if (result != CUDA_SUCCESS) {
        captures = captures == capture ? capture->next : captures;
        if (capture->own_graph && capture->graph != NULL) {
            graph_drop(capture->graph);
        }
        free(capture);
    }
    graphs_unlock();
    return result;
}

CUresult IMPL(cuStreamBeginCapture_v2)(CUstream hStream, CUstreamCaptureMode mode) {
    return capture_begin(hStream, NULL, NULL, 0, mode);
}

CUresult IMPL(cuStreamBeginCapture)(CUstream hStream) {
    return capture_begin(hStream, NULL, NULL, 0, CU_STREAM_CAPTURE_MODE_GLOBAL);
}

CUresult IMPL(cuStreamBeginCaptureToGraph)(CUstream hStream, CUgraph hGraph,
                                           const CUgraphNode *dependencies,
                                           const CUgraphEdgeData *dependencyData,
                                           size_t numDependencies, CUstreamCaptureMode mode) {
    (void)dependencyData;
    if (!object_is(hGraph, OBJECT_GRAPH) || (numDependencies > 0 && dependencies == NULL)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    for (size_t i = 0; i < numDependencies; i++) {
        if (!object_is(dependencies[i], OBJECT_GRAPH_NODE) || dependencies[i]->graph != hGraph) {
            return CUDA_ERROR_INVALID_VALUE;
        }
    }
    return capture_begin(hStream, hGraph, dependencies, numDependencies, mode);
}

/* Marks the nodes that the frontier depends on; the mark is a count in `seen`, by the nodes'
 * numbers. */
static void mark(CUgraphNode node, bool *seen) {
    if (seen[node->id]) {
        return;
    }
    seen[node->id] = true;
    for (size_t e = 0; e < node->edge_count; e++) {
        mark(node->edges[e].from, seen);
    }
}

static bool all_joined(const struct capture *capture) {
    CUgraph graph = capture->graph;
    bool *seen = calloc(graph->next_node + 1, sizeof *seen);
    bool joined = seen != NULL;
    for (size_t i = 0; joined && i < capture->origin->frontier_count; i++) {
        mark(capture->origin->frontier[i], seen);
    }
    for (size_t i = capture->nodes_before; joined && i < graph->count; i++) {
        joined = seen[graph->nodes[i]->id];
    }
    free(seen);
    return joined;
}

CUresult IMPL(cuStreamEndCapture)(CUstream hStream, CUgraph *phGraph) {
    CUstream stream;
    CUresult result = stream_resolve(hStream, &stream);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (phGraph == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    *phGraph = NULL;
    graphs_lock();
    struct capture *capture = stream->capture;
    if (capture == NULL) {
        result = CUDA_ERROR_ILLEGAL_STATE;
    } else if (capture->origin != stream) {
        result = invalidate(capture, CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
    } else if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED &&
               !pthread_equal(capture->thread, pthread_self())) {
        result = CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
    } else {
        if (capture->invalid) {
            result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
        } else if (!all_joined(capture)) {
            result = CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
        } else {
            *phGraph = capture->graph;
            capture->own_graph = false;
        }
        for (size_t left = capture->member_count; left > 0; left--) {
            stream_part(capture->members[left - 1]);
        }
    }
    graphs_unlock();
    return result;
}

CUresult IMPL(cuStreamIsCapturing)(CUstream hStream, CUstreamCaptureStatus *captureStatus) {
    return IMPL(cuStreamGetCaptureInfo_v3)(hStream, captureStatus, NULL, NULL, NULL, NULL, NULL);
}

CUresult IMPL(cuStreamGetCaptureInfo_v3)(CUstream hStream, CUstreamCaptureStatus *captureStatus_out,
                                         cuuint64_t *id_out, CUgraph *graph_out,
                                         const CUgraphNode **dependencies_out,
                                         const CUgraphEdgeData **edgeData_out,
                                         size_t *numDependencies_out) {
    CUstream stream;
    CUresult result = stream_resolve(hStream, &stream);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (captureStatus_out == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    graphs_lock();
    const struct capture *capture = stream->capture;
    if (captures != NULL && capture_implied(stream) != NULL) {
        result = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
    *captureStatus_out = capture == NULL    ? CU_STREAM_CAPTURE_STATUS_NONE
                         : capture->invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                                            : CU_STREAM_CAPTURE_STATUS_ACTIVE;
    if (capture != NULL && !capture->invalid) {
        if (id_out != NULL) {
            *id_out = capture->id;
        }
        if (graph_out != NULL) {
            *graph_out = capture->graph;
        }
        if (dependencies_out != NULL) {
            *dependencies_out = stream->frontier;
        }
        if (edgeData_out != NULL) {
            *edgeData_out =
                NULL; /* the frontier's edges are ordinary until a node decides otherwise */
        }
        if (numDependencies_out != NULL) {
            *numDependencies_out = stream->frontier_count;
        }
    }
    graphs_unlock();
    return result;
}

CUresult IMPL(cuStreamGetCaptureInfo_v2)(CUstream hStream, CUstreamCaptureStatus *captureStatus_out,
                                         cuuint64_t *id_out, CUgraph *graph_out,
                                         const CUgraphNode **dependencies_out,
                                         size_t *numDependencies_out) {
    return IMPL(cuStreamGetCaptureInfo_v3)(hStream, captureStatus_out, id_out, graph_out,
                                           dependencies_out, NULL, numDependencies_out);
}

CUresult IMPL(cuStreamGetCaptureInfo)(CUstream hStream, CUstreamCaptureStatus *captureStatus_out,
                                      cuuint64_t *id_out) {
    return IMPL(cuStreamGetCaptureInfo_v3)(hStream, captureStatus_out, id_out, NULL, NULL, NULL,
                                           NULL);
}

CUresult IMPL(cuStreamUpdateCaptureDependencies_v2)(CUstream hStream, CUgraphNode *dependencies,
                                                    const CUgraphEdgeData *dependencyData,
                                                    size_t numDependencies, unsigned int flags) {
    CUstream stream;
    CUresult result = stream_resolve(hStream, &stream);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    (void)dependencyData;
    if (flags > CU_STREAM_SET_CAPTURE_DEPENDENCIES ||
        (numDependencies > 0 && dependencies == NULL)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    graphs_lock();
    if (stream->capture == NULL) {
        result = CUDA_ERROR_ILLEGAL_STATE;
    }
    for (size_t i = 0; i < numDependencies && result == CUDA_SUCCESS; i++) {
        if (!object_is(dependencies[i], OBJECT_GRAPH_NODE) ||
            dependencies[i]->graph != stream->capture->graph) {
            result = CUDA_ERROR_INVALID_VALUE;
        }
    }
    if (result == CUDA_SUCCESS) {
        bool room = flags == CU_STREAM_SET_CAPTURE_DEPENDENCIES
                        ? frontier_set(&stream->frontier, &stream->frontier_count, dependencies,
                                       numDependencies)
                        : frontier_merge(stream, dependencies, numDependencies);
        result = room ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    }
    graphs_unlock();
    return result;
}

CUresult IMPL(cuStreamUpdateCaptureDependencies)(CUstream hStream, CUgraphNode *dependencies,
                                                 size_t numDependencies, unsigned int flags) {
    return IMPL(cuStreamUpdateCaptureDependencies_v2)(hStream, dependencies, NULL, numDependencies,
                                                      flags);
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
