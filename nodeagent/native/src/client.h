/* The state of one client, and the calls between the modules that share it.
 *
 * Invariants:
 *  - Everything below `lock` is touched only with it held, except by a thread that re-attaches
 *    (link == TL_LINK_ATTACHING): it alone uses the connection, and reads `offer` and what never
 *    changes in a sealed arena; and by one that makes an arena's memory, or gives it back: the
 *    arena is its own meanwhile. A sealed arena goes only while the link is up.
 *  - No arena memory is read or written with the lock held: a thread that faults on arena memory
 *    therefore never holds the lock, and the fault handler may take it.
 *  - A request waits without the lock; whoever waits and finds no reader reads for all.
 */
#ifndef TIERLINE_CLIENT_H
#define TIERLINE_CLIENT_H

#include "arena.h"
#include "connection.h"
#include "error.h"
#include "keeper.h"
#include "open_lease.h"
#include "tierline/protocol.h"
#include "tierline/tierline.h"
#include "words.h"
#include "workspace.h"

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
    int *resident; /* extent_count of them, -1 until they come */
    int *ring;     /* TL_MAX_RING_SLOTS of them */
    int control;
};

struct tl_job {
    bool active;
    bool granted;
    bool revoked;
    bool acknowledged; /* that it was revoked */
    bool ending;       /* JOB_END is under way: no gate opens anything any more */
    bool yielding;     /* YIELD is under way: the device is somebody else's */
    bool taken;        /* by the open lease of this connection, and not given back */
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
    uint64_t reach_bytes; /* of the workspace */
    uint64_t revoked_job; /* what a REVOKE named during the exchange; 0: none */
    int lease;            /* the file of the open lease that came with it; -1: none */
    bool warmups_take;    /* and what is no job may take it, too */
    bool answered;        /* an agent said something, whether it took this client or not */
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
    const struct tl_memory *memory;
    tierline_terms terms;

    enum tl_link link;
    bool reading;        /* a thread polls the socket for all */
    bool gave_up;        /* the last attempt to reach the agent failed */
    uint32_t generation; /* grows with each connection */
    uint32_t failures;   /* grows with each attempt that failed for good */
    uint32_t next_sequence;
    uint32_t unawaited; /* the last request whose answer nobody waits for */
    uint64_t looked_ns; /* when a gate last looked at the socket */
    uint32_t waiting;   /* threads that wait for the agent; read without the lock */
    char reason[256];   /* why the link is down */
    struct tl_pending *pending;
    struct tl_offer offer;
    struct tl_connection connection;
    uint8_t frame[TL_UNTOLD_BYTES + TLP_MAX_FRAME]; /* where frames are encoded */
    uint8_t untold[TL_UNTOLD_BYTES]; /* messages: whatever is sent next goes behind them */
    size_t untold_bytes;

    uint8_t *staging;
    int staging_descriptor;
    uint32_t staging_slots;
    uint64_t staging_taken; /* a bit per slot */

    struct tl_inbox inbox;
    struct tl_workspace workspace;
    struct tl_arena arenas[TIERLINE_MAX_ARENAS];
    struct tl_job job;
    struct tl_open_lease lease;
    bool warmups_take; /* the open lease may be taken for what is no job */
    struct tl_keeper keeper;
};

/* client.c: 0, or a code if the client cannot be used here. */
int tl_check_usable(tierline_client *client);
/* client.c: a client of its own, and its end. 0 or a code. */
int tl_connect(const char *socket_path, const char *process_name, uint32_t device,
               tierline_client **out);
void tl_close(tierline_client *client);
/* A bit an arena that is sealed; with the lock held. */
uint32_t tl_sealed_arenas(const tierline_client *client);

/* request.c; all with the lock held, which they release while they wait. */
enum tl_persistence { TL_REPEAT_AFTER_RECONNECT, TL_FAIL_ON_RECONNECT };
/* Around each wait for the agent. */
void tl_waits_begin(tierline_client *client);
void tl_waits_end(tierline_client *client);
int tl_request(tierline_client *client, const struct tlp_message *message, uint16_t expected,
               struct tlp_message *reply, enum tl_persistence persistence);
/* Sends JOB_END and lets its answer come when it may: what is sent next is behind it anyway. */
int tl_send_unawaited(tierline_client *client, const struct tlp_message *message);
int tl_send_one_way(tierline_client *client, const struct tlp_message *message);
/* Leaves a message, of TL_UNTOLD_FRAME bytes at most, to whatever is sent next, or to tl_tell. */
void tl_tell_later(tierline_client *client, const struct tlp_message *message);
void tl_tell(tierline_client *client);
int tl_ensure_connected(tierline_client *client);
/* Makes one attempt, if the link is down and nobody reads from it. 0 or a code. */
int tl_try_to_connect(tierline_client *client);
void tl_break_link(tierline_client *client);
void tl_pump(tierline_client *client, int timeout_ms);
/* Reads what has come without waiting. */
void tl_look(tierline_client *client);

/* attach.c; without the lock. One attempt: HELLO, staging, then every sealed arena. */
int tl_attach(tierline_client *client);

/* load.c: takes the descriptors of an FDS frame into the inbox; 0, or -1 to break the link. */
int tl_inbox_descriptors(tierline_client *client, const struct tlp_fds *fds);
int tl_inbox_reserved(tierline_client *client, const struct tlp_reserved *reserved);

/* fetch.c; with the lock held. Gives an extent right bytes in private memory. */
int tl_fetch_private(tierline_client *client, uint32_t index, uint32_t extent, bool writable);
/* Takes an extent's right bytes out of staging memory, with the lock held. 0 or a code. */
typedef int tl_bytes_taker(struct tl_arena *arena, uint32_t extent, const uint8_t *bytes,
                           uint64_t length, void *into);
/* Asks the agent for them until they have come, and has them taken. 0 or a code. */
int tl_fetch_bytes(tierline_client *client, uint32_t index, uint32_t extent, tl_bytes_taker *take,
                   void *into);
/* Into memory of the caller's, of extent_bytes. */
tl_bytes_taker tl_copy_bytes;
uint32_t tl_take_staging_slot(tierline_client *client);
void tl_return_staging_slot(tierline_client *client, uint32_t slot);

/* job.c; with the lock held. Begins a job; TL_BUSY if another one is active and `patient` is false.
 * Ends it, or begins its stream again, when nothing reads its arena any more. */
#define TL_BUSY 1
int tl_job_begin(tierline_client *client, const struct tlp_job_begin *asked, bool patient);
int tl_job_end(tierline_client *client, uint64_t number, uint64_t workspace_peak_bytes);
int tl_job_rewind(tierline_client *client, uint32_t arena);
/* Acknowledges that the job in progress was revoked. */
void tl_job_acknowledge(tierline_client *client);
/* Answers a REVOKE of the job in progress; TIERLINE_E_REVOKED or 0. */
int tl_heed_revocation(tierline_client *client);

/* yields.c; with the lock held. Gives the device away if the agent asks for it, and returns when
 * the job has it again: 0, TIERLINE_E_REVOKED, or why that will not happen. */
int tl_job_heed_yield(tierline_client *client);
/* Says that the job gives the device away, and that its stream needs `position` first; returns when
 * it has the device again, or why that will not happen. */
int tl_job_yield(tierline_client *client, uint32_t position);
/* Waits until no thread yields. */
void tl_job_await_return(tierline_client *client);

/* faults.c: the addresses whose faults are ours, and the handler (put on top again if somebody
 * replaced it). */
int tl_faults_watch(tierline_client *client, uint32_t arena);
void tl_faults_forget(const tierline_client *client, uint32_t arena);
int tl_faults_install(void);

#endif
