/* A hash table of live handles, linear probing, doubled at half load. See objects.h. */
#include "objects.h"

#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>

struct slot {
    const void *object; /* NULL free, TOMBSTONE once used */
    enum object_kind kind;
};

static const char tombstone;
#define TOMBSTONE ((const void *)&tombstone)

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct slot *slots;
static size_t capacity, filled; /* filled counts tombstones */

static size_t slot_of(const void *object) {
    return (size_t)((uintptr_t)object * 0x9e3779b97f4a7c15U >> 20) & (capacity - 1);
}

static struct slot *slot_find(const void *object, enum object_kind kind) {
    if (capacity == 0 || object == NULL) {
        return NULL;
    }
    for (size_t i = slot_of(object); slots[i].object != NULL; i = (i + 1) & (capacity - 1)) {
        if (slots[i].object == object && slots[i].kind == kind) {
            return &slots[i];
        }
    }
    return NULL;
}

static void slot_put(const void *object, enum object_kind kind) {
    size_t i = slot_of(object);
    while (slots[i].object != NULL) {
        i = (i + 1) & (capacity - 1);
    }
    slots[i] = (struct slot){object, kind};
    filled++;
}

static bool table_grow(void) {
    size_t old_capacity = capacity;
    struct slot *old = slots;
    size_t live = 0;
    for (size_t i = 0; i < old_capacity; i++) {
        live += old[i].object != NULL && old[i].object != TOMBSTONE;
    }
    size_t wanted = 256;
    while (wanted < live * 4) {
        wanted *= 2;
    }
    struct slot *fresh = calloc(wanted, sizeof *fresh);
    if (fresh == NULL) {
        return false;
    }
    slots = fresh;
    capacity = wanted;
    filled = 0;
    for (size_t i = 0; i < old_capacity; i++) {
        if (old[i].object != NULL && old[i].object != TOMBSTONE) {
            slot_put(old[i].object, old[i].kind);
        }
    }
    free(old);
    return true;
}

bool object_add(const void *object, enum object_kind kind) {
    pthread_mutex_lock(&lock);
    bool room = (filled + 1) * 2 <= capacity || table_grow();
    if (room) {
        slot_put(object, kind);
    }
    pthread_mutex_unlock(&lock);
    return room;
}

bool object_is(const void *object, enum object_kind kind) {
    pthread_mutex_lock(&lock);
    bool found = slot_find(object, kind) != NULL;
    pthread_mutex_unlock(&lock);
    return found;
}

bool object_remove(const void *object, enum object_kind kind) {
    pthread_mutex_lock(&lock);
    struct slot *slot = slot_find(object, kind);
    if (slot != NULL) {
        slot->object = TOMBSTONE;
    }
    pthread_mutex_unlock(&lock);
    return slot != NULL;
}
