/* The ring experiment: one process owns the memory and copies, another computes through an aliased
 * ring.
 *
 * The agent makes g extents and a page of flag words, exports both, and copies N extents of weights
 * in order: each when its slot has been consumed, then it publishes it. The client maps extent j to
 * slot j mod g, read-only, and for each extent waits for its publication, computes on it and says
 * that it is consumed. All waits and writes are stream memory operations; no CPU is in the loop. In
 * the second round the client's part is a graph.
 *
 * Proven here: the right bytes arrive in the right order, a slot is never overwritten while it is
 * read (the kernel reads over its whole duration), and a link never exceeds its bandwidth. How
 * close to it the whole comes is printed, not asserted, because other programs run on the machine.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kit.h"

enum { EXTENTS = 12, SLOTS = 3, LINK = 300 << 20, COMPUTE_NS = 2000000 };
static const size_t EXTENT = 2 << 20;
enum { PUBLISHED = 0, CONSUMED = 16 }; /* words of the page */

static CUdeviceptr word(uint32_t *flags, size_t index) {
    return (CUdeviceptr)(uintptr_t)&flags[index];
}

static void client_enqueue(CUstream stream, CUfunction gemm, CUdeviceptr arena, CUdeviceptr chain,
                           uint32_t *flags) {
    for (uint32_t j = 0; j < EXTENTS; j++) {
        uint64_t weights = arena + j * EXTENT;
        uint64_t bytes = EXTENT;
        uint64_t in = chain + 8ULL * j;
        uint64_t out = in + 8;
        uint64_t duration_ns = COMPUTE_NS;
        OK(cuStreamWaitValue32(stream, word(flags, PUBLISHED), j + 1, CU_STREAM_WAIT_VALUE_GEQ));
        kit_launch(gemm, stream, (void *[]){&weights, &bytes, &in, &out, &duration_ns});
        OK(cuStreamWriteValue32(stream, word(flags, CONSUMED), j + 1, 0));
    }
}

static int role_client(int socket) {
    CUmemGenericAllocationHandle slots[SLOTS];
    CUdeviceptr arena;
    CUdeviceptr chain;
    CUstream stream;
    CUgraph graph;
    CUgraphExec exec;
    uint64_t result;
    char go;
    kit_device(0);
    for (int i = 0; i < SLOTS; i++) {
        int fd = kit_receive_fd(socket);
        OK(cuMemImportFromShareableHandle(&slots[i], (void *)(intptr_t)fd,
                                          CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
        close(fd);
    }
    int page = kit_receive_fd(socket);
    uint32_t *flags = kit_map_flags(page);
    close(page);
    OK(cuMemHostRegister(flags, 4096, CU_MEMHOSTREGISTER_PORTABLE));
    OK(cuMemAddressReserve(&arena, EXTENTS * EXTENT, 0, 0, 0));
    for (uint64_t j = 0; j < EXTENTS; j++) {
        OK(cuMemMap(arena + j * EXTENT, EXTENT, 0, slots[j % SLOTS], 0));
    }
    OK(kit_allow(arena, EXTENTS * EXTENT, 0, CU_MEM_ACCESS_FLAGS_PROT_READ));
    OK(cuMemAlloc(&chain, 8ULL * (EXTENTS + 1)));
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CUfunction gemm = kit_function("sim_gemm_like");
    OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    client_enqueue(stream, gemm, arena, chain, flags);
    OK(cuStreamEndCapture(stream, &graph));
    OK(cuGraphInstantiate(&exec, graph, 0));
    for (int round = 0; round < 2; round++) {
        uint64_t seed = (uint64_t)round + 1;
        kit_receive(socket, &go, 1);
        OK(cuMemsetD8(chain, 0, 8ULL * (EXTENTS + 1)));
        OK(simcuda_upload(chain, &seed, 8));
        if (round == 0) {
            client_enqueue(stream, gemm, arena, chain, flags);
        } else {
            OK(cuGraphLaunch(exec, stream));
        }
        kit_send(socket, "b", 1);
        OK(cuStreamSynchronize(stream));
        OK(cuMemcpyDtoH(&result, chain + 8ULL * EXTENTS, 8));
        kit_send(socket, &result, sizeof result);
    }
    return 0;
}

static void agent_enqueue(CUstream stream, CUdeviceptr ring, const unsigned char *weights,
                          uint32_t *flags) {
    for (uint32_t j = 0; j < EXTENTS; j++) {
        if (j >= SLOTS) {
            OK(cuStreamWaitValue32(stream, word(flags, CONSUMED), j - SLOTS + 1,
                                   CU_STREAM_WAIT_VALUE_GEQ));
        }
        OK(cuMemcpyHtoDAsync(ring + (j % SLOTS) * EXTENT, weights + j * EXTENT, EXTENT, stream));
        OK(cuStreamWriteValue32(stream, word(flags, PUBLISHED), j + 1, 0));
    }
}

static void agent(void) {
    CUdeviceptr ring;
    CUstream stream;
    CUevent start;
    CUevent end;
    void *pinned;
    int page;
    uint32_t *flags = kit_flags(&page);
    struct peer peer = kit_spawn("client");
    OK(cuMemHostRegister(flags, 4096, CU_MEMHOSTREGISTER_PORTABLE));
    OK(cuMemHostAlloc(&pinned, EXTENTS * EXTENT, 0));
    uint64_t *weights = pinned;
    for (size_t i = 0; i < EXTENTS * EXTENT / 8; i++) {
        weights[i] = i * 0x2545f4914f6cdd1dU;
    }
    OK(cuMemAddressReserve(&ring, SLOTS * EXTENT, 0, 0, 0));
    for (uint64_t i = 0; i < SLOTS; i++) {
        CUmemGenericAllocationHandle handle = kit_create(0, EXTENT);
        int fd;
        OK(cuMemMap(ring + i * EXTENT, EXTENT, 0, handle, 0));
        OK(cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
        kit_send_fd(peer.socket, fd);
        close(fd);
    }
    OK(kit_allow(ring, SLOTS * EXTENT, 0, CU_MEM_ACCESS_FLAGS_PROT_READWRITE));
    kit_send_fd(peer.socket, page);
    close(page);
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuEventCreate(&start, 0));
    OK(cuEventCreate(&end, 0));
    for (int round = 0; round < 2; round++) {
        char begun;
        uint64_t result;
        float milliseconds;
        kit_set(&flags[PUBLISHED], 0);
        kit_set(&flags[CONSUMED], 0);
        kit_send(peer.socket, "g", 1);
        kit_receive(peer.socket, &begun, 1);
        CHECK(kit_get(&flags[CONSUMED]) == 0); /* the client stands at its first gate */
        OK(cuEventRecord(start, stream));
        agent_enqueue(stream, ring, pinned, flags);
        OK(cuStreamWaitValue32(stream, word(flags, CONSUMED), EXTENTS, CU_STREAM_WAIT_VALUE_GEQ));
        OK(cuEventRecord(end, stream));
        kit_receive(peer.socket, &result, sizeof result);
        CHECK(result == simcuda_hash((uint64_t)round + 1, pinned, EXTENTS * EXTENT));
        OK(cuEventSynchronize(end));
        OK(cuEventElapsedTime(&milliseconds, start, end));
        double link_ms = 1e3 * (double)(EXTENTS * EXTENT) / LINK;
        CHECK(milliseconds >= link_ms * 0.999);
        printf("%s: %.1f ms, the link alone %.1f ms, ratio %.3f, %d of %d extents held\n",
               round == 0 ? "eager" : "graph", (double)milliseconds, link_ms,
               (double)milliseconds / link_ms, SLOTS, EXTENTS);
    }
    CHECK(simcuda_moved_bytes(0, 0) >= EXTENT * 2 * EXTENTS);
    kit_reap(peer, 0);
}

int main(int argc, char **argv) {
    int socket;
    if (kit_role(argc, argv, &socket) != NULL) {
        return role_client(socket);
    }
    kit_machine((const char *const[]){"MEMORY=64Mi", "H2D=300Mi", NULL});
    kit_device(0);
    agent();
    return 0;
}
