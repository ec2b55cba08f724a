/* Captures under way, for the calls that begin, end and ask about them. See capture.c. */
#pragma once

#include <pthread.h>

#include "capture.h"

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

extern struct capture *captures;

/* All under the graphs' lock. */
bool capture_frontier_set(CUgraphNode **frontier, size_t *count, const CUgraphNode *nodes,
                          size_t node_count);
bool capture_frontier_merge(CUstream stream, const CUgraphNode *nodes, size_t node_count);
bool capture_join(CUstream stream, struct capture *capture);
/* The capture ends with its last member. */
void capture_part(CUstream stream);
/* Returns the error. */
CUresult capture_invalidate(struct capture *capture, CUresult error);
/* The capture that work on this stream would have to order itself against. */
struct capture *capture_implied(CUstream stream);
