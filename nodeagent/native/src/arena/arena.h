/* An arena: a range of addresses, what backs each extent, and which layers read it.
 *
 * It maps and protects; it talks to nobody.
 *
 * Invariants of a sealed arena:
 *  - an extent can be read only while its bytes are right: resident, streamed and not yet given
 *    back, or private;
 *  - an extent is closed (PROT_NONE) before `consumed` tells the agent that its slot is free;
 *  - `base` never changes, and no part of the range is ever unmapped before tl_arena_destroy.
 */
#ifndef TIERLINE_ARENA_H
#define TIERLINE_ARENA_H

#include "arena/spares.h"
#include "tierline/tierline.h"
#include "wire/descriptor.h"

#include <stdbool.h>
#include <stdint.h>

#define TL_MAX_RING_SLOTS 4096U
#define TL_NOT_STREAMED UINT32_MAX
#define TL_RESIDENT_BIT 0x80000000U
#define TL_DIGEST_BYTES 32U
#define TL_CONTROL_BYTES 4096U

enum tl_arena_state {
    TL_ARENA_NONE,
    TL_ARENA_LOADING,
    TL_ARENA_SEALED,
    TL_ARENA_LOST,      /* the connection broke before it was sealed */
    TL_ARENA_LEAVING,   /* being freed: it belongs to the thread that does */
    TL_ARENA_INHERITED, /* in a fork's child: the parent has it sealed (forks.h) */
};

enum tl_extent_state {
    TL_EXTENT_RESIDENT, /* readable always */
    TL_EXTENT_CLOSED,   /* its ring slot is mapped and cannot be read */
    TL_EXTENT_OPEN,     /* its ring slot holds its bytes */
    TL_EXTENT_PRIVATE,  /* a private copy until the next job, or longer while it is held */
    TL_EXTENT_KEPT,     /* a private copy for ever: it was written, or may be read unseen */
};

/* The control page, shared with the agent (its offsets are part of the protocol). */
struct tl_control {
    uint32_t published;
    uint8_t apart[60]; /* the two sides' words lie in different cache lines */
    uint32_t consumed;
    uint8_t farther[60];
    uint32_t asked; /* on a GPU: the agent asks the job to give the device away; else 0 */
};

/* How a layer stands to the stream, in counts of streamed extents. */
struct tl_gate {
    uint32_t needs;    /* published must reach this before the layer runs */
    uint32_t keeps;    /* at its begin, all below this can go */
    uint32_t releases; /* at its end, all below this can go */
    uint32_t lowest;   /* the first that the layer reads; as `needs` if it reads none */
};

struct tl_arena;

/* What differs between memory of the CPU and of a GPU. Each returns 0 or a code. What makes memory
 * or gives it back may wait for all work of the GPU. */
struct tl_memory {
    int (*reserve)(struct tl_arena *arena);  /* sets base: addresses that nothing can read */
    void (*release)(struct tl_arena *arena); /* undoes all of it, also half done, or undone */
    void (*abandon)(struct tl_arena *arena); /* in a fork's child: see tl_arena_abandon */
    int (*accept)(struct tl_arena *arena);   /* checks what the agent sent; control is mapped */
    int (*map)(struct tl_arena *arena);      /* every extent: resident ones readable */
    int (*protect)(struct tl_arena *arena, uint32_t first, uint32_t end, bool readable);
    int (*restore)(struct tl_arena *arena, uint32_t extent); /* its ring slot, for a private copy */
    /* Has its descriptors again, as far as that can be, that the program has closed. */
    void (*recover)(struct tl_arena *arena);
};

/* A tensor of an arena on a GPU, by the extents in which it lies, both ends included. */
struct tl_weight {
    uint64_t offset, bytes;
    uint32_t first, last;
};

/* What only an arena on a GPU has. */
struct tl_device_arena {
    void *context;
    int device;
    uint64_t published, consumed;       /* device addresses of the flag words */
    uint64_t *resident, *ring;          /* handles of cuMemCreate; 0: none */
    uint64_t *private;                  /* per extent, of a private copy; 0: none */
    uint32_t private_count, kept_count; /* kept ones are among both */
    bool *written; /* per extent: its private copy may hold other bytes than the agent has */
    uint32_t written_count;
    uint32_t mapped; /* extents below are */
    uint64_t slots;  /* addresses at which the ring slots can be written, one after the other */
    uint32_t slots_mapped;
    uint64_t desk;     /* addresses of one extent, at which a private copy is written */
    bool *hidden;      /* per extent: nothing is mapped in its place */
    bool *unseen;      /* per extent: resident, and launches may read it that do not name it */
    uint32_t *returns; /* per extent: how often the stream began at it again in this job */
    bool registered;   /* the control page */
    uint32_t weight_count;
    struct tl_weight *weights;
    tierline_place around; /* its addresses, with what is kept free before and after them */
    uint32_t old_count;
    tierline_place *old; /* where its weights lay before (places.h) */
};

struct tl_arena {
    enum tl_arena_state state;
    const struct tl_memory *memory;
    struct tl_device_arena on_device;
    uint8_t *base;
    struct tl_spares *spares; /* on the CPU, once it is mapped; may be NULL */
    uint8_t *slots;  /* on the CPU: the ring once more, unreadable; mappings are made from it */
    uint8_t *legacy; /* on the CPU: what is shared with forked children (forks.h); or NULL */
    uint64_t legacy_bytes;
    uint64_t extent_bytes;
    uint64_t weight_bytes;
    uint64_t pinned_bytes;
    uint32_t extent_count;
    uint32_t resident_count;
    uint32_t ring_slots;
    uint32_t streamed_count;
    uint32_t *placement;     /* as in RESERVED */
    uint32_t *stream_index;  /* per extent: j, or TL_NOT_STREAMED */
    uint32_t *stream_extent; /* per j: the extent */
    uint64_t *lengths;       /* per extent: bytes stored */
    uint8_t *digests;        /* per extent */
    uint8_t *states;         /* per extent: enum tl_extent_state */
    uint32_t *holds;         /* per extent: transfers that need its private copy (holds.h) */
    struct tl_descriptor *resident;
    struct tl_descriptor *ring;
    struct tl_descriptor control_descriptor;
    struct tl_control *control;

    uint32_t layer_count;
    tierline_layer *layers;
    struct tl_gate *gates;

    uint32_t users;    /* threads that wait for it without the lock; it is not freed meanwhile */
    uint32_t cursor;   /* the layer that should begin next */
    uint32_t opened;   /* streamed extents below this have been opened in this job */
    uint32_t consumed; /* what the control page says */
};

/* Reserves the addresses; nothing can be read. 0 or a code. */
int tl_arena_create(struct tl_arena *arena, const struct tl_memory *memory, uint64_t extent_bytes,
                    uint64_t weight_bytes, uint64_t pinned_bytes);
/* Unmaps the range and closes every descriptor; state becomes TL_ARENA_NONE. */
void tl_arena_destroy(struct tl_arena *arena);
/* After fork: the range stays reserved, private copies can be read and nothing else; descriptors
 * are closed. */
void tl_arena_abandon(struct tl_arena *arena);

/* Checks and numbers the placement (arena->placement, resident_count, ring_slots). 0 or a code. */
int tl_arena_place(struct tl_arena *arena);
/* Maps the control page and checks the descriptors. 0 or a code. */
int tl_arena_accept(struct tl_arena *arena);
/* Computes the gates. 0 or a code. */
int tl_arena_set_layers(struct tl_arena *arena, const tierline_layer *layers, uint32_t count);

uint64_t tl_arena_bytes(const struct tl_arena *arena);
/* The number of streamed extents below `extent`. */
uint32_t tl_streamed_below(const struct tl_arena *arena, uint32_t extent);
uint8_t *tl_extent_address(const struct tl_arena *arena, uint32_t extent);
/* Bytes of the arena that lie in an extent: extent_bytes, less in the last one. */
uint64_t tl_extent_length(const struct tl_arena *arena, uint32_t extent);

static inline bool tl_extent_is_private(const struct tl_arena *arena, uint32_t extent) {
    return arena->states[extent] == TL_EXTENT_PRIVATE || arena->states[extent] == TL_EXTENT_KEPT;
}
/* Copies that last for a job. */
static inline uint32_t tl_passing_copies(const struct tl_arena *arena) {
    return arena->on_device.private_count - arena->on_device.kept_count;
}
/* Opens the streamed extents [from, to) that are closed. 0 or a code. */
int tl_arena_open(struct tl_arena *arena, uint32_t from, uint32_t to);
/* Closes the streamed extents [from, to) that are open. 0 or a code. */
int tl_arena_close(struct tl_arena *arena, uint32_t from, uint32_t to);
/* Closes everything and drops private copies that are neither kept nor held: the state before a
 * job. */
int tl_arena_reset(struct tl_arena *arena);

#endif
