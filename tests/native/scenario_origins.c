/* Memory that weights lay in before they moved, and code that keeps addresses there. */
#include "scenario_kit.h"

#include <stdbool.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define WEIGHTS 7U
#define SMALL 6U /* of no whole page */
#define WRITTEN 99

struct moved {
    struct model model;
    uint8_t *right; /* the arena's bytes */
    uint8_t *memory[WEIGHTS];
    tierline_origin origins[WEIGHTS];
};

/* Weights of about an extent each, none of which begins where a page or an extent does. */
static struct moved moved(const char *socket_path) {
    struct moved all = {.model = loaded(connected(socket_path), 0)};
    uint64_t extent = all.model.extent_bytes;
    all.right = malloc(EXTENTS * extent);
    EXPECT(all.right != NULL);
    for (uint32_t e = 0; e < EXTENTS; e++) {
        uint64_t length;
        fill_extent(&all.model, e, all.right + e * extent, &length);
    }
    for (uint32_t w = 0; w < WEIGHTS; w++) {
        uint64_t bytes = w == SMALL ? 100 : extent + 12UL * w;
        uint64_t offset = 64 + w * (extent + 128);
        uint8_t *memory = malloc(bytes);
        EXPECT(memory != NULL);
        memcpy(memory, all.right + offset, bytes);
        all.memory[w] = memory;
        all.origins[w] = (tierline_origin){memory, bytes, offset};
    }
    uint32_t closed;
    OK(tierline_origins(all.model.client, 0, all.origins, WEIGHTS, &closed));
    EXPECT(closed == WEIGHTS);
    EXPECT(*tierline_touched(all.model.client) == 0);
    return all;
}

static uint8_t *middle(const struct moved *all, uint32_t weight) {
    return all->memory[weight] + all->origins[weight].bytes / 2;
}

static void expect_weight(const struct moved *all, uint32_t weight) {
    const tierline_origin *one = &all->origins[weight];
    EXPECT(memcmp(one->address, all->right + one->offset, one->bytes) == 0);
}

/* This one, and no other. */
static void expect_given_back(const struct moved *all, uint32_t weight, bool was_touched) {
    uint64_t cursor = 0;
    uint32_t arena;
    uint32_t index;
    uint32_t touched;
    EXPECT(*tierline_touched(all->model.client) != 0);
    OK(tierline_give_back(all->model.client, &cursor, &arena, &index, &touched));
    EXPECT(arena == 0 && index == weight && (touched != 0) == was_touched);
    FAILS(TIERLINE_E_STATE,
          tierline_give_back(all->model.client, &cursor, &arena, &index, &touched));
    EXPECT(*tierline_touched(all->model.client) == 0);
    expect_weight(all, weight);
}

static void write_middle(const struct moved *all, uint32_t weight) {
    *(volatile uint8_t *)middle(all, weight) = WRITTEN;
    all->right[all->origins[weight].offset + all->origins[weight].bytes / 2] = WRITTEN;
}

/* The same byte, in the arena. */
static void write_arena(const struct moved *all, uint32_t weight) {
    uint64_t offset = all->origins[weight].offset + all->origins[weight].bytes / 2;
    /* The API gives weights as read-only. NOLINTNEXTLINE(performance-no-int-to-ptr) */
    *(volatile uint8_t *)((uintptr_t)all->model.base + offset) = WRITTEN;
    all->right[offset] = WRITTEN;
}

static void leave(struct moved *all) {
    tierline_close(all->model.client);
    for (uint32_t w = 0; w < WEIGHTS; w++) {
        free(all->memory[w]);
    }
    free(all->right);
}

static void touched_origins(const char *socket_path) {
    struct moved all = moved(socket_path);
    expect_weight(&all, SMALL);
    EXPECT(*tierline_touched(all.model.client) == 0);

    expect_weight(&all, 0); /* read, then written */
    write_middle(&all, 0);
    expect_weight(&all, 0);
    expect_given_back(&all, 0, true);

    write_middle(&all, 1); /* written at once */
    expect_weight(&all, 1);
    expect_given_back(&all, 1, true);

    uint64_t job = begin_job(&all.model); /* read while a job is in its layers, and after it */
    run_layer(&all.model, 0);
    expect_weight(&all, 2);
    run_layer(&all.model, 1);
    OK(tierline_job_end(all.model.client, job, 0));
    run_job(&all.model);
    expect_weight(&all, 2);
    expect_given_back(&all, 2, true);
    write_middle(&all, 2);
    expect_weight(&all, 2);

    OK(tierline_free(all.model.client, 0)); /* the last one was never touched */
    *(volatile uint8_t *)middle(&all, 5) = WRITTEN;
    leave(&all);
}

/* What is written in an arena is found at the old address, and what shares an extent with it. */
static void written_origins(const char *socket_path) {
    struct moved all = moved(socket_path);
    write_arena(&all, 3);
    expect_weight(&all, 3);
    uint64_t cursor = 0;
    uint32_t arena;
    uint32_t index;
    uint32_t touched;
    uint32_t found = 0;
    while (tierline_give_back(all.model.client, &cursor, &arena, &index, &touched) == 0) {
        EXPECT((touched != 0) == (index == 3));
        expect_weight(&all, index);
        write_middle(&all, index);
        found |= 1U << index;
    }
    EXPECT((found & (1U << 3)) != 0 && found != (1U << WEIGHTS) - 1);
    EXPECT(*middle(&all, 5) == all.right[all.origins[5].offset + all.origins[5].bytes / 2]);
    write_arena(&all, 5); /* it can be read at its old address, and is written in the arena */
    cursor = 0;
    found = 0;
    while (tierline_give_back(all.model.client, &cursor, &arena, &index, &touched) == 0) {
        expect_weight(&all, index);
        found |= 1U << index;
    }
    EXPECT((found & (1U << 5)) != 0);
    write_arena(&all, SMALL);
    cursor = 0;
    found = 0;
    while (tierline_give_back(all.model.client, &cursor, &arena, &index, &touched) == 0) {
        expect_weight(&all, index);
        found |= 1U << index;
    }
    EXPECT(found == 1U << SMALL);
    leave(&all);
}

/* A weight goes to a pipe, and from there over another one. */
static void origins_of_transfers(const char *socket_path) {
    struct moved all = moved(socket_path);
    int ends[2];
    EXPECT(pipe(ends) == 0);
    const uint8_t *from = all.memory[1];
    EXPECT(write(ends[1], from + 4096, 4096) == 4096);
    EXPECT(*tierline_touched(all.model.client) != 0);
    EXPECT(read(ends[0], middle(&all, 2), 4096) == 4096);
    EXPECT(memcmp(middle(&all, 2), from + 4096, 4096) == 0);
    expect_weight(&all, 1);
    leave(&all);
}

/* The job may have read the weight in the arena. */
static void origin_written_in_a_job(const char *socket_path) {
    struct moved all = moved(socket_path);
    begin_job(&all.model);
    expect_weight(&all, 0);
    write_middle(&all, 0);
}

static void origins_and_forking(const char *socket_path) {
    struct moved all = moved(socket_path);
    for (int writing = 0; writing < 2; writing++) {
        pid_t child = fork();
        EXPECT(child >= 0);
        if (child == 0) {
            expect_weight(&all, 0);
            expect_weight(&all, 1);
            if (writing) {
                write_middle(&all, 0);
            }
            _exit(0);
        }
        int status;
        EXPECT(waitpid(child, &status, 0) == child);
        EXPECT(writing ? WIFSIGNALED(status) || WEXITSTATUS(status) != 0 : status == 0);
    }
    EXPECT(*tierline_touched(all.model.client) == 0);
    expect_weight(&all, 0);
    leave(&all);
}

const struct named_scenario origin_scenarios[] = {
    {"touched_origins", touched_origins},
    {"written_origins", written_origins},
    {"origins_of_transfers", origins_of_transfers},
    {"origin_written_in_a_job", origin_written_in_a_job},
    {"origins_and_forking", origins_and_forking},
    {NULL, NULL},
};
