/* Nanoseconds that the observer adds to a launch, by the number of weights watched. Prints one JSON
 * line a row; see tests/bench. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "access.h"
#include "observer.h"

enum { LAUNCHES = 200000, BATCH = 64 };

static double now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

int main(void) {
    access_open();
    access_device();
    CUfunction function = access_function(NULL, "sim_gemm_like");
    CUdeviceptr base;
    OK(D(cuMemAlloc)(&base, 32 << 20));
    uint64_t words[5] = {base, 64, base, base + 64, 0};
    void *parameters[5] = {&words[0], &words[1], &words[2], &words[3], &words[4]};
    static tierline_weight weights[4096];
    for (uint32_t count = 0; count <= 4096; count = count == 0 ? 1 : count * 8) {
        for (uint32_t i = 0; i < count; i++) {
            weights[i] = (tierline_weight){base + (CUdeviceptr)i * 4096, 4096};
        }
        EQUAL(tierline_observer_watch(weights, count), 0);
        double best = 1e18;
        for (int round = 0; round < 5; round++) {
            tierline_observer_restart();
            double begin = now_ns();
            for (int i = 0; i < LAUNCHES; i++) {
                struct tierline_call call = {.symbol = "bench"};
                words[0] = base + (CUdeviceptr)(i % BATCH) * 4096;
                EQUAL(observer_launch(&call, function, parameters, NULL), 0);
            }
            double each = (now_ns() - begin) / LAUNCHES;
            best = each < best ? each : best;
        }
        printf("{\"weights\": %u, \"parameters\": 5, \"ns_per_launch\": %.1f}\n", count, best);
    }
    return 0;
}
