/* The simulated machine that processes with the same state folder share.
 *
 * It owns three things: which process holds how much memory of which device, which has its turn at
 * an engine, and which device is lost. Everything else (contexts, streams, addresses) is a
 * process's own.
 *
 * Memory is accounted by the kernel, not by counting. A block is a file on a tmpfs, created and
 * locked (flock, shared) through one open file description. That description lives exactly as long
 * as any descriptor or mapping of it does, in any process, or in a message on its way: just what
 * keeps the physical memory of a real handle. Its lock goes with it, so a block whose lock can be
 * taken exclusively is free, however its holders died. The used bytes in shared memory are a cache
 * of that, put right by a sweep whenever somebody asks for the figure or an allocation would fail.
 * (A memfd would serve as well but has no name under which another process could try its lock.)
 *
 * Engines are not locked: each is one word that holds the time until which it is taken. A thread
 * that moves a chunk advances the word by the chunk's duration and sleeps until then, so chunks of
 * several processes alternate, and a process that dies leaves an engine taken for at most one
 * chunk's time.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "config.h"

enum { HOST_MEMORY = -1 };

struct block {
    int fd; /* -1 when there is none; the block's owner closes it by machine_block_close */
    int device;
    uint64_t id;
    uint64_t bytes;
};

/* Joins the machine, or creates it. Prints a sentence and returns false when that fails. */
bool machine_join(void);
const struct config *machine_config(void);

/* Takes bytes of a device (or HOST_MEMORY, unlimited). Backed blocks can be mapped; others only
 * count. False when the device has not so much left. */
bool machine_block_create(int device, uint64_t bytes, bool backed, struct block *block);
/* Another process's descriptor of a block: takes its own reference to it. False when it is none. */
bool machine_block_adopt(int fd, struct block *block);
/* Opens a block by its number (cuIpcOpenMemHandle). */
bool machine_block_open(int device, uint64_t bytes, uint64_t id, struct block *block);
/* Gives the descriptor up; the memory is free when nobody else holds the block. */
void machine_block_close(struct block *block);
/* Bytes in use now, exact. */
uint64_t machine_used_bytes(int device);

/* Nanoseconds that moving bytes takes on an engine at its present speed. */
uint64_t machine_duration_ns(int device, enum engine engine, uint64_t bytes, uint64_t bandwidth);
/* Nanoseconds that a kernel which says it takes so long really takes. */
uint64_t machine_compute_ns(int device, uint64_t duration_ns);
/* Takes the engine for a duration, in turn; returns the CLOCK_MONOTONIC time at which it is over.
 * A caller that goes on with what it did on the engine until `since` names that time, so that
 * waking up late costs nothing; 0 for none. */
uint64_t machine_engine_take(int device, enum engine engine, uint64_t duration_ns, uint64_t since);
void machine_count_moved(int device, enum engine engine, uint64_t bytes);
void machine_set_speed(int device, enum engine engine, uint64_t thousandths);

/* A device is lost and restored by generations, so that contexts from before stay dead afterwards.
 */
void machine_set_lost(int device, bool lost);
bool machine_is_lost(int device);
uint64_t machine_loss_generation(int device);

/* The last error (Xid) that the kernel's side reported of a device, and in the upper half how many
 * there were. The same error as before is not reported again. */
void machine_report_xid(int device, uint32_t code);
uint64_t machine_xid(int device);

uint64_t machine_now_ns(void);
void machine_sleep_until(uint64_t time_ns);
