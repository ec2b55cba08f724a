/* The state of one client, which the floors above share.
 *
 * Invariants:
 *  - Everything below `lock` is touched only with it held, except by a thread that re-attaches
 *    (link == TL_LINK_ATTACHING): it alone uses the connection and the descriptors of sealed
 * arenas, and reads `offer` and what else never changes in a sealed arena; and by one that makes an
 * arena's memory, or gives it back: the arena is its own meanwhile. A sealed arena goes only while
 * the link is up.
 *  - No arena memory is read or written with the lock held: a thread that faults on arena memory
 *    therefore never holds the lock, and the fault handler may take it.
 *  - A request waits without the lock; a thread that waits and finds no reader reads for all.
 */
#ifndef TIERLINE_STATE_H
#define TIERLINE_STATE_H

#include "arena/arena.h"
#include "link/cached_lease.h"
#include "tierline/protocol.h"
#include "tierline/tierline.h"
#include "wire/connection.h"
#include "wire/error.h"
#include "wire/words.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum tl_link { TL_LINK_DOWN, TL_LINK_ATTACHING, TL_LINK_UP };

enum tl_progress { TL_WAITING, TL_DONE, TL_LOST };

/* Of JOB_TAKEN and JOB_RETURNED that wait for the next message: bytes of all, and at most of one.
 */
#define TL_UNTOLD_BYTES 1024
#define TL_UNTOLD_FRAME 64

/* A request whose reply has not come yet; lives on the requester's stack. */
struct tl_pending {
    struct tl_pending *next;
    uint32_t sequence;
    uint16_t expected;
    enum tl_progress progress;
    struct tlp_message reply;
};

/* Where RESERVED and the descriptors that follow it are collected; one reserve at a time. */
struct tl_inbox {
    bool open;
    bool placed; /* RESERVED has come */
    uint32_t arena;
    uint32_t extent_count;
    uint32_t resident_count;
    uint32_t ring_slots;
    uint32_t received; /* descriptors so far */
    uint32_t *placement;
    struct tl_descriptor *resident; /* extent_count of them, none until they come */
    struct tl_descriptor *ring;     /* TL_MAX_RING_SLOTS of them */
    struct tl_descriptor control;
};

struct tl_job {
    bool active;
    bool granted;
    bool revoked;
    bool acknowledged; /* that it was revoked */
    bool ending;       /* JOB_END is under way: no gate opens anything any more */
    bool yielding;     /* YIELD is under way: the device is somebody else's */
    bool taken;        /* by the cached lease of this connection, and not given back */
    uint64_t number;
    uint32_t arena; /* TIERLINE_NO_ARENA: the lease alone */
    uint32_t flags; /* TIERLINE_JOB_ */
    uint64_t release_ns;
    uint64_t deadline_ns;
    uint64_t revoke_asked; /* the job that a REVOKE named */
    tierline_job_stats stats;
};

/* What a thread that re-attaches may know, taken under the lock before it starts. */
struct tl_offer {
    uint32_t sealed_arenas; /* a bit per arena */
    uint64_t running_job;   /* 0: none */
    uint32_t job_arena;
    uint64_t release_ns;
    uint64_t deadline_ns;
    uint64_t reach_bytes;       /* of the workspace */
    uint64_t revoked_job;       /* what a REVOKE named during the exchange; 0: none */
    struct tl_descriptor lease; /* the file of the cached lease that came with it */
    bool warmups_take;          /* and what is no job may take it, too */
    bool answered;              /* in the last attempt an agent said something, whatever it was */
    bool refused;               /* it will not take back what this client has: no agent will */
};

/* What the device's kind decides. All without any lock, if nothing else is said. */
struct tl_backend {
    const struct tl_memory *memory;
    /* 0 or a code. A client begins; and goes: its job has ended and nobody reads its arenas. */
    int (*adopt)(tierline_client *client);
    void (*disown)(tierline_client *client);
    /* In a fork's child. */
    void (*forget)(void);
    /* There is a new connection. With or without the client's lock. */
    void (*connected)(void);
    /* An arena is about to be stored to or freed: an implicit job ends, so that nothing reads it.
     */
    int (*settle)(tierline_client *client);
    /* An arena was sealed, is leaving, or there is a workspace: what uses them is gated from now
     * on. */
    int (*show)(tierline_client *client);
    /* The agent has the bytes of an extent that may have been written: it is what it was. */
    int (*stored)(tierline_client *client, uint32_t index, uint32_t extent);
    /* The verbs of a job. */
    int (*job_begin)(tierline_client *client, const struct tlp_job_begin *asked, uint64_t *job);
    int (*job_end)(tierline_client *client, uint64_t job, uint64_t workspace_peak_bytes);
    int (*rewind)(tierline_client *client);
    /* With the client's lock. The agent took the lease of the job in progress back. */
    void (*revoked)(tierline_client *client);
    /* With the client's lock. How much of its workspace has content at the end of a job; `told` is
     * what the job's owner says. */
    uint64_t (*reach)(tierline_client *client, uint64_t told);
};

/* What becomes of messages that carry or announce descriptors; with the client's lock. Each returns
 * 0, or -1 to break the link. */
struct tl_receivers {
    int (*reserved)(tierline_client *client, const struct tlp_reserved *reserved);
    int (*arena_descriptors)(tierline_client *client, const struct tlp_fds *fds);
    int (*workspace_lent)(tierline_client *client, const struct tlp_workspace_lent *lent);
    int (*workspace_descriptors)(tierline_client *client, const struct tlp_fds *fds);
};

/* The thread that keeps a client connected (keeper.h). */
struct tl_keeper {
    bool running; /* its thread is */
    atomic_bool stopping;
    pthread_t thread;
};

/* What was lent of memory that is shared in turns (lease/workspace.h). */
struct tl_workspace {
    bool asked;     /* for the first time: descriptors may come */
    bool lent;      /* mapped */
    bool swapped;   /* the program's own memory lies in it (policy Swap) */
    uint32_t flags; /* TLP_WORKSPACE_FLAGS_ */
    uint32_t extent_count;
    uint32_t received; /* descriptors so far: the extents', then the backup's */
    struct tl_descriptor *descriptors;
    uint64_t asked_bytes;
    uint64_t base;
    uint64_t reach_bytes; /* of content when the last job ended */
    void *context;
    int device;
};

struct tl_forks_page;

/* What its forked children share with it (loading/forks.h). */
struct tl_forks {
    struct tl_forks_page *page; /* shared with descendants; NULL before the first fork */
    pthread_t thread;           /* answers them; only in the parent */
    bool running;
    bool held; /* the client's lock is, by the thread that forks */
};

struct tierline_client {
    struct tl_lock lock;
    struct tl_event changed;

    bool dropped; /* this process is a fork's child */
    char socket_path[108];
    char process_name[64];
    uint64_t reconnect_ns;
    uint64_t reattach_token;
    uint32_t device; /* TIERLINE_DEVICE_ */
    const struct tl_backend *backend;
    const struct tl_receivers *receivers;
    void (*forget)(void); /* in a fork's child; NULL: nobody else knows of this client */
    tierline_terms terms;

    enum tl_link link;
    bool reading;  /* a thread polls the socket for all */
    bool watching; /* the keeper polls it; as long the agent does not hear that it is closed */
    bool gave_up;  /* the last attempt to reach the agent failed */
    bool refused;  /* for good: nothing is asked of any agent any more */
    uint32_t generation; /* grows with each connection */
    uint32_t failures;   /* grows with each attempt that failed for good */
    uint32_t next_sequence;
    uint32_t unawaited; /* the last request whose answer nobody waits for */
    uint64_t looked_ns; /* when a gate last looked at the socket */
    uint32_t waiting;   /* threads that wait for the agent; read without the lock */
    uint32_t touched;   /* 1: there may be origins to give back; read without the lock */
    char reason[256];   /* why the link is down */
    struct tl_pending *pending;
    struct tl_offer offer;
    struct tl_connection connection;
    uint8_t frame[TL_UNTOLD_BYTES + TLP_MAX_FRAME]; /* where frames are encoded */
    uint8_t untold[TL_UNTOLD_BYTES]; /* messages: whatever is sent next goes after them */
    size_t untold_bytes;

    uint8_t *staging;
    uint32_t staging_slots;
    uint64_t staging_taken; /* a bit per slot */

    struct tl_inbox inbox;
    struct tl_workspace workspace;
    struct tl_arena arenas[TIERLINE_MAX_ARENAS];
    struct tl_job job;
    struct tl_cached_lease lease;
    bool warmups_take; /* the cached lease may be taken for what is no job */
    struct tl_keeper keeper;
    struct tl_forks forks;
};

/* 0, or a code if the client cannot be used here. */
int tl_check_usable(tierline_client *client);
/* A bit an arena that is sealed; with the lock held. */
uint32_t tl_sealed_arenas(const tierline_client *client);

#endif
