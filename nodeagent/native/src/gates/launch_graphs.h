/* What graphs ask the gates (launches/graph_gate.h), and the gate at their launch. */
#ifndef TIERLINE_LAUNCH_GRAPHS_H
#define TIERLINE_LAUNCH_GRAPHS_H

#include "launches/graph_gate.h"

/* With the gates' lock: the driver has taken the graph that is there. */
void tl_graph_launched(void);
extern const struct tl_graph_gates tl_launch_graphs;

#endif
