/* See workspace.h. The descriptors are kept, to be offered to an agent that was restarted. */
#include "lease/workspace.h"

#include "cuda/cuda.h"
#include "cuda/device_memory.h"
#include "cuda/drain.h"
#include "lease/launch_state.h"
#include "link/request.h"
#include "memory/swap.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define ALIGNMENT_BYTES (2UL << 20)
#define MOST_EXTENTS (1U << 20)

static uint32_t descriptors_of(const struct tl_workspace *workspace) {
    bool preserved = (workspace->flags & TLP_WORKSPACE_FLAGS_PRESERVE) != 0;
    return workspace->extent_count + preserved;
}

/* ---- what the agent sends */

int tl_workspace_announced(tierline_client *client, const struct tlp_workspace_lent *lent) {
    struct tl_workspace *workspace = &client->workspace;
    uint64_t extent_bytes = client->terms.extent_bytes;
    uint64_t wanted = (workspace->asked_bytes + extent_bytes - 1) / extent_bytes;
    if (!workspace->asked || workspace->extent_count != 0 || lent->extent_count != wanted ||
        lent->extent_count > MOST_EXTENTS) {
        snprintf(client->connection.reason, sizeof client->connection.reason,
                 "the agent lent a workspace of %u extents where %llu were asked for",
                 lent->extent_count, (unsigned long long)wanted);
        return -1;
    }
    workspace->descriptors = malloc((lent->extent_count + 1U) * sizeof *workspace->descriptors);
    if (workspace->descriptors == NULL) {
        snprintf(client->connection.reason, sizeof client->connection.reason, "out of memory");
        return -1;
    }
    workspace->extent_count = lent->extent_count;
    return 0;
}

int tl_workspace_descriptors(tierline_client *client, const struct tlp_fds *fds) {
    struct tl_workspace *workspace = &client->workspace;
    bool backup = fds->kind == TLP_DESCRIPTOR_KIND_BACKUP;
    uint32_t first = fds->first + (backup ? workspace->extent_count : 0);
    uint32_t limit = backup ? descriptors_of(workspace) : workspace->extent_count;
    if (workspace->descriptors == NULL || first != workspace->received || first > limit ||
        fds->count > limit - first) {
        snprintf(client->connection.reason, sizeof client->connection.reason,
                 "the agent sent descriptors of kind %u that it had not announced", fds->kind);
        return -1;
    }
    if (tl_connection_claim(&client->connection, fds->count, workspace->descriptors + first) != 0) {
        return -1;
    }
    workspace->received += fds->count;
    return 0;
}

/* ---- mapping */

static int map_extent(const struct tl_workspace *workspace, uint64_t extent_bytes,
                      uint32_t extent) {
    if (!tl_descriptor_is_ours(&workspace->descriptors[extent])) {
        return tl_fail(TIERLINE_E_SYSTEM, "importing an extent: " TL_CLOSED_BY_PROGRAM);
    }
    /* NOLINTNEXTLINE(performance-no-int-to-ptr) */
    void *descriptor = (void *)(intptr_t)workspace->descriptors[extent].number;
    uint64_t handle = 0;
    int code = tl_cuda_check(
        TL_CUDA(HOOK, cuMemImportFromShareableHandle, &handle, descriptor, ABI_POSIX_DESCRIPTOR),
        "importing an extent of the agent's");
    if (code != 0) {
        return code;
    }
    code = tl_cuda_check(TL_CUDA(HOOK, cuMemMap, workspace->base + extent * extent_bytes,
                                 extent_bytes, 0, handle, 0),
                         "mapping an extent");
    TL_CUDA(HOOK, cuMemRelease, handle); /* the mapping keeps it */
    return code;
}

static int allow(const struct tl_workspace *workspace, uint64_t extent_bytes) {
    struct abi_access access = {.location = {ABI_LOCATION_DEVICE, workspace->device},
                                .flags = ABI_ACCESS_READ_WRITE};
    return tl_cuda_check(TL_CUDA(HOOK, cuMemSetAccess, workspace->base,
                                 tl_workspace_bytes(workspace, extent_bytes), &access, 1),
                         "making a workspace usable");
}

static void unmap(struct tl_workspace *workspace, uint64_t extent_bytes, uint32_t mapped) {
    for (uint32_t e = 0; e < mapped; e++) {
        TL_CUDA(HOOK, cuMemUnmap, workspace->base + e * extent_bytes, extent_bytes);
    }
    TL_CUDA(HOOK, cuMemAddressFree, workspace->base, tl_workspace_bytes(workspace, extent_bytes));
    workspace->base = 0;
}

static int map(struct tl_workspace *workspace, uint64_t extent_bytes) {
    int code =
        tl_cuda_check(TL_CUDA(HOOK, cuMemAddressReserve, &workspace->base,
                              tl_workspace_bytes(workspace, extent_bytes), ALIGNMENT_BYTES, 0, 0),
                      "reserving device addresses");
    uint32_t mapped = 0;
    for (; code == 0 && mapped < workspace->extent_count; mapped += code == 0) {
        code = map_extent(workspace, extent_bytes, mapped);
    }
    code = code == 0 ? allow(workspace, extent_bytes) : code;
    if (code != 0 && workspace->base != 0) {
        unmap(workspace, extent_bytes, mapped);
    }
    return code;
}

/* ---- asking */

static int ask(tierline_client *client) {
    struct tl_workspace *workspace = &client->workspace;
    struct tlp_message message = {.type = TLP_WORKSPACE};
    message.workspace.workspace_bytes = workspace->asked_bytes;
    message.workspace.flags = workspace->flags;
    struct tlp_message reply;
    int code = tl_request(client, &message, TLP_WORKSPACE_LENT, &reply, TL_FAIL_ON_RECONNECT);
    uint32_t generation = client->generation;
    while (code == 0 && workspace->received < descriptors_of(workspace)) {
        if (client->link != TL_LINK_UP || client->generation != generation) {
            return tl_fail(TIERLINE_E_RETRY,
                           "the connection to the agent broke while a workspace was lent: %.200s",
                           client->reason);
        }
        tl_pump(client, 1000);
    }
    return code;
}

static int borrow_locked(tierline_client *client) {
    struct tl_workspace *workspace = &client->workspace;
    int code = tl_cuda_check(TL_CUDA(USED, cuCtxGetCurrent, &workspace->context),
                             "asking for the current context");
    if (code == 0 && workspace->context == NULL) {
        code = tl_fail(TIERLINE_E_STATE, "borrowing a workspace: this thread has no CUDA context; "
                                         "use the GPU first (cuCtxSetCurrent)");
    }
    code = code == 0 ? tl_cuda_check(TL_CUDA(USED, cuCtxGetDevice, &workspace->device),
                                     "asking for the context's device")
                     : code;
    code = code == 0 ? tl_ensure_connected(client) : code;
    code = code == 0 ? tl_device_check(client->terms.device_uuid) : code;
    code = code == 0 ? ask(client) : code;
    code = code == 0 ? map(workspace, client->terms.extent_bytes) : code;
    workspace->lent = code == 0;
    return code;
}

int tl_workspace_borrow(tierline_client *client, uint64_t bytes, uint32_t flags, bool swapped) {
    tl_lock_acquire(&client->lock);
    struct tl_workspace *workspace = &client->workspace;
    int code = 0;
    if (workspace->asked) {
        code = tl_fail(TIERLINE_E_STATE, "borrowing a workspace: this client has one, or had one");
    } else {
        *workspace = (struct tl_workspace){
            .asked = true, .swapped = swapped, .flags = flags, .asked_bytes = bytes};
        code = borrow_locked(client);
    }
    tl_lock_release(&client->lock);
    if (code != 0) {
        return code;
    }
    atomic_store(&tl_drain_watching, true);
    return client->backend->show(client);
}

int tl_workspace_adopt(tierline_client *client, void *context) {
    /* A thread that looks whether the GPU is idle has the gates' lock, and may be in the old
     * context. */
    tl_lock_acquire(&tl_gates.lock);
    tl_lock_acquire(&client->lock);
    struct tl_workspace *workspace = &client->workspace;
    workspace->context = context;
    tl_lock_release(&client->lock);
    tl_lock_release(&tl_gates.lock);
    /* Without locks, as the driver may wait for the GPU. What is mapped does not change any more.
     */
    return context != NULL ? allow(workspace, client->terms.extent_bytes) : 0;
}

uint64_t tl_workspace_reach(tierline_client *client, uint64_t told) {
    struct tl_workspace *workspace = &client->workspace;
    if (workspace->lent) {
        workspace->reach_bytes = workspace->swapped ? swap_reach() : told;
        return workspace->reach_bytes;
    }
    return told;
}

void tl_workspace_close(tierline_client *client, bool forked) {
    struct tl_workspace *workspace = &client->workspace;
    if (workspace->lent && !forked && workspace->context != NULL &&
        tl_cuda_enter(workspace->context)) {
        /* While a stream is captured nothing can be waited for: it stays mapped. */
        if (tl_cuda_synchronise() != ABI_CAPTURE_UNSUPPORTED) {
            unmap(workspace, client->terms.extent_bytes, workspace->extent_count);
        }
        tl_cuda_leave();
    }
    for (uint32_t i = 0; i < workspace->received; i++) {
        tl_descriptor_close(&workspace->descriptors[i]);
    }
    free(workspace->descriptors);
    *workspace = (struct tl_workspace){0};
}
