/* Questions about a client. */
#include "link/state.h"

int tl_check_usable(tierline_client *client) {
    if (client == NULL) {
        return tl_fail(TIERLINE_E_ARGUMENT, "there is no client");
    }
    if (client->dropped) {
        return tl_fail(TIERLINE_E_FORKED,
                       "this process was forked from the one that connected; connect again");
    }
    return 0;
}

uint32_t tl_sealed_arenas(const tierline_client *client) {
    uint32_t sealed = 0;
    for (uint32_t a = 0; a < TIERLINE_MAX_ARENAS; a++) {
        sealed |= client->arenas[a].state == TL_ARENA_SEALED ? 1U << a : 0;
    }
    return sealed;
}
