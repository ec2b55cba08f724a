/* See ledger.h. Open addressing under one mutex; no driver call is made while it is held.
 *
 * Deleting shifts later entries of a run back, so there are no tombstones and a table that only
 * turns over never grows.
 */
#include "budget/ledger.h"

#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "budget/budget.h"
#include "budget/changes.h"
#include "driver/driver.h"

struct holding {
    enum tierline_holding kind;
    bool exported;
    const void *context; /* that was current when it was made */
    uint64_t bytes;
    uint64_t charged;
    uint64_t references; /* over all names */
};

struct name {
    uint64_t key;
    uint64_t references; /* 0: an empty slot */
    uint64_t span;       /* bytes of a mapping; 0 for other names */
    struct holding *holding;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct name *table;
static size_t slots; /* 0 or a power of two */
static size_t used;
static tierline_held held;
static uint64_t most_on_device; /* since it was asked for */

/* Not what other processes made. */
static uint64_t on_device(void) {
    return held.bytes[TIERLINE_HELD_DEVICE] + held.bytes[TIERLINE_HELD_VIRTUAL] +
           held.bytes[TIERLINE_HELD_POOL] + held.bytes[TIERLINE_HELD_MANAGED] +
           held.bytes[TIERLINE_HELD_ARRAY] + held.graph_bytes;
}

/* The figures moved. */
static void note(void) {
    uint64_t now = on_device();
    most_on_device = now > most_on_device ? now : most_on_device;
    changes_note();
}

static size_t slot_of(uint64_t key) {
    return (size_t)((key * UINT64_C(0x9e3779b97f4a7c15)) >> 32) & (slots - 1);
}

static struct name *find(uint64_t key) {
    if (slots == 0) {
        return NULL;
    }
    for (size_t i = slot_of(key); table[i].references != 0; i = (i + 1) & (slots - 1)) {
        if (table[i].key == key) {
            return &table[i];
        }
    }
    return NULL;
}

static void place(struct name name) {
    size_t i = slot_of(name.key);
    while (table[i].references != 0) {
        i = (i + 1) & (slots - 1);
    }
    table[i] = name;
}

static bool grow(void) {
    struct name *old = table;
    size_t old_slots = slots;
    size_t more = slots == 0 ? 256 : slots * 2;
    struct name *fresh = calloc(more, sizeof *fresh);
    if (fresh == NULL) {
        return false;
    }
    table = fresh;
    slots = more;
    for (size_t i = 0; i < old_slots; i++) {
        if (old[i].references != 0) {
            place(old[i]);
        }
    }
    free(old);
    return true;
}

static bool insert(struct name name) {
    if ((used + 1) * 4 > slots * 3 && !grow()) {
        return false;
    }
    place(name);
    used++;
    return true;
}

static void erase(struct name *name) {
    size_t hole = (size_t)(name - table);
    table[hole].references = 0;
    used--;
    for (size_t i = (hole + 1) & (slots - 1); table[i].references != 0; i = (i + 1) & (slots - 1)) {
        size_t home = slot_of(table[i].key);
        /* An entry may move into the hole unless its home lies after the hole, on the way to it. */
        if (((i - home) & (slots - 1)) >= ((i - hole) & (slots - 1))) {
            table[hole] = table[i];
            table[i].references = 0;
            hole = i;
        }
    }
}

/* Gives back references of a holding; the last one ends it. */
static void let_go(struct holding *holding, uint64_t references) {
    holding->references -= references;
    if (holding->references > 0) {
        return;
    }
    held.bytes[holding->kind] -= holding->bytes;
    held.count[holding->kind]--;
    held.exported_bytes -= holding->exported ? holding->bytes : 0;
    budget_release(holding->charged);
    free(holding);
    note();
}

/* Takes a name out with all its references. */
static void drop(struct name *name) {
    struct holding *holding = name->holding;
    uint64_t references = name->references;
    erase(name);
    let_go(holding, references);
}

void ledger_add(enum tierline_holding kind, uint64_t key, uint64_t bytes, uint64_t charged) {
    const void *context = driver_context();
    pthread_mutex_lock(&lock);
    struct name *known = find(key);
    if (known != NULL && kind == TIERLINE_HELD_IMPORTED && known->holding->kind == kind) {
        known->references++; /* the driver itself counts how often an IPC handle was opened */
        known->holding->references++;
        pthread_mutex_unlock(&lock);
        return;
    }
    if (known != NULL) {
        drop(known); /* it ended in a way that no hook saw */
    }
    if (charged > 0 && bytes > charged) {
        budget_add(bytes - charged);
        charged = bytes;
    }
    struct holding *holding = malloc(sizeof *holding);
    if (holding != NULL) {
        *holding = (struct holding){
            .kind = kind, .context = context, .bytes = bytes, .charged = charged, .references = 1};
    }
    if (holding == NULL ||
        !insert((struct name){.key = key, .references = 1, .holding = holding})) {
        free(holding);
        budget_release(charged);
        held.uncounted++;
    } else {
        held.bytes[kind] += bytes;
        held.count[kind]++;
        note();
    }
    pthread_mutex_unlock(&lock);
}

void ledger_note_graph(uint64_t bytes) {
    pthread_mutex_lock(&lock);
    held.graph_bytes += bytes;
    note();
    pthread_mutex_unlock(&lock);
}

void ledger_note_refusal(void) {
    pthread_mutex_lock(&lock);
    held.refused_exports++;
    pthread_mutex_unlock(&lock);
}

void ledger_leave(uint64_t key, struct ledger_leaving *leaving) {
    *leaving = (struct ledger_leaving){.key = key};
    pthread_mutex_lock(&lock);
    struct name *name = find(key);
    if (name != NULL && name->span == 0) {
        leaving->holding = name->holding;
        leaving->references = 1;
        if (name->references > 1) {
            name->references--;
        } else {
            erase(name);
        }
    }
    pthread_mutex_unlock(&lock);
}

void ledger_left(struct ledger_leaving *leaving) {
    if (leaving->holding != NULL) {
        pthread_mutex_lock(&lock);
        let_go(leaving->holding, leaving->references);
        pthread_mutex_unlock(&lock);
    }
}

void ledger_stay(struct ledger_leaving *leaving) {
    if (leaving->holding == NULL) {
        return;
    }
    pthread_mutex_lock(&lock);
    struct name *name = find(leaving->key);
    if (name != NULL && name->holding == leaving->holding) {
        name->references++;
    } else if (name != NULL ||
               !insert((struct name){
                   .key = leaving->key, .references = 1, .holding = leaving->holding})) {
        let_go(leaving->holding, leaving->references);
        held.uncounted++;
    }
    pthread_mutex_unlock(&lock);
}

/* The mapping that covers an address. Linear, and rare: handles are usually known by themselves. */
static struct name *covering(uint64_t address) {
    for (size_t i = 0; i < slots; i++) {
        const struct name *name = &table[i];
        if (name->references != 0 && name->span != 0 && address - name->key < name->span) {
            return &table[i];
        }
    }
    return NULL;
}

void ledger_share(uint64_t key, uint64_t address) {
    pthread_mutex_lock(&lock);
    struct name *name = find(key);
    struct name *mapping = name == NULL ? covering(address) : NULL;
    if (name != NULL) {
        name->references++;
        name->holding->references++;
    } else if (mapping != NULL) {
        struct holding *holding = mapping->holding;
        if (insert((struct name){.key = key, .references = 1, .holding = holding})) {
            holding->references++;
        } else {
            held.uncounted++;
        }
    }
    pthread_mutex_unlock(&lock);
}

void ledger_map(uint64_t address, uint64_t bytes, uint64_t handle_key) {
    pthread_mutex_lock(&lock);
    struct name *handle = find(handle_key);
    if (handle != NULL && bytes > 0) {
        struct holding *holding = handle->holding;
        if (holding->bytes == 0) {
            holding->bytes = bytes; /* an imported handle tells its size when it is mapped */
            held.bytes[holding->kind] += bytes;
            note();
        }
        if (insert((struct name){
                .key = address, .references = 1, .span = bytes, .holding = holding})) {
            holding->references++;
        } else {
            held.uncounted++;
        }
    }
    pthread_mutex_unlock(&lock);
}

void ledger_unmap(uint64_t address, uint64_t bytes) {
    pthread_mutex_lock(&lock);
    for (uint64_t done = 0; done < bytes;) {
        struct name *name = find(address + done);
        if (name == NULL || name->span == 0) {
            break;
        }
        done += name->span;
        drop(name);
    }
    pthread_mutex_unlock(&lock);
}

void ledger_export(uint64_t key) {
    pthread_mutex_lock(&lock);
    struct name *name = find(key);
    name = name == NULL ? covering(key) : name;
    struct holding *holding = name == NULL ? NULL : name->holding;
    if (holding != NULL && !holding->exported &&
        (holding->kind == TIERLINE_HELD_DEVICE || holding->kind == TIERLINE_HELD_VIRTUAL)) {
        holding->exported = true;
        held.exported_bytes += holding->bytes;
        note();
    }
    pthread_mutex_unlock(&lock);
}

static bool is_memory(const struct name *name, struct ledger_memory *out) {
    enum tierline_holding kind = name->holding->kind;
    bool by_address = name->key < UINT64_C(1) << 61;
    uint64_t host = LEDGER_HOST(name->key);
    bool by_pointer = kind == TIERLINE_HELD_HOST && host < UINT64_C(1) << 61;
    *out = (struct ledger_memory){
        .address = by_pointer ? host : name->key,
        .bytes = name->span != 0 ? name->span : name->holding->bytes,
        .on_host = by_pointer,
    };
    return by_pointer || (by_address && kind != TIERLINE_HELD_ARRAY);
}

struct ledger_memory *ledger_list(uint32_t *count) {
    pthread_mutex_lock(&lock);
    struct ledger_memory *list = calloc(used + 1, sizeof *list);
    *count = 0;
    for (size_t i = 0; list != NULL && i < slots; i++) {
        if (table[i].references != 0 && is_memory(&table[i], &list[*count])) {
            (*count)++;
        }
    }
    pthread_mutex_unlock(&lock);
    return list;
}

/* Pools belong to a device and handles to the process, but the rest ends with its context. */
static bool ends_with_context(enum tierline_holding kind) {
    return kind == TIERLINE_HELD_DEVICE || kind == TIERLINE_HELD_MANAGED ||
           kind == TIERLINE_HELD_ARRAY || kind == TIERLINE_HELD_HOST ||
           kind == TIERLINE_HELD_SPILLED || kind == TIERLINE_HELD_SWAPPED;
}

void ledger_forget_context(const void *context) {
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < slots;) {
        struct name *name = &table[i];
        if (name->references != 0 && name->span == 0 && name->holding->context == context &&
            name->key < UINT64_C(1) << 63 && ends_with_context(name->holding->kind)) {
            drop(name); /* another entry may have moved into this slot */
        } else {
            i++;
        }
    }
    pthread_mutex_unlock(&lock);
}

void ledger_fork_before(void) {
    pthread_mutex_lock(&lock);
}

void ledger_fork_after(bool in_child) {
    if (in_child) {
        for (size_t i = 0; i < slots; i++) {
            if (table[i].references != 0) {
                struct holding *holding = table[i].holding;
                holding->references -= table[i].references;
                if (holding->references == 0) {
                    free(holding);
                }
            }
        }
        free(table);
        table = NULL;
        slots = 0;
        used = 0;
        memset(&held, 0, sizeof held);
        most_on_device = 0;
        budget_forget();
        changes_forget();
    }
    pthread_mutex_unlock(&lock);
}

TIERLINE_EXPORT void tierline_interposer_held(tierline_held *out) {
    pthread_mutex_lock(&lock);
    *out = held;
    pthread_mutex_unlock(&lock);
    out->charged_bytes = budget_charged();
    out->budget_bytes = budget_bytes();
}

static uint64_t unswappable(const tierline_held *of) {
    return of->bytes[TIERLINE_HELD_POOL] + of->bytes[TIERLINE_HELD_MANAGED] +
           of->bytes[TIERLINE_HELD_ARRAY] + of->bytes[TIERLINE_HELD_IMPORTED] + of->graph_bytes +
           of->exported_bytes;
}

TIERLINE_EXPORT uint64_t tierline_interposer_unswappable_bytes(void) {
    tierline_held now;
    tierline_interposer_held(&now);
    return unswappable(&now);
}

TIERLINE_EXPORT uint64_t tierline_interposer_device_bytes(uint64_t *most) {
    pthread_mutex_lock(&lock);
    uint64_t now = on_device();
    if (most != NULL) {
        *most = most_on_device;
        most_on_device = now;
    }
    pthread_mutex_unlock(&lock);
    return now;
}

static void figures(struct changes_figures *now) {
    pthread_mutex_lock(&lock);
    *now = (struct changes_figures){.unswappable = unswappable(&held),
                                    .spilled = held.bytes[TIERLINE_HELD_SPILLED],
                                    .on_device = on_device()};
    pthread_mutex_unlock(&lock);
}

void ledger_tell(void) {
    changes_tell(figures);
}
