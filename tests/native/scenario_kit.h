/* What scenarios share: a model of known bytes in an arena, and a word with the
 * driver.
 *
 * `scenarios NAME SOCKET` runs one scenario against the agent at SOCKET and
 * exits 0 if all it claims held. It prints a line where the driver shall do
 * something, and reads a line when that is done.
 */
#ifndef TIERLINE_TESTS_SCENARIO_KIT_H
#define TIERLINE_TESTS_SCENARIO_KIT_H

#include "expect.h"
#include "tierline/tierline.h"

#include <stdbool.h>
#include <stdint.h>

#define EXTENTS 9U
#define LAST_BYTES 100U /* the last extent is not full */

struct model {
    tierline_client *client;
    uint32_t arena;
    uint64_t extent_bytes;
    const uint8_t *base;
};

/* Checks a call, printing the library's sentence. */
#define OK(call) ok((call), #call, __FILE__, __LINE__)
#define FAILS(code, call) fails((code), (call), #call, __FILE__, __LINE__)
void ok(int result, const char *call, const char *file, int line);
void fails(int code, int result, const char *call, const char *file, int line);

tierline_client *connected(const char *socket_path);
/* Reserves, stores and seals; layer l reads extents l and l+1, so that layers
 * share extents. */
struct model loaded(tierline_client *client, uint32_t arena);
int load_once(struct model *model);
uint64_t model_bytes(const struct model *model);
void fill_extent(const struct model *model, uint32_t extent, uint8_t *out, uint64_t *length);

/* Compares every byte. */
void expect_extent(const struct model *model, uint32_t extent);
void expect_layer(const struct model *model, uint32_t layer);
void run_layer(const struct model *model, uint32_t layer);
uint64_t begin_job(const struct model *model);
/* A job of all layers in order. */
tierline_job_stats run_job(const struct model *model);
tierline_job_stats stats_of(const struct model *model);

/* Prints the line and waits until the driver answers. */
void ask_driver(const char *line);

typedef void scenario(const char *socket_path);
struct named_scenario {
    const char *name;
    scenario *run;
};
extern const struct named_scenario loading_scenarios[];
extern const struct named_scenario streaming_scenarios[];
extern const struct named_scenario fault_scenarios[];
extern const struct named_scenario fork_scenarios[];
extern const struct named_scenario transfer_scenarios[];
extern const struct named_scenario mask_scenarios[];
extern const struct named_scenario origin_scenarios[];

#endif
