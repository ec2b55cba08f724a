/* See layouts.h. */
#include "launches/layouts.h"

#include <stdlib.h>

#include "driver/driver.h"

static struct layout **table;
static size_t slots; /* 0 or a power of two */
static size_t used;
static uint64_t epoch;

static size_t slot_of(const void *function) {
    return (size_t)(((uint64_t)(uintptr_t)function * UINT64_C(0x9e3779b97f4a7c15)) >> 32) &
           (slots - 1);
}

const struct layout *layouts_find(const void *function) {
    if (slots == 0) {
        return NULL;
    }
    for (size_t i = slot_of(function); table[i] != NULL; i = (i + 1) & (slots - 1)) {
        if (table[i]->function == function) {
            return table[i];
        }
    }
    return NULL;
}

static void place(struct layout *layout) {
    size_t i = slot_of(layout->function);
    while (table[i] != NULL) {
        i = (i + 1) & (slots - 1);
    }
    table[i] = layout;
}

bool layouts_keep(struct layout *layout) {
    if (layouts_find(layout->function) != NULL) {
        free(layout);
        return true;
    }
    if ((used + 1) * 2 > slots) {
        struct layout **old = table;
        size_t old_slots = slots;
        size_t more = slots == 0 ? 512 : slots * 2;
        /* NOLINTNEXTLINE(bugprone-sizeof-expression) a table of pointers */
        struct layout **fresh = calloc(more, sizeof *fresh);
        if (fresh == NULL) {
            free(layout);
            return false;
        }
        table = fresh;
        slots = more;
        for (size_t i = 0; i < old_slots; i++) {
            if (old[i] != NULL) {
                place(old[i]);
            }
        }
        free(old);
    }
    place(layout);
    used++;
    return true;
}

void layouts_clear(void) {
    for (size_t i = 0; i < slots; i++) {
        free(table[i]);
    }
    free(table);
    table = NULL;
    slots = 0;
    used = 0;
    epoch++;
}

uint64_t layouts_epoch(void) {
    return epoch;
}

static int parameter(const void *function, size_t index, size_t *offset, size_t *size) {
    void *handle = (void *)(uintptr_t)function; /* NOLINT(performance-no-int-to-ptr) drops const */
    cuFuncGetParamInfo_function *ask =
        (cuFuncGetParamInfo_function *)driver_next(USED_cuFuncGetParamInfo);
    int result = ask == NULL ? ABI_NOT_FOUND : ask(handle, index, offset, size);
    if (result == ABI_SUCCESS || result == ABI_INVALID_VALUE) {
        return result;
    }
    /* A launch also takes a CUkernel in a function's place. */
    cuKernelGetParamInfo_function *ask_kernel =
        (cuKernelGetParamInfo_function *)driver_next(USED_cuKernelGetParamInfo);
    return ask_kernel == NULL ? ABI_NOT_FOUND : ask_kernel(handle, index, offset, size);
}

struct layout *layouts_learn(const void *function) {
    size_t room = 16;
    struct layout *layout = NULL;
    uint32_t count = 0;
    for (;;) {
        if (layout == NULL || count == room) {
            room *= layout == NULL ? 1 : 2;
            struct layout *larger =
                realloc(layout, sizeof *layout + room * sizeof layout->parameters[0]);
            if (larger == NULL) {
                free(layout);
                return NULL;
            }
            if (layout == NULL) {
                *larger = (struct layout){.function = function};
            }
            layout = larger;
        }
        size_t offset = 0;
        size_t size = 0;
        int result = count < LAYOUT_PARAMETERS ? parameter(function, count, &offset, &size)
                                               : ABI_INVALID_VALUE;
        if (result != ABI_SUCCESS) {
            layout->opaque = result != ABI_INVALID_VALUE;
            break;
        }
        layout->parameters[count].offset = (uint32_t)offset;
        layout->parameters[count].size = (uint32_t)size;
        count++;
        uint32_t end = (uint32_t)(offset + size);
        layout->bytes = end > layout->bytes ? end : layout->bytes;
    }
    layout->count = count;
    return layout;
}
