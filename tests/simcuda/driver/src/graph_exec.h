/* Executable graphs.
 *
 * One is a flat list in which every node comes after what it depends on; the nodes of child graphs
 * are part of the list. Guarded by the graphs' lock.
 */
#pragma once

#include "graphs.h"

struct step {
    CUgraphNode origin; /* of the graph it was instantiated from; only compared, never followed */
    struct work *work;
    bool enabled;
    size_t *after;
    size_t after_count;
};

struct CUgraphExec_st {
    unsigned id;
    unsigned long long flags;
    struct step *steps;
    size_t count, capacity;
};
