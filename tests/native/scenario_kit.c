/* See scenario_kit.h. */
#include "scenario_kit.h"

#include <string.h>
#include <time.h>

void ok(int result, const char *call, const char *file, int line) {
    if (result != 0) {
        fprintf(stderr, "%s:%d: %s is %d: %s\n", file, line, call, result, tierline_last_error());
        exit(1);
    }
}

void fails(int code, int result, const char *call, const char *file, int line) {
    if (result != code) {
        fprintf(stderr, "%s:%d: %s is %d, not %d: %s\n", file, line, call, result, code,
                result != 0 ? tierline_last_error() : "");
        exit(1);
    }
    EXPECT(strlen(tierline_last_error()) > 10);
}

tierline_client *connected(const char *socket_path) {
    tierline_client *client;
    OK(tierline_connect(socket_path, "scenario", &client));
    return client;
}

static uint8_t byte_at(uint32_t arena, uint32_t extent, uint64_t offset) {
    uint64_t mixed = (offset + 1) * 0x9e3779b97f4a7c15ULL ^ (extent + 1) * 0xbf58476d1ce4e5b9ULL;
    return (uint8_t)((mixed >> 40) + arena);
}

uint64_t model_bytes(const struct model *model) {
    return (EXTENTS - 1) * model->extent_bytes + LAST_BYTES;
}

void fill_extent(const struct model *model, uint32_t extent, uint8_t *out, uint64_t *length) {
    *length = extent == EXTENTS - 1 ? LAST_BYTES : model->extent_bytes;
    for (uint64_t i = 0; i < *length; i++) {
        out[i] = byte_at(model->arena, extent, i);
    }
}

int load_once(struct model *model) {
    void *base;
    int code = tierline_reserve(model->client, model->arena, model_bytes(model), 0, 2, &base);
    model->base = base;
    uint8_t *bytes = malloc(model->extent_bytes);
    EXPECT(bytes != NULL);
    for (uint32_t e = 0; e < EXTENTS && code == 0; e++) {
        uint64_t length;
        fill_extent(model, e, bytes, &length);
        code = tierline_store(model->client, model->arena, e, bytes, length);
    }
    free(bytes);
    tierline_layer layers[EXTENTS];
    for (uint32_t l = 0; l < EXTENTS; l++) {
        layers[l] = (tierline_layer){l, l + 1 < EXTENTS ? l + 1 : l};
    }
    uint8_t digest[32] = {0};
    code = code == 0 ? tierline_seal(model->client, model->arena, layers, EXTENTS, digest) : code;
    return code;
}

struct model loaded(tierline_client *client, uint32_t arena) {
    tierline_terms terms;
    OK(tierline_get_terms(client, &terms));
    struct model model = {.client = client, .arena = arena, .extent_bytes = terms.extent_bytes};
    OK(load_once(&model));
    return model;
}

void expect_extent(const struct model *model, uint32_t extent) {
    uint64_t length = extent == EXTENTS - 1 ? LAST_BYTES : model->extent_bytes;
    const uint8_t *at = model->base + extent * model->extent_bytes;
    for (uint64_t i = 0; i < length; i++) {
        if (at[i] != byte_at(model->arena, extent, i)) {
            fprintf(stderr, "extent %u, byte %llu: %#x instead of %#x\n", extent,
                    (unsigned long long)i, at[i], byte_at(model->arena, extent, i));
            exit(1);
        }
    }
}

void expect_layer(const struct model *model, uint32_t layer) {
    expect_extent(model, layer);
    if (layer + 1 < EXTENTS) {
        expect_extent(model, layer + 1);
    }
}

void run_layer(const struct model *model, uint32_t layer) {
    OK(tierline_layer_begin(model->client, model->arena, layer));
    expect_layer(model, layer);
    OK(tierline_layer_end(model->client, model->arena, layer));
}

uint64_t begin_job(const struct model *model) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    uint64_t release_ns = (uint64_t)now.tv_sec * 1000000000U + (uint64_t)now.tv_nsec;
    uint64_t job;
    OK(tierline_job_begin(model->client, model->arena, 0, release_ns, release_ns + 40000000U,
                          &job));
    return job;
}

tierline_job_stats run_job(const struct model *model) {
    uint64_t job = begin_job(model);
    for (uint32_t l = 0; l < EXTENTS; l++) {
        run_layer(model, l);
    }
    OK(tierline_job_end(model->client, job, 1000));
    return stats_of(model);
}

tierline_job_stats stats_of(const struct model *model) {
    tierline_job_stats stats;
    OK(tierline_get_job_stats(model->client, &stats));
    return stats;
}

void ask_driver(const char *line) {
    char answer[64];
    printf("%s\n", line);
    fflush(stdout);
    EXPECT(fgets(answer, sizeof answer, stdin) != NULL);
}
