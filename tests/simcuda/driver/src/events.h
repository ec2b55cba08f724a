/* Events: the fence of the work after which they were recorded last, or the nodes of a capture. */
#pragma once

#include "streams.h"

struct CUevent_st {
    CUcontext ctx;
    uint64_t context_id;
    unsigned flags;
    struct fence *fence; /* NULL before the first record; guarded by the lock of events.c */
    /* Recorded in a capture: its nodes, guarded by the lock of capture.c. */
    uint64_t capture_id;
    CUgraphNode *frontier;
    size_t frontier_count;
};

/* Held fence of the last record, or NULL. */
struct fence *event_fence(CUevent event);
bool event_recorded(CUevent event);
/* Makes the fence (one hold goes over to the event) the event's last record. */
void event_set_fence(CUevent event, struct fence *fence);
