/* See window.h. */
#include "lease/window.h"

#include "cuda/cuda.h"
#include "cuda/device_memory.h"
#include "driver/standard_error.h"
#include "launches/captures.h"
#include "lease/launch_state.h"
#include "link/request.h"
#include "wire/error.h"
#include "wire/words.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LOOK_NS 20000U
#define MOST_NAMES 6U
#define NAME_BYTES ((size_t)96)
#define MOST_KNOWN 16384U /* a power of two; what finds no place is as if it were known */
#define MOST_STEPS 32U
#define FIRST_PARTS 16U

static atomic_bool careful;

/* Extents of an arena, both included. */
struct part {
    uint32_t arena, first, last;
};

static struct {
    uint32_t count, room;
    struct part *parts;
} latest; /* what the latest call that names weights has named */

static _Atomic(const void *) known[MOST_KNOWN];

static struct tl_lock names_lock;
static char names[MOST_NAMES][NAME_BYTES]; /* of the last ones that were launched, no two alike */
static uint32_t noted;

/* ---- functions that careful jobs have launched */

/* The function's place, or the one that it can have; NULL: there is none. */
static _Atomic(const void *) *place_of(const void *function) {
    uint64_t hash = ((uint64_t)(uintptr_t)function >> 4) * 0x9e3779b97f4a7c15U;
    for (uint32_t step = 0; step < MOST_STEPS; step++) {
        _Atomic(const void *) *place = &known[((hash >> 40) + step) % MOST_KNOWN];
        const void *there = atomic_load_explicit(place, memory_order_relaxed);
        if (there == NULL || there == function) {
            return place;
        }
    }
    return NULL;
}

bool tl_window_knows(const void *function) {
    if (function == NULL || atomic_load_explicit(&tl_gates.sealed, memory_order_relaxed) == 0) {
        return true;
    }
    const _Atomic(const void *) *place = place_of(function);
    return place == NULL || atomic_load_explicit(place, memory_order_relaxed) == function;
}

void tl_window_forget(void) {
    for (uint32_t i = 0; i < MOST_KNOWN; i++) {
        atomic_store_explicit(&known[i], NULL, memory_order_relaxed);
    }
}

/* ---- what is hidden */

/* With the arena's context current and no stream's capture in the way. */
static int enter(const struct tl_arena *arena, int *mode) {
    if (!tl_cuda_enter(arena->on_device.context)) {
        return tl_fail(TIERLINE_E_SYSTEM, "an arena's CUDA context is gone");
    }
    tl_cuda_relax(mode); /* another stream may be captured */
    return 0;
}

static void leave(int mode) {
    tl_cuda_restore(&mode);
    tl_cuda_leave();
}

static bool is_named(uint32_t arena, uint32_t extent) {
    for (uint32_t i = 0; i < latest.count; i++) {
        const struct part *part = &latest.parts[i];
        if (part->arena == arena && part->first <= extent && extent <= part->last) {
            return true;
        }
    }
    return false;
}

/* Hides what the latest call has not named; or shows what it has. Kernels that were launched before
 * have ended then. */
static int change_all(tierline_client *client, bool shows) {
    int code = 0;
    for (uint32_t a = 0; a < TIERLINE_MAX_ARENAS && code == 0; a++) {
        struct tl_arena *arena = &client->arenas[a];
        int mode = 0;
        if (!tl_gates_sealed(a)) {
            continue;
        }
        code = enter(arena, &mode);
        if (code != 0) {
            break;
        }
        bool waited = false;
        for (uint32_t e = 0; e < arena->extent_count && code == 0; e++) {
            if (arena->on_device.hidden[e] != shows || is_named(a, e) != shows) {
                continue;
            }
            bool waits = !waited && !(shows && captures_any());
            code = !waits ? 0
                          : tl_cuda_check(tl_cuda_synchronise(),
                                          "waiting for kernels that may read weights unseen");
            waited = true;
            code = code != 0 ? code : (shows ? tl_device_show : tl_device_hide)(arena, e);
        }
        leave(mode);
    }
    return code;
}

void tl_window_turn(void) {
    latest.count = 0;
}

int tl_window_name(uint32_t arena, const struct tl_weight *weight) {
    if (latest.count == latest.room) {
        uint32_t room = latest.room == 0 ? FIRST_PARTS : 2 * latest.room;
        struct part *larger = realloc(latest.parts, room * sizeof *larger);
        if (larger == NULL) {
            return tl_fail(TIERLINE_E_NO_MEMORY, "a call that names %u weights: out of memory",
                           room);
        }
        latest.parts = larger;
        latest.room = room;
    }
    latest.parts[latest.count++] = (struct part){arena, weight->first, weight->last};
    return 0;
}

int tl_window_meet(tierline_client *client, const void *function) {
    bool met = tl_window_knows(function);
    if ((met && !atomic_load(&careful)) || captures_any()) {
        return 0;
    }
    if (!atomic_load(&careful)) {
        tl_lock_acquire(&names_lock);
        noted = 0;
        tl_lock_release(&names_lock);
        atomic_store(&careful, true);
    }
    int code = change_all(client, false);
    _Atomic(const void *) *place = code == 0 && !met ? place_of(function) : NULL;
    if (place != NULL) {
        atomic_store(place, function);
    }
    return code;
}

int tl_window_shut(tierline_client *client) {
    latest.count = 0;
    return atomic_load(&careful) && !captures_any() ? change_all(client, false) : 0;
}

void tl_window_wait(struct tl_arena *arena, uint32_t past) {
    if (atomic_load(&careful)) {
        /* A stream that gives up publishes more than any count. */
        while (tierline_word_wait(&arena->control->published, past, LOOK_NS) != 0) {
        }
    }
}

int tl_window_show(tierline_client *client) {
    return atomic_load(&careful) ? change_all(client, true) : 0;
}

static int show_all(struct tl_arena *arena) {
    int mode = 0;
    int code = enter(arena, &mode);
    if (code != 0) {
        return code;
    }
    for (uint32_t e = 0; e < arena->extent_count && code == 0; e++) {
        code = tl_device_show(arena, e);
    }
    leave(mode);
    return code;
}

void tl_window_end(tierline_client *client, int result) {
    latest.count = 0;
    if (!atomic_load(&careful)) {
        return;
    }
    tl_window_blame(result);
    atomic_store(&careful, false);
    for (uint32_t a = 0; a < TIERLINE_MAX_ARENAS && result == ABI_SUCCESS; a++) {
        if (tl_gates_sealed(a) && show_all(&client->arenas[a]) != 0) {
            tl_gates_say("what a job had hidden cannot be shown");
        }
    }
}

/* ---- which kernels come in question */

void tl_window_note(const void *function) {
    if (function == NULL || !atomic_load_explicit(&careful, memory_order_relaxed)) {
        return;
    }
    const char *name = NULL;
    void *asked = (void *)(uintptr_t)function; /* NOLINT(performance-no-int-to-ptr) */
    if (TL_CUDA(USED, cuFuncGetName, &name, asked) != ABI_SUCCESS &&
        TL_CUDA(USED, cuKernelGetName, &name, asked) != ABI_SUCCESS) {
        name = "one without a name";
    }
    tl_lock_acquire(&names_lock);
    char fresh[NAME_BYTES];
    snprintf(fresh, sizeof fresh, "%s", name);
    uint32_t at = 0;
    while (at < noted && strcmp(names[at], fresh) != 0) {
        at++;
    }
    noted += at == noted && noted < MOST_NAMES;
    at = at < noted ? at : noted - 1;
    memmove(names[1], names[0], at * NAME_BYTES);
    memcpy(names[0], fresh, NAME_BYTES);
    tl_lock_release(&names_lock);
}

/* The agent keeps it for the next process of the task, which is to stream nothing. */
static void tell(const char *list) {
    tierline_client *client = tl_gates.client;
    struct tlp_message message = {.type = TLP_NOTICE};
    message.notice.kind = TLP_NOTICE_KIND_READS_UNSEEN;
    memcpy(message.notice.text, list, strnlen(list, sizeof message.notice.text - 1));
    tl_lock_acquire(&client->lock);
    tl_send_one_way(client, &message);
    tl_lock_release(&client->lock);
}

void tl_window_blame(int result) {
    static atomic_bool said;
    if (result != ABI_ILLEGAL_ADDRESS || !atomic_load(&careful) || atomic_exchange(&said, true)) {
        return;
    }
    char list[MOST_NAMES * (NAME_BYTES + 2)] = "";
    size_t length = 0;
    tl_lock_acquire(&names_lock);
    for (uint32_t i = 0; i < noted; i++) {
        length += (size_t)snprintf(list + length, sizeof list - length, "%s%s", i > 0 ? ", " : "",
                                   names[i]);
    }
    tl_lock_release(&names_lock);
    standard_error_say(
        "tierline: a kernel read where no weight is now: it found a weight's address by another "
        "way than its parameters, and would have read another layer's bytes. It is one of those "
        "that were launched last (the latest first): %s. The next process of the task streams "
        "nothing; to stream the rest, keep what that kernel reads resident (swap.objects)\n",
        list);
    tell(list);
}
