/* Which handles are live. A handle of a destroyed or foreign object is refused, never followed. */
#pragma once

#include <stdbool.h>

enum object_kind {
    OBJECT_CONTEXT,
    OBJECT_STREAM,
    OBJECT_EVENT,
    OBJECT_MODULE,
    OBJECT_LIBRARY,
    OBJECT_KERNEL,
    OBJECT_FUNCTION,
    OBJECT_GRAPH,
    OBJECT_GRAPH_NODE,
    OBJECT_GRAPH_EXEC,
    OBJECT_POOL,
};

/* False when memory is short. */
bool object_add(const void *object, enum object_kind kind);
bool object_is(const void *object, enum object_kind kind);
/* Takes the handle out; false when it was none, so that of two destroyers one wins. */
bool object_remove(const void *object, enum object_kind kind);
