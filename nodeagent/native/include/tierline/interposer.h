/* The interposer: what a process's use of the CUDA driver is to Tierline.
 *
 * Preloaded (LD_PRELOAD), the library stands between a program and libcuda.so.1. It is inert until
 * the process's first cuInit that succeeds, and then
 *   - keeps device memory within a budget (TIERLINE_BUDGET, bytes; suffixes Ki, Mi, Gi), which
 *     cuMemGetInfo, cuDeviceTotalMem and NVML show; what exceeds it is refused, or lies in host
 *     memory (TIERLINE_ON_EXCEEDED=Fail or Spill);
 *   - puts the program's allocations into memory that is swapped whole between jobs, and holds the
 *     lease around its work (TIERLINE_SWAP, the size of that memory; TIERLINE_SWAP_OBJECTS, which
 *     allocations, as in 0-3,7,12-; without it all);
 *   - counts what the process holds, by kind, as some of it cannot be swapped;
 *   - shows each launch, graph launch, copy, memset, and write or wait of a word in stream order to
 *     a gate, with the weights that it names;
 *   - learns from the launches in which order weights are read.
 * When TIERLINE_SOCKET names an agent that does not answer, the program runs without it, and is
 * told so; with TIERLINE_REQUIRED=1 cuInit fails instead. docs/reference/hooks.md has what each
 * function of the driver gets. All calls are safe from any thread; none of them calls the driver,
 * so a gate may make them too.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Kinds of what a process holds. Device and virtual memory, and what is swapped, can be swapped,
 * the others cannot. */
enum tierline_holding {
    TIERLINE_HELD_DEVICE,   /* cuMemAlloc */
    TIERLINE_HELD_VIRTUAL,  /* cuMemCreate on the device */
    TIERLINE_HELD_POOL,     /* cuMemAllocAsync */
    TIERLINE_HELD_MANAGED,  /* cuMemAllocManaged */
    TIERLINE_HELD_ARRAY,    /* arrays and mipmapped arrays */
    TIERLINE_HELD_HOST,     /* pinned host memory */
    TIERLINE_HELD_IMPORTED, /* memory of another process or API */
    TIERLINE_HELD_SPILLED,  /* beyond the budget, in host memory; not charged */
    TIERLINE_HELD_SWAPPED,  /* in the memory that is swapped whole (TIERLINE_SWAP) */
    TIERLINE_HELD_KINDS
};

typedef struct {
    uint64_t bytes[TIERLINE_HELD_KINDS];
    uint64_t count[TIERLINE_HELD_KINDS];
    uint64_t exported_bytes;  /* of device and virtual memory, given to others */
    uint64_t graph_bytes;     /* asked for by graph memory nodes and during capture, ever */
    uint64_t charged_bytes;   /* of the budget */
    uint64_t budget_bytes;    /* 0: none */
    uint64_t uncounted;       /* holdings that this library had no memory to note */
    uint64_t refused_exports; /* of memory that Tierline backs */
} tierline_held;

void tierline_interposer_held(tierline_held *out);

/* Bytes that can be neither moved nor dropped: all but device and virtual memory that was not
 * exported. Host memory, pinned or spilled, is not among them. */
uint64_t tierline_interposer_unswappable_bytes(void);

/* Bytes of the device that the process has from the driver, less what lies in memory of Tierline's:
 * with its context, and rounded up by the driver, what it is seen to use there. *most, unless NULL,
 * gets the most of them since the last such call. Graphs' memory counts as in unswappable bytes,
 * and of a pool what is in use. */
uint64_t tierline_interposer_device_bytes(uint64_t *most);

/* The unswappable or the spilled bytes have changed, by steps of 2 MiB. Called at the end of the
 * driver call that did it, on its thread, without locks; the listener reads the figures itself,
 * puts several calls together as it likes, and does not wait. Driver functions that it calls are
 * not hooked. */
typedef void tierline_change(void *context);

/* Sets the listener; NULL takes it away. Calls under way may still be in the old one. Returns 0 or
 * -ENOMEM. */
int tierline_interposer_on_change(tierline_change *function, void *context);

/* Whether a cuInit of this process has succeeded under this library. */
bool tierline_interposer_active(void);

/* A range of device addresses whose readers are to be known. */
typedef struct {
    uint64_t address, bytes;
} tierline_weight;

/* One launch, or copy, that read one weight. */
typedef struct {
    uint64_t launch; /* ordinal since the last restart, of launches and of copies from weights */
    uint32_t weight; /* index into what was watched */
    uint32_t reserved;
} tierline_read;

typedef struct {
    uint64_t launches; /* since the last restart, kernels of graphs among them */
    uint64_t copies;   /* copies from weights */
    uint64_t
        captured; /* launches of weights that were only captured: shown to the gate, not learned */
    uint64_t reads;           /* pairs of launch and weight */
    uint64_t words;           /* words of parameters looked at */
    uint64_t opaque_launches; /* whose parameters the driver does not describe */
    uint64_t dropped_reads;   /* beyond what is kept (1,048,576 since the last restart) */
} tierline_observed;

/* Watches these ranges from now on, instead of earlier ones, and restarts. They are neither empty
 * nor overlapping. Of those that lie in sealed arenas on a GPU, whose weights the library watches
 * by itself, nothing is shown. 0 weights end the watching: then the functions below show nothing,
 * but while launches are timed what is read of arenas, weights numbered arena by arena as
 * tierline_weights named them. Returns 0, -EINVAL or -ENOMEM. */
int tierline_observer_watch(const tierline_weight *weights, uint32_t count);

/* Indexes of watched weights of which the program has copied addresses to the device, as far as
 * that is remembered: launches may read these without naming them. In the same manner as the order.
 */
uint32_t tierline_observer_addressed(uint32_t *out, uint32_t capacity);

/* Sets named[i] for each of these weights, which do not overlap, whose address lies anywhere in the
 * memory that the program has from the driver, the weights themselves left out. It copies all of
 * that, and waits for the GPU: not for gates, nor for jobs that are timed. 0; or, and then nothing
 * is known of any of them, -EBUSY while a stream is captured, -ENOMEM, -EIO where the driver does
 * not let it copy. */
int tierline_memory_names(const tierline_weight *weights, uint32_t count, bool *named);

/* Whether a stream is captured, in any thread: to wait for the GPU would end the capture. */
bool tierline_capturing(void);

/* Indexes of watched weights that the program's own graphs name: their launches will look for these
 * where they are now. In the same manner as the order. */
uint32_t tierline_graphs_name(uint32_t *out, uint32_t capacity);

/* Whether graphs that this thread instantiates from now on are left out there, as those of a
 * library that makes others when weights move. */
void tierline_graphs_follow(bool weights);

/* Forgets what was read, keeps what is watched: a job begins. */
void tierline_observer_restart(void);

/* Indexes of weights in the order in which they were first read. Returns how many there are, and
 * writes at most `capacity` of them. */
uint32_t tierline_observer_order(uint32_t *out, uint32_t capacity);

/* All reads in program order, in the same manner. */
uint32_t tierline_observer_reads(tierline_read *out, uint32_t capacity);

void tierline_observer_totals(tierline_observed *out);

/* Clears what earlier calls of this thread left on its stack, 256 KiB below the caller. Structures
 * that are built there afterwards hold no old addresses in their holes, by which a launch would
 * seem to name weights that it does not read. Does nothing on a stack too small for it. */
void tierline_stack_clear(void);

/* When a launch, or copy, ended that was the first to read some weight. */
typedef struct {
    uint64_t launch; /* as in tierline_read */
    uint64_t end_ns; /* by the GPU's clock, since just before the first of them began */
} tierline_time;

/* Whether such launches are timed from now on, by an event after each; forgets earlier times, as
 * restart and watch do. */
void tierline_observer_time(bool wanted);

/* Whether a copy is kept of each graph that is instantiated from now on. Launches of such a graph
 * are timed node by node: what is launched is a copy with events in it, which the first timed
 * launch makes, so what that one takes is not the job's. Launches of other graphs are timed as a
 * whole. */
void tierline_observer_time_graphs(bool wanted);

/* The times, in program order, in the same manner as the reads; at most 65,536 are kept. Waits for
 * the launches: this one calls the driver, and is not for gates. */
uint32_t tierline_observer_times(tierline_time *out, uint32_t capacity);

/* A call that is about to reach the driver. Valid only during the gate. */
struct tierline_call {
    const char *symbol;
    void *stream;    /* CUstream; NULL is the default stream */
    bool per_thread; /* whether NULL means the thread's own default stream */
    bool captured;   /* known for calls that name weights: it is captured, and runs later */
    bool graph;      /* a graph launch: the weights are those of all its kernels */
    bool addresses;  /* a copy from the host that holds addresses in the weights, and reads none */
    bool written;    /* a copy, or a memset, that writes the weights */
    bool unloaded;   /* a launch of a function not seen before, whose code may not be loaded yet */
    const void *function; /* CUfunction or CUkernel of a launch, else NULL */
    uint64_t transferred; /* bytes of a plain copy between host and device, else 0 */
    const uint32_t
        *weights; /* indexes of the watched weights that it names, each once, unordered */
    uint32_t weight_count;
    uint32_t held;   /* the library's own, as those below; 0 for anybody else */
    const void *own; /* which gate holds it */
    bool launched;   /* a graph launch that the driver has accepted */
    bool timed;
    uint64_t launch;
    uint64_t generation; /* changes whenever other weights are watched */
};

/* Answers 0 to let the call go to the driver; any other CUresult is the call's answer. The driver
 * functions that a gate calls are not gated, counted or observed. */
typedef int tierline_gate(const struct tierline_call *call, void *context);

/* Sets the gate; NULL takes it away. Calls under way may still be in the old one. Returns 0 or
 * -ENOMEM. */
int tierline_gate_set(tierline_gate *function, void *context);

/* Not 0 if descriptor 2 is the program's standard error, not another file that has its number. */
int tierline_standard_error_is_ours(void);

#ifdef __cplusplus
}
#endif
