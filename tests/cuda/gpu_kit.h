/* A task on a simulated GPU: weights of known bytes in an arena, and launches that read them.
 *
 * Every kernel hashes what it reads, so a wrong byte anywhere shows in its result. A claim that
 * does not hold ends the program.
 */
#pragma once

#include <cuda.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "tierline/interposer.h"
#include "tierline/tierline.h"

#define HOLDS(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: %s does not hold (%s)\n", __FILE__, __LINE__, #condition,      \
                    tierline_last_error());                                                        \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)
#define OK(call) HOLDS((call) == 0)

enum { MOST_WEIGHTS = 64 };

struct weight {
    uint64_t offset, bytes, address;
};

struct task {
    tierline_client *client;
    uint32_t arena;
    uint64_t extent_bytes, weight_bytes;
    uint8_t *content;
    uint32_t count;
    struct weight weights[MOST_WEIGHTS];
    CUfunction hash, pair, spin;
    uint64_t *results; /* pinned, one a launch */
};

/* Initialises the driver and makes the primary context of device 0 current. */
CUcontext use_gpu(void);

/* Connects, and seals an arena of `extents` whose weights are read in the order in which they lie.
 * The seed decides sizes and bytes. */
void load(struct task *task, const char *socket, uint32_t arena, uint32_t extents, uint64_t seed);
/* A second arena of the same client. */
void load_another(struct task *task, const struct task *first, uint32_t arena, uint32_t extents,
                  uint64_t seed);

/* Launches a kernel that reads a weight for at least duration_ns into results[slot]. */
CUresult launch(struct task *task, uint32_t weight, uint32_t slot, CUstream stream,
                uint64_t duration_ns);
/* One that reads two weights, named inside a structure. */
CUresult launch_pair(struct task *task, uint32_t one, uint32_t other, uint32_t slot,
                     CUstream stream);

uint64_t expected(const struct task *task, uint32_t weight);
/* Waits for the stream and checks results[weight] of weights [from, to). */
void check(struct task *task, uint32_t from, uint32_t to, CUstream stream);

/* Forgets all results. */
void clear(struct task *task);

uint64_t begin(struct task *task);
tierline_job_stats end(struct task *task, uint64_t job);

/* Jobs that the agent has counted. */
uint64_t jobs(struct task *task);

struct scenario {
    const char *name;
    void (*run)(void);
};

/* What main does when it is told which scenario to run: its exit status, and "held" on stdout. Ends
 * the task if the scenario has not. */
int run_scenario(const char *name, const struct scenario *scenarios, size_t count,
                 struct task *task);
