/* What the process holds through the driver: which bytes, of which kind, under which address or
 * handle, and what they are charged to the budget.
 *
 * A holding lives as long as something names it: an address, each reference of a handle, each
 * mapping of it. Keys are addresses; other names are kept apart by high bits that no address has.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "tierline/interposer.h"

#define LEDGER_HANDLE(handle) ((uint64_t)(handle) ^ (UINT64_C(1) << 63))
#define LEDGER_OBJECT(pointer) ((uint64_t)(uintptr_t)(pointer) ^ (UINT64_C(1) << 62))
#define LEDGER_HOST(pointer) ((uint64_t)(uintptr_t)(pointer) ^ (UINT64_C(1) << 61))

struct holding;

/* A name on its way out while the driver is asked to free what it names. Meanwhile another thread
 * may get the same name again. */
struct ledger_leaving {
    uint64_t key;
    uint64_t references;
    struct holding *holding; /* NULL: the ledger does not know the name */
};

/* `charged` bytes are in the budget already; the rest of `bytes` is added when any are. */
void ledger_add(enum tierline_holding kind, uint64_t key, uint64_t bytes, uint64_t charged);
void ledger_note_graph(uint64_t bytes);
/* Memory was not given to others, since it is Tierline's. */
void ledger_note_refusal(void);

void ledger_leave(uint64_t key, struct ledger_leaving *leaving);
void ledger_left(struct ledger_leaving *leaving);
void ledger_stay(struct ledger_leaving *leaving);

/* Another reference of a handle, found by the address of a mapping when the handle itself was
 * released. */
void ledger_share(uint64_t key, uint64_t address);
void ledger_map(uint64_t address, uint64_t bytes, uint64_t handle_key);
void ledger_unmap(uint64_t address, uint64_t bytes);
/* What the key, or a mapping that covers it, names is given to others. */
void ledger_export(uint64_t key);

/* At the end of a hook, without locks: tells the listeners if the figures have changed (changes.h).
 */
void ledger_tell(void);

struct ledger_memory {
    uint64_t address, bytes;
    bool on_host;
};

/* All memory that has an address, in any order; free it. NULL: out of memory. */
struct ledger_memory *ledger_list(uint32_t *count);

/* A context has ended, and with it all that it owned. */
void ledger_forget_context(const void *context);

void ledger_fork_before(void);
void ledger_fork_after(bool in_child);
