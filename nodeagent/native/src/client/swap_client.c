/* See swap_client.h. What the interposer's swap.h asks for is here.
 *
 * Invariant: the client lives until the process ends; only one thread at a time makes it, under a
 * mutex of the interposer's.
 */
#include "client/swap_client.h"

#include "client/client.h"
#include "cuda/cuda.h"
#include "cuda/device_memory.h"
#include "driver/standard_error.h"
#include "lease/launch_lease.h"
#include "lease/launch_state.h"
#include "lease/workspace.h"
#include "link/state.h"
#include "memory/swap.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static tierline_client *own;

/* A program that ends between two calls to the GPU has ended its job, too. */
static void at_exit(void) {
    tierline_client *client = own;
    if (client != NULL && !client->dropped && tl_lock_try(&tl_gates.lock)) {
        tl_gates_end_if_idle(client);
        tl_lock_release(&tl_gates.lock);
    }
}

static void forget(void) {
    own = NULL;
}

static int open_client(uint64_t bytes) {
    static bool registered;
    tierline_client *client = NULL;
    int code = tl_connect(getenv("TIERLINE_SOCKET"), program_invocation_short_name,
                          TIERLINE_DEVICE_CUDA, &client);
    if (code == 0) {
        code = tl_workspace_borrow(client, bytes, TLP_WORKSPACE_FLAGS_PRESERVE, true);
        if (code == 0) {
            client->forget = forget;
            own = client;
            registered = registered || atexit(at_exit) == 0;
        } else {
            tl_close(client);
        }
    }
    return code;
}

/* The program goes on in another context. */
static int adopt(void *context) {
    int code = tl_workspace_adopt(own, context);
    return code == 0 ? own->backend->show(own) : code;
}

static int lend(uint64_t bytes, struct swap_loan *loan) {
    const char *path = getenv("TIERLINE_SOCKET");
    const char *required = getenv("TIERLINE_REQUIRED");
    if (path == NULL || path[0] == 0) {
        return ABI_NOT_FOUND; /* presence.h has its word about that */
    }
    void *context = NULL;
    TL_CUDA(USED, cuCtxGetCurrent, &context);
    int code = own == NULL ? open_client(bytes) : adopt(context);
    if (code != 0) {
        bool must = required != NULL && strcmp(required, "1") == 0;
        standard_error_say("tierline: could not borrow the %llu bytes of TIERLINE_SWAP: %s; %s\n",
                           (unsigned long long)bytes, tierline_last_error(),
                           must ? "device memory is refused, since TIERLINE_REQUIRED=1"
                                : "this program runs without Tierline");
        return must ? (int)ABI_SYSTEM_NOT_READY : (int)ABI_NOT_FOUND;
    }
    const struct tl_workspace *workspace = &own->workspace;
    *loan = (struct swap_loan){.base = workspace->base,
                               .bytes = tl_workspace_bytes(workspace, own->terms.extent_bytes),
                               .context = workspace->context,
                               .device = workspace->device};
    return ABI_SUCCESS;
}

/* With the context all of its work ended. */
static void ended(void) {
    if (own == NULL) {
        return;
    }
    tl_workspace_adopt(own, NULL);
    tl_gates_settle(own);
}

const struct swap_lender swap_lender = {.lend = lend, .ended = ended};

bool tl_swap_wanted(void) {
    return tl_device_gated() && swap_wanted_bytes() != 0;
}

int tl_swap_share(tierline_client **out) {
    struct swap_loan loan;
    if (driver_context() == NULL) {
        return tl_fail(TIERLINE_E_STATE, "connecting to the agent: this thread has no CUDA "
                                         "context; use the GPU first (cuCtxSetCurrent)");
    }
    if (swap_borrow(&loan) != ABI_SUCCESS) {
        return tl_fail(TIERLINE_E_CONNECTION,
                       "connecting to the agent: this program's memory cannot be swapped");
    }
    *out = own;
    return 0;
}

bool tl_swap_owns(const tierline_client *client) {
    return client != NULL && client == own;
}
