/* What the tests of the simulated driver share: checks, a machine of their own, and processes that
 * talk. */
#pragma once

#include <cuda.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "simcuda.h"
#include "simcuda_upload.h"

/* Ends the program with the place and the reason. */
_Noreturn void kit_fail(const char *file, int line, const char *text, const char *reason);
void kit_expect(const char *file, int line, const char *text, CUresult seen, CUresult wanted);

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition))                                                                          \
            kit_fail(__FILE__, __LINE__, #condition, "does not hold");                             \
    } while (0)
#define OK(call) kit_expect(__FILE__, __LINE__, #call, (call), CUDA_SUCCESS)
#define FAILS(call, error) kit_expect(__FILE__, __LINE__, #call, (call), (error))

/* A fresh machine in its own folder, removed at exit. Settings are "KEY=value" strings for
 * SIMCUDA_KEY, ended by NULL. In a child process (see kit_spawn) it does nothing: the child has the
 * parent's machine. */
void kit_machine(const char *const *settings);
/* cuInit, and the primary context of a device made current. */
CUcontext kit_device(int device);
/* A function of a freshly loaded module of the current context. */
CUfunction kit_function(const char *name);
void kit_launch(CUfunction function, CUstream stream, void **parameters);

/* Free bytes of the current device. */
size_t kit_free_bytes(void);
CUmemAllocationProp kit_properties(int device);
/* cuMemCreate of exportable memory. */
CUmemGenericAllocationHandle kit_create(int device, size_t bytes);
CUresult kit_allow(CUdeviceptr address, size_t bytes, int device, CUmemAccess_flags flags);

/* Another process: this program with `role` as its one argument, joined by a socket. */
struct peer {
    pid_t pid;
    int socket;
};
struct peer kit_spawn(const char *role);
/* In the child: the role, and the socket to the parent. NULL in the parent. */
const char *kit_role(int argc, char **argv, int *socket);
/* Waits for the end; fails unless it was as expected: an exit status, or minus the signal. */
void kit_reap(struct peer peer, int expected);

void kit_send(int socket, const void *data, size_t bytes);
void kit_receive(int socket, void *data, size_t bytes);
void kit_send_fd(int socket, int fd);
int kit_receive_fd(int socket);

/* A page of flag words in shared memory, and a descriptor for other processes (-1 when none is
 * wanted). */
uint32_t *kit_flags(int *fd);
uint32_t *kit_map_flags(int fd);
void kit_set(uint32_t *word, uint32_t value);
uint32_t kit_get(const uint32_t *word);
/* Waits until another thread or stream made the word at least that. */
void kit_await(const uint32_t *word, uint32_t at_least);

/* The word at an address of the device. */
uint64_t kit_word(CUdeviceptr address);

/* A host function: counts up the word that it is given. */
void kit_note(void *word);
CUgraphExec kit_instantiate(CUgraph graph);
CUgraphNodeType kit_type_of(CUgraphNode node);
