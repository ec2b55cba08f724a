/* The calls that begin, end, change and ask about captures. See capture.c. */
#include <stdlib.h>

#include "capture_state.h"
#include "entry.h"
#include "graphs.h"
#include "objects.h"

static uint64_t next_id = 1;

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
               !capture_frontier_set(&stream->frontier, &stream->frontier_count, after,
                                     after_count)) {
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (result == CUDA_SUCCESS) {
        capture->nodes_before = capture->graph->count;
        capture->next = captures;
        captures = capture;
        if (!capture_join(stream, capture)) {
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
        result = capture_invalidate(capture, CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
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
            capture_part(capture->members[left - 1]);
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
                        ? capture_frontier_set(&stream->frontier, &stream->frontier_count,
                                               dependencies, numDependencies)
                        : capture_frontier_merge(stream, dependencies, numDependencies);
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
