/* See backend.h. */
#include "gates/backend.h"

#include "cuda/cuda.h"
#include "cuda/device_memory.h"
#include "cuda/drain.h"
#include "cuda/stand_in.h"
#include "cuda/stream_marks.h"
#include "cuda/streams.h"
#include "cuda/upload.h"
#include "gates/launch_copies.h"
#include "gates/launch_gates.h"
#include "gates/watch.h"
#include "launches/gate.h"
#include "launches/observer.h"
#include "lease/holdings.h"
#include "lease/launch_lease.h"
#include "lease/launch_monitor.h"
#include "lease/launch_state.h"
#include "lease/launch_yields.h"
#include "lease/window.h"
#include "lease/workspace.h"

static int adopt(tierline_client *client) {
    int code = 0;
    tl_lock_acquire(&tl_gates.lock);
    if (tl_gates.client != NULL) {
        code = tl_fail(TIERLINE_E_STATE, "connecting to the agent: this process has a client on a "
                                         "GPU already; close it first");
    } else {
        tl_gates.client = client;
        tl_gates.job = 0;
        atomic_store(&tl_gates.failed, 0);
        tl_holdings_watch();
        code = tl_monitor_start();
    }
    tl_lock_release(&tl_gates.lock);
    return code;
}

static void disown(tierline_client *client) {
    tl_gates_settle(client); /* what cannot be settled ends with the connection */
    tl_lock_acquire(&tl_gates.lock);
    bool ours = tl_gates.client == client;
    if (ours) {
        gate_own(NULL);
        tl_holdings_unwatch();
        uint64_t generation;
        observer_watch_own(NULL, 0, &generation);
    }
    tl_lock_release(&tl_gates.lock);
    if (ours) {
        tl_monitor_stop();
        tl_lock_acquire(&tl_gates.lock);
        tl_window_end(client, ABI_SUCCESS);
        tl_gates.client = NULL;
        tl_gates.job = 0;
        atomic_store(&tl_gates.sealed, 0);
        atomic_store(&tl_gates.leased, false);
        tl_watch_forget();
        tl_lock_release(&tl_gates.lock);
    }
}

/* What a job must not make while the GPU stands at a flag. */
static int prepare_context(void) {
    int code = tl_marks_open();
    return code == 0 ? tl_stand_in_open() : code;
}

static int show(tierline_client *client) {
    tl_lock_acquire(&tl_gates.lock);
    tl_lock_acquire(&client->lock);
    uint32_t sealed = tl_sealed_arenas(client);
    tl_lock_release(&client->lock);
    atomic_store(&tl_gates.sealed, sealed);
    tl_window_forget();
    void *context = tl_gates_context(client);
    int code = tl_watch_show(client, sealed);
    if (code == 0 && context != NULL) {
        code = tl_cuda_enter(context)
                   ? prepare_context()
                   : tl_fail(TIERLINE_E_SYSTEM, "an arena's CUDA context is gone");
        tl_cuda_leave();
    }
    if (code == 0) {
        gate_own(context != NULL ? &tl_launch_gate : NULL);
    }
    tl_lock_release(&tl_gates.lock);
    return code;
}

static void forget(void) {
    tl_gates = (struct tl_gates){0};
    tl_stand_in_forget();
    tl_upload_forget();
    tl_streams_forget();
    tl_drain_forget();
    tl_yields_forget();
    tl_marks_forget();
    tl_watch_forget();
}

const struct tl_backend tl_cuda_backend = {.memory = &tl_device_memory,
                                           .adopt = adopt,
                                           .disown = disown,
                                           .forget = forget,
                                           .connected = tl_monitor_wake,
                                           .settle = tl_gates_settle,
                                           .show = show,
                                           .stored = tl_gates_stored,
                                           .job_begin = tl_gates_job_begin,
                                           .job_end = tl_gates_job_end,
                                           .rewind = tl_gates_rewind,
                                           .revoked = tl_gates_revoked,
                                           .reach = tl_workspace_reach};
