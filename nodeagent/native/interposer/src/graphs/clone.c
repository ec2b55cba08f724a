/* See clone.h. */
#include "graphs/clone.h"

#include <stdbool.h>
#include <stddef.h>

#include "driver/abi.h"
#include "driver/driver.h"

void clone_destroy(void *clone) {
    cuGraphDestroy_function *destroy = (cuGraphDestroy_function *)driver_next(USED_cuGraphDestroy);
    if (clone != NULL && destroy != NULL) {
        destroy(clone);
    }
}

void *clone_make(void *graph, void *const *nodes, uint32_t count, void **twins) {
    cuGraphClone_function *copy = (cuGraphClone_function *)driver_next(USED_cuGraphClone);
    cuGraphNodeFindInClone_function *find =
        (cuGraphNodeFindInClone_function *)driver_next(USED_cuGraphNodeFindInClone);
    void *clone = NULL;
    if (copy == NULL || find == NULL || copy(&clone, graph) != ABI_SUCCESS) {
        return NULL;
    }
    for (uint32_t v = 0; v < count; v++) {
        if (find(&twins[v], nodes[v], clone) != ABI_SUCCESS) {
            clone_destroy(clone);
            return NULL;
        }
    }
    return clone;
}
