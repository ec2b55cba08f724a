/* See marks.h. */
#include "graphs/marks.h"

#include <stdlib.h>
#include <string.h>

#include "driver/driver.h"
#include "graphs/clone.h"
#include "launches/captures.h"
#include "launches/timing.h"
#include "plans/cuts.h"

struct graph_marks {
    void *kept;   /* a clone that is never changed */
    void **nodes; /* its nodes, as they stand in the view */
    /* Instantiated with an event after each of these nodes; NULL: not yet. */
    void *exec;
    uint32_t count;
    uint32_t *places;
    void **events;
};

static void drop_exec(struct graph_marks *marks) {
    cuGraphExecDestroy_function *destroy = DRIVER(HOOK, cuGraphExecDestroy);
    cuEventDestroy_v2_function *end = DRIVER(USED, cuEventDestroy_v2);
    if (marks->exec != NULL) {
        timing_give_back();
        if (destroy != NULL) {
            destroy(marks->exec);
        }
    }
    for (uint32_t m = 0; marks->events != NULL && m < marks->count; m++) {
        if (marks->events[m] != NULL && end != NULL) {
            end(marks->events[m]);
        }
    }
    free(marks->events);
    free(marks->places);
    marks->exec = NULL;
    marks->events = NULL;
    marks->places = NULL;
    marks->count = 0;
}

struct graph_marks *marks_keep(void *graph, const struct graph_view *view) {
    if (!timing_graphs() || view == NULL || view->fixed) {
        return NULL;
    }
    struct graph_marks *marks = calloc(1, sizeof *marks);
    void **nodes = calloc((size_t)view->node_count + 1, sizeof *nodes);
    if (marks != NULL && nodes != NULL) {
        marks->nodes = nodes;
        marks->kept = clone_make(graph, view->nodes, view->node_count, nodes);
        if (marks->kept != NULL) {
            return marks;
        }
    }
    free(nodes);
    free(marks);
    return NULL;
}

void marks_free(struct graph_marks *marks) {
    if (marks != NULL) {
        drop_exec(marks);
        clone_destroy(marks->kept);
        free(marks->nodes);
        free(marks);
    }
}

/* ---- the executable */

/* Puts the marks after the nodes of a clone. */
static bool add_marks(const struct graph_marks *marks, void *clone, void *const *twins,
                      void **added) {
    cuEventCreate_function *create = DRIVER(USED, cuEventCreate);
    cuGraphAddEventRecordNode_function *add = DRIVER(USED, cuGraphAddEventRecordNode);
    bool whole = create != NULL && add != NULL;
    for (uint32_t m = 0; whole && m < marks->count; m++) {
        const void *after = twins[marks->places[m]];
        whole = create(&marks->events[m], 0) == ABI_SUCCESS &&
                add(&added[m], clone, &after, 1, marks->events[m]) == ABI_SUCCESS;
    }
    return whole;
}

/* Has what follows a marked node follow its mark. */
static bool move_edges(const struct graph_marks *marks, const struct graph_view *view, void *clone,
                       void *const *twins, void *const *added) {
    cuGraphAddDependencies_v2_function *put = DRIVER(USED, cuGraphAddDependencies_v2);
    cuGraphRemoveDependencies_v2_function *take = DRIVER(USED, cuGraphRemoveDependencies_v2);
    size_t most = (size_t)view->edge_count + 1;
    void **mark_of = calloc((size_t)view->node_count + 1, sizeof *mark_of);
    const void **from = calloc(most, sizeof *from);
    const void **to = calloc(most, sizeof *to);
    const void **mark = calloc(most, sizeof *mark);
    struct abi_edge *data = calloc(most, sizeof *data);
    bool whole = put != NULL && take != NULL && mark_of != NULL && from != NULL && to != NULL &&
                 mark != NULL && data != NULL;
    for (uint32_t m = 0; whole && m < marks->count; m++) {
        mark_of[marks->places[m]] = added[m];
    }
    uint32_t moved = 0;
    for (uint32_t e = 0; whole && e < view->edge_count; e++) {
        const struct plan_edge *edge = &view->edges[e];
        if (mark_of[edge->from] != NULL) {
            from[moved] = twins[edge->from];
            to[moved] = twins[edge->to];
            mark[moved] = mark_of[edge->from];
            data[moved++] = view->edge_data[e];
        }
    }
    whole = whole && (moved == 0 || (take(clone, from, to, data, moved) == ABI_SUCCESS &&
                                     put(clone, mark, to, NULL, moved) == ABI_SUCCESS));
    free(mark_of);
    free(from);
    free(to);
    free(mark);
    free(data);
    return whole;
}

/* Instantiates a clone, and has the device get it ready: its first launch is then like any other.
 */
static void *instantiate(void *clone, const struct tierline_call *call) {
    cuGraphInstantiateWithFlags_function *make = DRIVER(HOOK, cuGraphInstantiateWithFlags);
    cuGraphUpload_function *upload = (cuGraphUpload_function *)driver_next(
        call->per_thread ? HOOK_cuGraphUpload_ptsz : HOOK_cuGraphUpload);
    void *exec = NULL;
    if (make == NULL || make(&exec, clone, 0) != ABI_SUCCESS) {
        return NULL;
    }
    if (upload != NULL) {
        upload(exec, call->stream);
    }
    return exec;
}

static bool stand(struct graph_marks *marks, const struct graph_view *view, const uint32_t *places,
                  uint32_t count, const struct tierline_call *call) {
    if (marks->exec != NULL && marks->count == count &&
        memcmp(marks->places, places, count * sizeof *places) == 0) {
        return true;
    }
    drop_exec(marks);
    marks->places = calloc((size_t)count + 1, sizeof *marks->places);
    marks->events = calloc((size_t)count + 1, sizeof *marks->events);
    void **twins = calloc((size_t)view->node_count + 1, sizeof *twins);
    void **added = calloc((size_t)count + 1, sizeof *added);
    if (marks->places != NULL && marks->events != NULL && twins != NULL && added != NULL) {
        marks->count = count;
        memcpy(marks->places, places, count * sizeof *places);
        void *clone = clone_make(marks->kept, marks->nodes, view->node_count, twins);
        if (clone != NULL && add_marks(marks, clone, twins, added) &&
            move_edges(marks, view, clone, twins, added)) {
            marks->exec = instantiate(clone, call);
        }
        clone_destroy(clone);
    }
    free(twins);
    free(added);
    if (marks->exec == NULL) {
        drop_exec(marks);
    }
    return marks->exec != NULL;
}

/* ---- what is timed */

/* The nodes to mark, and for each the ordinal of its last reader. They are counted in `count`. */
struct chosen {
    uint32_t count;
    uint32_t *places;
    uint64_t *launches;
};

static bool choose(const struct graph_view *view, const struct graph_names *names,
                   const bool *first, uint64_t launch, struct chosen *out) {
    size_t room = (size_t)names->reader_count + 1;
    *out = (struct chosen){.places = calloc(room, sizeof *out->places),
                           .launches = calloc(room, sizeof *out->launches)};
    bool *cut = calloc(room, sizeof *cut);
    bool whole = out->places != NULL && out->launches != NULL && cut != NULL;
    for (uint32_t r = 0; whole && r < names->reader_count; r++) {
        uint32_t top = names->tops[r];
        if (!first[r]) {
            continue;
        }
        whole = top < view->node_count;
        if (out->count == 0 || out->places[out->count - 1] != top) {
            out->places[out->count++] = top;
        }
        out->launches[out->count - 1] = launch + r;
    }
    whole = whole && cuts_find(view->edges, view->edge_count, view->node_count, out->places,
                               out->count, cut);
    uint32_t kept = 0;
    for (uint32_t i = 0; whole && i < out->count; i++) {
        out->places[kept] = out->places[i];
        out->launches[kept] = out->launches[i];
        kept += cut[i];
    }
    out->count = kept;
    free(cut);
    return whole;
}

void *marks_time(struct graph_marks *marks, const struct graph_view *view,
                 const struct graph_names *names, const bool *first, uint64_t launch,
                 struct tierline_call *call) {
    uint32_t last = names->reader_count;
    while (last > 0 && !first[last - 1]) {
        last--;
    }
    if (last == 0 || captures_now(call->stream, call->per_thread)) {
        return NULL;
    }
    struct chosen chosen = {0};
    bool marked = marks != NULL && choose(view, names, first, launch, &chosen) &&
                  stand(marks, view, chosen.places, chosen.count, call) &&
                  timing_borrow(call, chosen.launches, marks->events, chosen.count);
    free(chosen.places);
    free(chosen.launches);
    if (!marked) {
        timing_before(call, launch + last - 1);
    }
    return marked ? marks->exec : NULL;
}
