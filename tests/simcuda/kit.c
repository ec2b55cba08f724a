/* See kit.h. */
#include "kit.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CHILD_SOCKET = 9, PAGE_BYTES = 4096 };

static char machine_folder[128];

static void folder_empty(const char *path) {
    DIR *folder = opendir(path);
    if (folder == NULL) {
        return;
    }
    for (struct dirent *name; (name = readdir(folder)) != NULL;) {
        unlinkat(dirfd(folder), name->d_name, 0);
    }
    closedir(folder);
    rmdir(path);
}

static void machine_remove(void) {
    char blocks[160];
    snprintf(blocks, sizeof blocks, "%s/blocks", machine_folder);
    folder_empty(blocks);
    folder_empty(machine_folder);
}

void kit_fail(const char *file, int line, const char *text, const char *reason) {
    fprintf(stderr, "%s:%d: %s: %s\n", file, line, text, reason);
    machine_remove(); /* of a child: nothing, it has no folder */
    _exit(1);
}

void kit_expect(const char *file, int line, const char *text, CUresult seen, CUresult wanted) {
    if (seen == wanted) {
        return;
    }
    const char *seen_name = NULL;
    const char *wanted_name = NULL;
    char reason[160];
    cuGetErrorName(seen, &seen_name);
    cuGetErrorName(wanted, &wanted_name);
    snprintf(reason, sizeof reason, "answered %s (%d), not %s", seen_name ? seen_name : "?",
             (int)seen, wanted_name ? wanted_name : "?");
    kit_fail(file, line, text, reason);
}

void kit_machine(const char *const *settings) {
    if (getenv("KIT_CHILD") != NULL) {
        return;
    }
    const char *parent = getenv("KIT_FOLDER");
    snprintf(machine_folder, sizeof machine_folder, "%s/simcuda-test-XXXXXX",
             parent == NULL ? "/dev/shm" : parent);
    CHECK(mkdtemp(machine_folder) != NULL);
    CHECK(atexit(machine_remove) == 0);
    setenv("SIMCUDA_STATE", machine_folder, 1);
    for (; settings != NULL && *settings != NULL; settings++) {
        char name[64] = "SIMCUDA_";
        const char *equals = strchr(*settings, '=');
        CHECK(equals != NULL && equals - *settings < 40);
        strncat(name, *settings, (size_t)(equals - *settings));
        setenv(name, equals + 1, 1);
    }
}

CUcontext kit_device(int device) {
    CUdevice found;
    CUcontext ctx;
    OK(cuInit(0));
    OK(cuDeviceGet(&found, device));
    OK(cuDevicePrimaryCtxRetain(&ctx, found));
    OK(cuCtxSetCurrent(ctx));
    return ctx;
}

CUfunction kit_function(const char *name) {
    CUmodule module;
    CUfunction function;
    OK(cuModuleLoadData(&module, SIMCUDA_IMAGE));
    OK(cuModuleGetFunction(&function, module, name));
    OK(cuFuncLoad(function));
    return function;
}

void kit_launch(CUfunction function, CUstream stream, void **parameters) {
    OK(cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, stream, parameters, NULL));
}

size_t kit_free_bytes(void) {
    size_t free_bytes;
    OK(cuMemGetInfo(&free_bytes, NULL));
    return free_bytes;
}

CUmemAllocationProp kit_properties(int device) {
    CUmemAllocationProp properties;
    memset(&properties, 0, sizeof properties);
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    properties.location.id = device;
    return properties;
}

CUmemGenericAllocationHandle kit_create(int device, size_t bytes) {
    CUmemAllocationProp properties = kit_properties(device);
    CUmemGenericAllocationHandle handle;
    OK(cuMemCreate(&handle, bytes, &properties, 0));
    return handle;
}

CUresult kit_allow(CUdeviceptr address, size_t bytes, int device, CUmemAccess_flags flags) {
    CUmemAccessDesc access;
    memset(&access, 0, sizeof access);
    access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    access.location.id = device;
    access.flags = flags;
    return cuMemSetAccess(address, bytes, &access, 1);
}

struct peer kit_spawn(const char *role) {
    int pair[2];
    char program[PATH_MAX] = {0};
    CHECK(readlink("/proc/self/exe", program, sizeof program - 1) > 0);
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
    char role_copy[64];
    snprintf(role_copy, sizeof role_copy, "%s", role);
    char *arguments[] = {program, role_copy, NULL};
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, pair[1], CHILD_SOCKET);
    struct peer peer = {.socket = pair[0]};
    setenv("KIT_CHILD", "1", 1);
    CHECK(posix_spawn(&peer.pid, program, &actions, NULL, arguments, environ) == 0);
    unsetenv("KIT_CHILD");
    posix_spawn_file_actions_destroy(&actions);
    close(pair[1]);
    return peer;
}

const char *kit_role(int argc, char **argv, int *socket) {
    *socket = CHILD_SOCKET;
    return getenv("KIT_CHILD") != NULL && argc == 2 ? argv[1] : NULL;
}

void kit_reap(struct peer peer, int expected) {
    int status;
    CHECK(waitpid(peer.pid, &status, 0) == peer.pid);
    int seen = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
    if (seen != expected) {
        char reason[64];
        snprintf(reason, sizeof reason, "ended with %d, not %d", seen, expected);
        kit_fail(__FILE__, __LINE__, "the other process", reason);
    }
    close(peer.socket);
}

void kit_send(int socket, const void *data, size_t bytes) {
    CHECK(send(socket, data, bytes, MSG_NOSIGNAL) == (ssize_t)bytes);
}

void kit_receive(int socket, void *data, size_t bytes) {
    CHECK(recv(socket, data, bytes, MSG_WAITALL) == (ssize_t)bytes);
}

void kit_send_fd(int socket, int fd) {
    char byte = 0;
    struct iovec part = {&byte, 1};
    union {
        struct cmsghdr head;
        char room[CMSG_SPACE(sizeof(int))];
    } control;
    memset(&control, 0, sizeof control);
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = &control,
                             .msg_controllen = sizeof control.room};
    control.head.cmsg_level = SOL_SOCKET;
    control.head.cmsg_type = SCM_RIGHTS;
    control.head.cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(&control.head), &fd, sizeof fd);
    CHECK(sendmsg(socket, &message, MSG_NOSIGNAL) == 1);
}

int kit_receive_fd(int socket) {
    char byte;
    struct iovec part = {&byte, 1};
    union {
        struct cmsghdr head;
        char room[CMSG_SPACE(sizeof(int))];
    } control;
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = &control,
                             .msg_controllen = sizeof control.room};
    int fd;
    CHECK(recvmsg(socket, &message, MSG_CMSG_CLOEXEC) == 1);
    CHECK(message.msg_controllen >= CMSG_LEN(sizeof fd));
    memcpy(&fd, CMSG_DATA(&control.head), sizeof fd);
    return fd;
}

uint32_t *kit_map_flags(int fd) {
    void *page = mmap(NULL, PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(page != MAP_FAILED);
    return page;
}

uint32_t *kit_flags(int *fd) {
    int made = memfd_create("flags", MFD_CLOEXEC);
    CHECK(made >= 0 && ftruncate(made, PAGE_BYTES) == 0);
    uint32_t *words = kit_map_flags(made);
    if (fd != NULL) {
        *fd = made;
    } else {
        close(made);
    }
    return words;
}

void kit_set(uint32_t *word, uint32_t value) {
    atomic_store((_Atomic uint32_t *)word, value);
}

uint32_t kit_get(const uint32_t *word) {
    return atomic_load((const _Atomic uint32_t *)word);
}

void kit_await(const uint32_t *word, uint32_t at_least) {
    while (kit_get(word) < at_least) {
        sched_yield();
    }
}

uint64_t kit_word(CUdeviceptr address) {
    uint64_t word;
    OK(cuMemcpyDtoH(&word, address, 8));
    return word;
}

void kit_note(void *word) {
    kit_set(word, kit_get(word) + 1);
}

CUgraphExec kit_instantiate(CUgraph graph) {
    CUgraphExec exec;
    OK(cuGraphInstantiate(&exec, graph, 0));
    return exec;
}

CUgraphNodeType kit_type_of(CUgraphNode node) {
    CUgraphNodeType type;
    OK(cuGraphNodeGetType(node, &type));
    return type;
}
