/* Which watched weights launches and copies name, and the gate that they pass.
 *
 * A launch's parameters are searched, word by word, for addresses inside watched ranges
 * (watched.h).
 *
 * Only what the kernel declares is searched, where the driver (CUDA >= 12.4) tells: what lies
 * between parameters is left over from earlier calls. A structure passed by value is one parameter,
 * holes among its members included, and unused members are often left as they were: an old address
 * in one names a weight that the kernel does not read. That costs a wait, never wrong bytes; what
 * is learned from it has to bear it (tierline_torch/learning/launch_order.py).
 *
 * Under one mutex, never held during a driver call or a gate.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tierline/interposer.h"

enum { OBSERVER_MOST = 4096 }; /* words of one launch's parameters, and so weights that it names */

int observer_launch(struct tierline_call *call, const void *function, void *const *parameters,
                    void *const *extra);
/* cuLaunchCooperativeKernelMultiDevice's list. */
int observer_launches(struct tierline_call *call, const void *list, unsigned int count);
int observer_copy(struct tierline_call *call, uint64_t source, uint64_t bytes);
/* A copy from the device to the host. */
int observer_transfer(struct tierline_call *call, uint64_t source, uint64_t bytes);
/* From the device to the device, or between unified addresses. */
int observer_move(struct tierline_call *call, uint64_t target, uint64_t source, uint64_t bytes);
/* What only writes. */
int observer_set(struct tierline_call *call, uint64_t target, uint64_t bytes);
/* A copy from the host, which may bring addresses of weights. */
int observer_upload(struct tierline_call *call, uint64_t target, const void *source,
                    uint64_t bytes);
int observer_copies(struct tierline_call *call, const uint64_t *sources, const size_t *bytes,
                    size_t count);

/* copies.c: a CUDA_MEMCPY2D; a CUDA_MEMCPY3D or CUDA_MEMCPY3D_PEER; CUDA_MEMCPY3D_BATCH_OPs;
 * CUstreamBatchMemOpParams. */
int observer_copy2d(struct tierline_call *call, const void *described);
int observer_copy3d(struct tierline_call *call, const void *described);
int observer_copies3d(struct tierline_call *call, const void *described, size_t count);
int observer_words(struct tierline_call *call, const void *described, unsigned int count);

bool observer_watching(void);

/* Addresses that are named: a word of a launch's parameters, or a copy's source. */
struct observer_range {
    uint64_t address, bytes;
};

/* The words of a kernel's parameters that may be addresses, whatever is watched. Writes at most
 * OBSERVER_MOST, returns how many. */
uint32_t observer_ranges(const void *function, void *const *parameters, void *const *extra,
                         struct observer_range *named);
/* Adds the watched weights that lie there, each once, to the *filled ones of a list, which may be
 * moved for it. False: out of memory. */
bool observer_resolve(const struct observer_range *named, uint32_t count, uint32_t **weights,
                      uint32_t *filled);
/* The place, among the weights that the program watches, of one that was found in the current
 * generation; UINT32_MAX if it is the library's. */
uint32_t observer_shown(uint32_t weight);
/* Records what a graph's kernels read, after the gate let it through. `ends[k]` is where kernel k's
 * weights end, `found_in` the generation in which they were found. `first`, all false or NULL, is
 * told which kernels were the first to read some weight. Returns the ordinal of kernel 0. */
uint64_t observer_replayed(uint64_t found_in, const uint32_t *weights, const uint32_t *ends,
                           uint32_t kernels, bool *first);
/* Grows whenever other weights are watched. */
uint64_t observer_generation(void);

/* Watches these for the library, in addition to what the program watches: they are the first
 * indexes of what calls name, from *found_in on until the next time. 0 or a negative errno. */
int observer_watch_own(const tierline_weight *weights, uint32_t count, uint64_t *found_in);

/* A module, library or context ends, and with it functions: where the parameters of kernels lie is
 * forgotten (layouts.h). Answers CUDA_SUCCESS. */
int observer_forget_layouts(void);

void observer_fork_before(void);
void observer_fork_after(bool in_child);
