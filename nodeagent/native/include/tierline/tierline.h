/* libtierline: a process's view of streamed weights.
 *
 * A client asks the node agent for arenas, loads weights into them once, seals them, and from then
 * on reads them inside jobs, with a gate around each layer. Addresses never change. The library
 * decides no policy: what is resident and which job runs is the agent's business.
 *
 * Every function returns 0 or a negative TIERLINE_E_ code, and sets the calling thread's
 * tierline_last_error() when it fails. All functions may be called from any thread; close only
 * when no other call is in progress. After fork the child's copy of a client is dropped: its calls
 * return TIERLINE_E_FORKED and its arenas cannot be read.
 *
 * Sizes are bytes; times are CLOCK_MONOTONIC nanoseconds.
 */
#ifndef TIERLINE_H
#define TIERLINE_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TIERLINE_API __attribute__((visibility("default")))

/* Minus the ERROR codes of the protocol, then the library's own. */
enum tierline_error {
    TIERLINE_E_MALFORMED = -1,
    TIERLINE_E_UNSUPPORTED_VERSION = -2,
    TIERLINE_E_OUT_OF_ORDER = -3,
    TIERLINE_E_QUOTA = -4,
    TIERLINE_E_NOT_ADMITTED = -5,
    TIERLINE_E_NO_SPACE = -6,
    TIERLINE_E_CORRUPT = -7,
    TIERLINE_E_IO = -8,
    TIERLINE_E_REVOKED = -9, /* the job lost its lease; what it reads is still right, but slow */
    TIERLINE_E_INTERNAL = -10,
    TIERLINE_E_NESTED = -11,     /* no job: one of another process of the task waits for this one */
    TIERLINE_E_ARGUMENT = -20,   /* the call makes no sense; fix the caller */
    TIERLINE_E_STATE = -21,      /* not now: the arena is not sealed, no job runs, ... */
    TIERLINE_E_CONNECTION = -22, /* the agent cannot be reached, or makes no sense */
    TIERLINE_E_RETRY = -23,      /* the connection broke while loading: free, reserve, load again */
    TIERLINE_E_TIMEOUT = -24,
    TIERLINE_E_NO_MEMORY = -25,
    TIERLINE_E_SYSTEM = -26, /* a system call failed */
    TIERLINE_E_FORKED = -27,
    TIERLINE_E_WRITTEN = -28, /* on a GPU: weights may have been written; store these again */
    TIERLINE_E_GPU = -29, /* the GPU has ended the work of this process: a kernel faulted, say */
};

#define TIERLINE_DEVICE_CPU 0U
#define TIERLINE_DEVICE_CUDA 1U
#define TIERLINE_NO_ARENA 0xffffffffU
#define TIERLINE_MAX_ARENAS 16U
#define TIERLINE_TERMS_RECORD_OUTPUTS 1U
#define TIERLINE_TERMS_PREEMPTIBLE 2U
#define TIERLINE_TERMS_READS_UNSEEN 32U /* on a GPU: an earlier client has; stream nothing */
#define TIERLINE_JOB_WARMUP 1U
#define TIERLINE_LAYER_PINNED 1U
#define TIERLINE_NOTICE_STAYS_RESIDENT 1U
#define TIERLINE_NOTICE_LEFT_MANAGEMENT 2U
#define TIERLINE_NOTICE_ORDER_CHANGED 3U
#define TIERLINE_NOTICE_OVER_WORKSPACE 4U
#define TIERLINE_NOTICE_UNSWAPPABLE 5U  /* sent by the library itself */
#define TIERLINE_NOTICE_PINNED 6U       /* of an arena, whose extents are counted as such */
#define TIERLINE_NOTICE_READS_UNSEEN 7U /* sent by the library itself */

typedef struct tierline_client tierline_client;

typedef struct tierline_terms {
    uint64_t extent_bytes;
    uint64_t period_ns;
    uint64_t deadline_ns;
    uint32_t flags; /* TIERLINE_TERMS_ */
    uint32_t max_arenas;
    char task_name[64];
    char device_uuid[64]; /* of the GPU, as NVML writes it; empty on the CPU */
} tierline_terms;

/* The extents that a layer reads, both ends included; none if last_extent < first_extent. */
typedef struct tierline_layer {
    uint32_t first_extent;
    uint32_t last_extent;
} tierline_layer;

/* A tensor in an arena on a GPU: where its bytes lie. */
typedef struct tierline_weight_range {
    uint64_t offset;
    uint64_t bytes;
} tierline_weight_range;

/* Addresses of a GPU. */
typedef struct tierline_place {
    uint64_t address;
    uint64_t bytes;
} tierline_place;

/* A weight of an arena on the CPU, and the memory of the program's that it lay in before. */
typedef struct tierline_origin {
    const void *address;
    uint64_t bytes;
    uint64_t offset;
} tierline_origin;

typedef struct tierline_layer_profile {
    uint64_t weight_bytes;
    uint64_t compute_ns; /* the worst measured */
    uint32_t flags;      /* TIERLINE_LAYER_ */
    uint32_t reserved;
    char name[64]; /* UTF-8, ended by NUL */
} tierline_layer_profile;

typedef struct tierline_job_stats {
    uint64_t stall_ns;         /* waited at gates and for fetches */
    uint64_t fetched_bytes;    /* read past the ring */
    uint64_t streamed_extents; /* read through the ring */
} tierline_job_stats;

typedef struct tierline_statistics {
    uint64_t jobs;
    uint64_t misses;
    uint64_t streamed_bytes;
    uint64_t response_worst_ns;
} tierline_statistics;

/* The calling thread's last failure, one sentence; valid until its next failing call. */
TIERLINE_API const char *tierline_last_error(void);

/* Connects to the agent's socket for this task. TIERLINE_RECONNECT_S in the environment says how
 * long later calls wait for an agent that went away (seconds, default 30). */
TIERLINE_API int tierline_connect(const char *socket_path, const char *process_name,
                                  tierline_client **out);
/* The same for a device of the agent's: TIERLINE_DEVICE_CUDA is the GPU that terms.device_uuid
 * names. A process has one client on a GPU at most, in the context that is current when it
 * reserves.
 *
 * On a GPU a layer is a launch (or a copy) that reads weights, and the gates are there: once an
 * arena is sealed the library sees which of its weights each launch of this process names, and puts
 * stream memory operations before and after it. layer_begin and layer_end are not used. This needs
 * the library in LD_PRELOAD; without it `seal` refuses. Any order of launches is right; the sealed
 * order is fast. A launch outside a job takes the lease by itself, with the stream of the arena
 * whose weight it names, and gives it back 5 ms after the last call, when the GPU is done.
 * A call that cannot be given right bytes is answered with a CUDA error.
 *
 * A process whose memory is swapped whole (TIERLINE_SWAP, see interposer.h) has a client of its
 * own; this gives that one, and tierline_close leaves it. Its jobs are begun without an arena. */
TIERLINE_API int tierline_connect_device(const char *socket_path, const char *process_name,
                                         uint32_t device, tierline_client **out);
TIERLINE_API void tierline_close(tierline_client *client);
TIERLINE_API int tierline_get_terms(tierline_client *client, tierline_terms *out);

/* Loading. `reserve` gives an address range for ceil(weight_bytes / extent_bytes) extents that
 * nothing can read until `seal`; the first pinned_bytes stay resident. `store` returns when the
 * extent is durable. `seal` makes the arena readable in jobs; digest may be NULL. */
TIERLINE_API int tierline_reserve(tierline_client *client, uint32_t arena, uint64_t weight_bytes,
                                  uint64_t pinned_bytes, uint32_t largest_span_extents,
                                  void **base);
TIERLINE_API int tierline_store(tierline_client *client, uint32_t arena, uint32_t extent,
                                const void *data, uint64_t length);
/* On a GPU a program may write weights outside its jobs; job_begin then refuses with
 * TIERLINE_E_WRITTEN. Extents of a sealed arena that may have been written since they were stored:
 * writes at most `capacity` of them, and how many there are. Each is stored again as it is now,
 * between jobs; then it streams, or is resident, as before. */
TIERLINE_API int tierline_written(tierline_client *client, uint32_t arena, uint32_t *extents,
                                  uint32_t capacity, uint32_t *count);
/* On a GPU, before `seal`: which ranges of the arena are tensors. Launches are recognised by
 * addresses inside them. */
TIERLINE_API int tierline_weights(tierline_client *client, uint32_t arena,
                                  const tierline_weight_range *ranges, uint32_t count);
TIERLINE_API int tierline_seal(tierline_client *client, uint32_t arena,
                               const tierline_layer *layers, uint32_t layer_count,
                               uint8_t digest[32]);
TIERLINE_API int tierline_free(tierline_client *client, uint32_t arena);
/* On a GPU, once the program has given back the memory in which weights of a sealed arena lay
 * before: these addresses stay reserved until `tierline_free`, so that what was kept of them
 * faults. What the program still uses of that is left out. */
TIERLINE_API int tierline_vacated(tierline_client *client, uint32_t arena,
                                  const tierline_place *places, uint32_t count);

/* Origins. Once, after `seal`: nothing reads these weights there any more but code that keeps their
 * addresses. Their memory is given up, and stays the program's: it must not be freed before
 * `tierline_free`. Whatever touches it finds the weight's bytes there again. `closed`: the first so
 * many were; further mappings are not to be had. */
TIERLINE_API int tierline_origins(tierline_client *client, uint32_t arena,
                                  const tierline_origin *origins, uint32_t count, uint32_t *closed);
/* Not 0: there may be some to give back. It may be read at any time. */
TIERLINE_API const uint32_t *tierline_touched(const tierline_client *client);
/* Gives the next one back, by its place among its arena's, that was touched or whose weight was
 * written in the arena: the program may write it, and should use it in place of the arena from now
 * on. `cursor` is 0 at first. TIERLINE_E_STATE: there is none left. */
TIERLINE_API int tierline_give_back(tierline_client *client, uint64_t *cursor, uint32_t *arena,
                                    uint32_t *index, uint32_t *touched);

/* Jobs. `job_begin` returns when the job holds the lease; one job at a time per client, a second
 * thread waits. `arena` is the arena to stream, or TIERLINE_NO_ARENA. */
TIERLINE_API int tierline_job_begin(tierline_client *client, uint32_t arena, uint32_t flags,
                                    uint64_t release_ns, uint64_t deadline_ns, uint64_t *job);
TIERLINE_API int tierline_job_end(tierline_client *client, uint64_t job,
                                  uint64_t workspace_peak_bytes);
/* The job in progress reads its arena from the start again: its stream begins again, instead of
 * private copies of what it has passed. On a GPU launches do so by themselves. */
TIERLINE_API int tierline_rewind(tierline_client *client);
/* The figures of the job in progress, or of the last one. */
TIERLINE_API int tierline_get_job_stats(tierline_client *client, tierline_job_stats *out);

/* Gates. `layer_begin` returns when the layer's extents can be read; `layer_end` gives back those
 * that no later layer reads. Any order is correct; the learned order is fast. Inside `layer_begin`
 * the agent may let other jobs run first, if the task's plan says so: other threads of the job
 * should compute nothing meanwhile. */
TIERLINE_API int tierline_layer_begin(tierline_client *client, uint32_t arena, uint32_t layer);
TIERLINE_API int tierline_layer_end(tierline_client *client, uint32_t arena, uint32_t layer);

/* Reports. */
TIERLINE_API int tierline_output(tierline_client *client, uint64_t job,
                                 const uint8_t input_digest[32], const uint8_t output_digest[32]);
TIERLINE_API int tierline_ready(tierline_client *client, uint32_t flags, uint64_t *epoch_ns,
                                uint64_t *until_ns);
TIERLINE_API int tierline_profile(tierline_client *client, uint32_t arena,
                                  const tierline_layer_profile *layers, uint32_t layer_count,
                                  uint64_t workspace_bytes);
TIERLINE_API int tierline_notice(tierline_client *client, uint32_t kind, uint64_t size_bytes,
                                 const char *text);
TIERLINE_API int tierline_get_statistics(tierline_client *client, tierline_statistics *out);
/* How many threads wait for the agent now: for the lease, at a gate, or where they faulted. */
TIERLINE_API uint32_t tierline_waiting(const tierline_client *client);
/* Whether others wait for what this client was granted, as far as its agent says so (a task that
 * trains): it should end its job where it can, and begin another one for the rest. */
TIERLINE_API uint32_t tierline_wanted(tierline_client *client);

/* For code in Python, which is known by the addresses of its functions only: there is one build
 * for all its versions. See afterwards.c. `function` gets a tuple, each item of the list `taken` no
 * arguments, the last first; with `if_raised` only if the function raised. The caller holds the
 * interpreter's lock. */
typedef struct tierline_python {
    void *(*call)(void *callable, void *arguments); /* PyObject_CallObject */
    void *(*call_with)(void *callable, ...);        /* PyObject_CallFunctionObjArgs */
    int64_t (*size)(void *list);                    /* PyList_Size */
    void *(*item)(void *list, int64_t index);       /* PyList_GetItem */
    void (*drop)(void *object);                     /* Py_DecRef */
    void (*fetch)(void **type, void **value, void **trace);
    void (*restore)(void *type, void *value, void *trace);
    void (*clear)(void);
    void (*keep)(void *object);   /* Py_IncRef */
    int (*enter)(void);           /* PyGILState_Ensure */
    void (*leave)(int entered);   /* PyGILState_Release */
    int (*collect)(void);         /* PyGC_Enable; as the next, it returns what was before */
    int (*collect_no_more)(void); /* PyGC_Disable */
    int (*check)(void);           /* PyErr_CheckSignals */
} tierline_python;
TIERLINE_API void *tierline_afterwards(const tierline_python *python, void *function,
                                       void *arguments, void *taken, int if_raised);
/* The same as an `__exit__`, whose arguments `function` gets. */
TIERLINE_API void *tierline_exit(const tierline_python *python, void *function, void *taken,
                                 void *kind, void *error, void *trace);
/* See elsewhere.c. In a thread of its own: `turn`, `function`, `over`, `done`, none of which gets
 * an argument; what they return or raise is dropped. 0 or TIERLINE_E_SYSTEM: no thread, nothing
 * was called; also where a signal's handler raised. */
TIERLINE_API int tierline_elsewhere(const tierline_python *python, void *turn, void *function,
                                    void *over, void *done);

/* Flag words: shared u32 counters that only grow while they are waited on. No client needed.
 * `word_wait` returns 0 once *word >= at_least, TIERLINE_E_TIMEOUT after timeout_ns at the latest
 * (0 only looks; waits longer than an hour end after an hour). */
TIERLINE_API int tierline_word_wait(const uint32_t *word, uint32_t at_least, uint64_t timeout_ns);
TIERLINE_API void tierline_word_publish(uint32_t *word, uint32_t value);

#ifdef __cplusplus
}
#endif

#endif
