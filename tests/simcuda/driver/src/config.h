/* The settings of the simulated machine; include/simcuda.h lists them with their units. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum { MAX_DEVICES = 8 };

enum engine { ENGINE_H2D, ENGINE_D2H, ENGINE_D2D, ENGINE_PEER, ENGINE_COMPUTE, ENGINE_COUNT };

extern const char *const engine_names[ENGINE_COUNT];

struct config {
    uint64_t devices;
    uint64_t memory_bytes;
    uint64_t granularity_bytes;
    uint64_t context_bytes;
    uint64_t bandwidth[ENGINE_COUNT]; /* bytes per second, 0 unlimited; none for compute */
    uint64_t pageable_bandwidth;
    uint64_t copy_overhead_ns;
    uint64_t timeslice_ns;
    uint64_t compute_thousandths;
    char name[64];
};

/* Reads the file and the environment. Prints a sentence and returns false when something is
 * unknown. */
bool config_read(struct config *config);

/* Folder of the machine's shared state; the same text at every call. */
const char *config_state_folder(void);
