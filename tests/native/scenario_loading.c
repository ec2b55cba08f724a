/* Connecting, loading, reporting, and what the library makes of refusals and
 * nonsense. */
#include "scenario_kit.h"

#include <string.h>

static void life_of_an_arena(const char *socket_path) {
    tierline_client *client = connected(socket_path);
    tierline_terms terms;
    OK(tierline_get_terms(client, &terms));
    EXPECT(terms.extent_bytes == 65536 && terms.period_ns == 50000000);
    EXPECT(terms.deadline_ns == 40000000 && terms.max_arenas == 4);
    EXPECT(terms.flags == TIERLINE_TERMS_RECORD_OUTPUTS && strcmp(terms.task_name, "test") == 0);
    struct model first = loaded(client, 0);
    struct model second = loaded(client, 3);
    EXPECT(run_job(&first).fetched_bytes == 0);
    EXPECT(run_job(&second).fetched_bytes == 0);
    OK(tierline_free(client, 0));
    FAILS(TIERLINE_E_STATE, tierline_free(client, 0));
    expect_extent(&second, 1);
    first = loaded(client, 0);
    EXPECT(run_job(&first).fetched_bytes == 0);
    tierline_close(client);
}

static void reports(const char *socket_path) {
    tierline_client *client = connected(socket_path);
    uint64_t epoch_ns;
    uint64_t until_ns;
    OK(tierline_ready(client, 0, &epoch_ns, &until_ns));
    EXPECT(epoch_ns == 123 && until_ns == 456);
    static tierline_layer_profile layers[1000];
    for (int i = 0; i < 1000; i++) {
        snprintf(layers[i].name, sizeof layers[i].name, "layer %d", i);
        layers[i].weight_bytes = (uint64_t)i;
    }
    memset(layers[0].name, 'x', sizeof layers[0].name); /* no end: cut at 63 */
    OK(tierline_profile(client, 0, layers, 1000, 77));
    OK(tierline_profile(client, 1, NULL, 0, 0));
    OK(tierline_notice(client, TIERLINE_NOTICE_ORDER_CHANGED, 5, "the order changed"));
    uint8_t digest[32];
    memset(digest, 0xab, sizeof digest);
    OK(tierline_output(client, 9, digest, digest));
    tierline_statistics statistics;
    OK(tierline_get_statistics(client, &statistics));
    char text[200];
    memset(text, 'x', sizeof text);
    text[192] = 0;
    FAILS(TIERLINE_E_ARGUMENT, tierline_notice(client, 1, 0, text));
    tierline_close(client);
}

static void mistakes_of_the_caller(const char *socket_path) {
    tierline_client *client;
    char long_path[200];
    memset(long_path, 'x', sizeof long_path);
    long_path[199] = 0;
    FAILS(TIERLINE_E_ARGUMENT, tierline_connect(long_path, "x", &client));
    FAILS(TIERLINE_E_ARGUMENT, tierline_connect(NULL, "x", &client));
    FAILS(TIERLINE_E_CONNECTION, tierline_connect("/nowhere/tierline.sock", "x", &client));
    FAILS(TIERLINE_E_ARGUMENT, tierline_free(NULL, 0));
    client = connected(socket_path);
    void *base;
    FAILS(TIERLINE_E_ARGUMENT, tierline_reserve(client, 4, 1000, 0, 1, &base));
    FAILS(TIERLINE_E_ARGUMENT, tierline_reserve(client, 0, 0, 0, 1, &base));
    FAILS(TIERLINE_E_ARGUMENT, tierline_reserve(client, 0, 10, 11, 1, &base));
    FAILS(TIERLINE_E_ARGUMENT, tierline_reserve(client, 0, 1ULL << 40, 0, 1, &base));
    FAILS(TIERLINE_E_STATE, tierline_store(client, 0, 0, "x", 1));
    FAILS(TIERLINE_E_ARGUMENT, tierline_store(client, 99, 0, "x", 1));
    OK(tierline_reserve(client, 0, 200000, 0, 1, &base));
    FAILS(TIERLINE_E_STATE, tierline_reserve(client, 0, 200000, 0, 1, &base));
    FAILS(TIERLINE_E_ARGUMENT, tierline_store(client, 0, 4, "x", 1));
    FAILS(TIERLINE_E_ARGUMENT, tierline_store(client, 0, 0, "x", 0));
    FAILS(TIERLINE_E_ARGUMENT, tierline_store(client, 0, 0, "x", 65537));
    FAILS(TIERLINE_E_STATE, tierline_seal(client, 0, NULL, 0, NULL)); /* nothing stored */
    uint64_t job;
    FAILS(TIERLINE_E_STATE, tierline_job_begin(client, 0, 0, 0, 0, &job));
    FAILS(TIERLINE_E_STATE, tierline_job_begin(client, 99, 0, 0, 0, &job));
    FAILS(TIERLINE_E_ARGUMENT, tierline_job_begin(client, 0, 8, 0, 0, &job));
    FAILS(TIERLINE_E_STATE, tierline_job_end(client, 1, 0));
    FAILS(TIERLINE_E_STATE, tierline_layer_begin(client, 0, 0));
    FAILS(TIERLINE_E_STATE, tierline_layer_begin(client, 99, 0));
    struct model model = loaded(client, 1);
    FAILS(TIERLINE_E_STATE, tierline_store(client, 1, 0, "x", 1));
    FAILS(TIERLINE_E_STATE, tierline_seal(client, 1, NULL, 0, NULL));
    FAILS(TIERLINE_E_ARGUMENT, tierline_layer_begin(client, 1, EXTENTS));
    uint64_t number = begin_job(&model);
    FAILS(TIERLINE_E_STATE, tierline_free(client, 1));
    FAILS(TIERLINE_E_STATE, tierline_job_end(client, number + 1, 0));
    OK(tierline_job_end(client, number, 0));
    tierline_close(client);
    tierline_close(NULL);
}

/* The agent answers something that it may not: some call fails, none crashes or
 * believes it. */
static void nonsense(const char *socket_path) {
    tierline_client *client;
    int code = tierline_connect(socket_path, "scenario", &client);
    uint64_t job = 0;
    if (code == 0) {
        struct model model = {.client = client, .arena = 0, .extent_bytes = 65536};
        code = load_once(&model);
        code = code == 0 ? tierline_job_begin(client, 0, 0, 1, 2, &job) : code;
        code = code == 0 ? tierline_layer_begin(client, 0, 8) : code;
        code = code == 0 ? tierline_layer_begin(client, 0, 1) : code; /* passed: fetches */
        code = code == 0 ? tierline_job_end(client, job, 0) : code;
        code = code == 0 ? tierline_free(client, 0) : code;
        tierline_close(client);
    }
    EXPECT(code != 0);
    printf("%d %s\n", code, tierline_last_error());
}

/* The agent dies while an arena is loaded: RETRY until it is loaded again. */
static void loading_again(const char *socket_path) {
    tierline_client *client = connected(socket_path);
    struct model model = {.client = client, .arena = 2, .extent_bytes = 65536};
    FAILS(TIERLINE_E_RETRY, load_once(&model));
    ask_driver("the agent died");
    int code = tierline_free(client, 2);
    EXPECT(code == 0 || code == TIERLINE_E_STATE); /* a failed reserve leaves nothing */
    OK(load_once(&model));
    EXPECT(run_job(&model).fetched_bytes == 0);
    tierline_close(client);
}

const struct named_scenario loading_scenarios[] = {
    {"life_of_an_arena", life_of_an_arena},
    {"reports", reports},
    {"mistakes_of_the_caller", mistakes_of_the_caller},
    {"nonsense", nonsense},
    {"loading_again", loading_again},
    {NULL, NULL},
};
