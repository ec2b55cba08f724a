/* Several processes on one device: which of them hold memory, and what remains of a process that
 * was killed.
 */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kit.h"

static const size_t MIB = 1 << 20, EXTENT = 4 << 20, CONTEXT = 8 << 20;

/* Imports what comes over the socket, maps it twice, writes, and stands until it is killed or told
 * to go. */
static int role_importer(int socket) {
    CUmemGenericAllocationHandle handle;
    CUdeviceptr base;
    char word;
    kit_device(0);
    int fd = kit_receive_fd(socket);
    OK(cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)fd,
                                      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    close(fd);
    OK(cuMemAddressReserve(&base, 2 * EXTENT, 0, 0, 0));
    OK(cuMemMap(base, EXTENT, 0, handle, 0));
    OK(cuMemMap(base + EXTENT, EXTENT, 0, handle, 0));
    OK(kit_allow(base, 2 * EXTENT, 0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
    OK(cuMemRelease(handle)); /* the mappings hold it */
    OK(cuMemsetD32(base + EXTENT, 0x5eaf00d, EXTENT / 4));
    OK(cuCtxSynchronize());
    kit_send(socket, "m", 1);
    kit_receive(socket, &word, 1);
    if (word == 'u') {
        OK(cuMemUnmap(base, 2 * EXTENT));
    }
    kit_send(socket, "d", 1);
    kit_receive(socket, &word, 1);
    return 0;
}

/* Allocates by cuMemAlloc, hands its ticket out, and stands. */
static int role_owner(int socket) {
    CUdeviceptr memory;
    CUipcMemHandle ticket;
    char word;
    kit_device(0);
    OK(cuMemAlloc(&memory, 3 * MIB));
    OK(cuMemsetD8(memory, 0x42, 3 * MIB));
    OK(cuCtxSynchronize());
    OK(cuIpcGetMemHandle(&ticket, memory));
    kit_send(socket, &ticket, sizeof ticket);
    kit_receive(socket, &word, 1);
    return 0;
}

/* Makes an extent, sends its descriptor, and is gone. */
static int role_maker(int socket) {
    int fd;
    kit_device(0);
    CUmemGenericAllocationHandle handle = kit_create(0, EXTENT);
    OK(cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    kit_send_fd(socket, fd);
    return 0;
}

static int role_stranger(int socket) {
    (void)socket;
    setenv("SIMCUDA_MEMORY", "128Mi", 1);
    FAILS(cuInit(0), CUDA_ERROR_INVALID_VALUE);
    return 0;
}

static int role_forks(int socket) {
    (void)socket;
    kit_device(0);
    pid_t child = fork();
    if (child == 0) {
        _exit(cuInit(0) == CUDA_ERROR_NOT_INITIALIZED &&
                      cuCtxSynchronize() == CUDA_ERROR_NOT_INITIALIZED
                  ? 0
                  : 1);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    OK(cuCtxSynchronize());
    return 0;
}

static void send_extent(struct peer peer, CUmemGenericAllocationHandle handle) {
    int fd;
    OK(cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    kit_send_fd(peer.socket, fd);
    close(fd);
}

/* The exporter gives its reference up; the memory is free only when the importer unmaps, or dies.
 */
static void an_importer_holds_the_memory(bool killed) {
    size_t before = kit_free_bytes();
    char word;
    CUmemGenericAllocationHandle handle = kit_create(0, EXTENT);
    struct peer peer = kit_spawn("importer");
    send_extent(peer, handle);
    kit_receive(peer.socket, &word, 1);
    CUdeviceptr base;
    uint32_t seen;
    OK(cuMemAddressReserve(&base, EXTENT, 0, 0, 0));
    OK(cuMemMap(base, EXTENT, 0, handle, 0));
    OK(kit_allow(base, EXTENT, 0, CU_MEM_ACCESS_FLAGS_PROT_READ));
    OK(cuMemcpyDtoH(&seen, base + EXTENT - 4, 4));
    CHECK(seen == 0x5eaf00d); /* one memory in two processes */
    OK(cuMemUnmap(base, EXTENT));
    OK(cuMemAddressFree(base, EXTENT));
    OK(cuMemRelease(handle));
    CHECK(kit_free_bytes() == before - EXTENT - CONTEXT);
    if (killed) {
        CHECK(kill(peer.pid, SIGKILL) == 0);
        kit_reap(peer, -SIGKILL);
    } else {
        kit_send(peer.socket, "u", 1);
        kit_receive(peer.socket, &word, 1);
        CHECK(kit_free_bytes() == before - CONTEXT);
        kit_send(peer.socket, "g", 1);
        kit_reap(peer, 0);
    }
    CHECK(kit_free_bytes() == before);
}

static void a_descriptor_on_its_way_holds_the_memory(void) {
    size_t before = kit_free_bytes();
    CUmemGenericAllocationHandle handle;
    struct peer peer = kit_spawn("maker");
    int status;
    CHECK(waitpid(peer.pid, &status, 0) == peer.pid && status == 0);
    CHECK(kit_free_bytes() == before - EXTENT); /* in the socket's queue, no process has it */
    int fd = kit_receive_fd(peer.socket);
    OK(cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)fd,
                                      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    close(fd);
    close(peer.socket);
    CHECK(kit_free_bytes() == before - EXTENT);
    OK(cuMemRelease(handle));
    CHECK(kit_free_bytes() == before);
}

/* Exhausted by a process that is dead by now: the allocation finds that out by itself. */
static void dead_processes_make_room(void) {
    size_t free_bytes = kit_free_bytes();
    CUmemGenericAllocationHandle handle = kit_create(0, EXTENT);
    struct peer peer = kit_spawn("importer");
    char word;
    send_extent(peer, handle);
    kit_receive(peer.socket, &word, 1);
    OK(cuMemRelease(handle));
    CHECK(kill(peer.pid, SIGKILL) == 0);
    kit_reap(peer, -SIGKILL);
    handle = kit_create(0, free_bytes / (2 * MIB) * (2 * MIB));
    OK(cuMemRelease(handle));
}

static void a_ticket_opens_plain_memory(void) {
    CUipcMemHandle ticket;
    CUdeviceptr opened;
    unsigned char seen[3] = {0};
    size_t before = kit_free_bytes();
    struct peer peer = kit_spawn("owner");
    kit_receive(peer.socket, &ticket, sizeof ticket);
    OK(cuIpcOpenMemHandle(&opened, ticket, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    OK(cuMemcpyDtoH(seen, opened + 3 * MIB - 3, 3));
    CHECK(seen[0] == 0x42 && seen[2] == 0x42);
    FAILS(cuMemFree(opened), CUDA_ERROR_INVALID_VALUE);
    kit_send(peer.socket, "g", 1);
    kit_reap(peer, 0);
    CHECK(kit_free_bytes() == before - 4 * MIB); /* the opener holds it */
    OK(cuIpcCloseMemHandle(opened));
    CHECK(kit_free_bytes() == before);
}

static void a_foreign_descriptor_is_no_memory(void) {
    CUmemGenericAllocationHandle handle;
    int fd;
    kit_flags(&fd);
    FAILS(cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)fd,
                                         CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
          CUDA_ERROR_INVALID_VALUE);
    close(fd);
    FAILS(cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)-1,
                                         CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
          CUDA_ERROR_INVALID_VALUE);
}

int main(int argc, char **argv) {
    int socket;
    const char *role = kit_role(argc, argv, &socket);
    if (role != NULL) {
        return strcmp(role, "importer") == 0   ? role_importer(socket)
               : strcmp(role, "owner") == 0    ? role_owner(socket)
               : strcmp(role, "maker") == 0    ? role_maker(socket)
               : strcmp(role, "stranger") == 0 ? role_stranger(socket)
               : strcmp(role, "forks") == 0    ? role_forks(socket)
                                               : 1;
    }
    kit_machine((const char *const[]){"MEMORY=64Mi", "CONTEXT=8Mi", NULL});
    kit_device(0);
    an_importer_holds_the_memory(false);
    an_importer_holds_the_memory(true);
    a_descriptor_on_its_way_holds_the_memory();
    dead_processes_make_room();
    a_ticket_opens_plain_memory();
    a_foreign_descriptor_is_no_memory();
    kit_reap(kit_spawn("stranger"), 0);
    kit_reap(kit_spawn("forks"), 0);
    return 0;
}
