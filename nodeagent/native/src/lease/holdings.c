/* See holdings.h. */
#include "lease/holdings.h"

#include "budget/changes.h"
#include "lease/launch_state.h"
#include "link/request.h"
#include "tierline/interposer.h"

#include <stdatomic.h>
#include <string.h>

#define PAUSE_NS 100000000U

static atomic_bool moved;

/* The monitor's. */
static uint32_t told_generation; /* of the connection; 0: none yet */
static uint64_t told_bytes, told_ns;

static void note(void) {
    atomic_store(&moved, true);
    tl_monitor_wake();
}

void tl_holdings_watch(void) {
    told_generation = 0;
    told_bytes = 0;
    told_ns = 0;
    atomic_store(&moved, true);
    changes_own(note);
}

void tl_holdings_unwatch(void) {
    changes_own(NULL);
}

uint64_t tl_holdings_report(tierline_client *client) {
    uint64_t now_ns = tl_now_ns();
    uint64_t since_ns = now_ns - told_ns;
    uint64_t bytes = tierline_interposer_unswappable_bytes();
    tl_lock_acquire(&client->lock);
    bool up = client->link == TL_LINK_UP;
    bool fresh = up && client->generation != told_generation;
    if (!up || (!fresh && !atomic_load(&moved))) {
        tl_lock_release(&client->lock);
        return TL_FOREVER; /* woken by a new connection, or by a call */
    }
    if (!fresh && since_ns < PAUSE_NS) {
        tl_lock_release(&client->lock);
        return PAUSE_NS - since_ns;
    }
    atomic_store(&moved, false);
    if (bytes != (fresh ? 0 : told_bytes)) {
        struct tlp_message message = {.type = TLP_NOTICE};
        message.notice.kind = TLP_NOTICE_KIND_UNSWAPPABLE;
        message.notice.size_bytes = bytes;
        static const char text[] = "memory that can be neither moved nor dropped";
        memcpy(message.notice.text, text, sizeof text);
        tl_send_one_way(client, &message);
        told_ns = now_ns;
    }
    told_generation = client->generation;
    told_bytes = bytes;
    tl_lock_release(&client->lock);
    return TL_FOREVER;
}
