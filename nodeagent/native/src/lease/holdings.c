/* See holdings.h. */
#include "lease/holdings.h"

#include "budget/changes.h"
#include "lease/launch_state.h"
#include "link/request.h"
#include "tierline/interposer.h"

#include <stdatomic.h>
#include <stdio.h>

#define PAUSE_NS 100000000U

static atomic_bool moved;

/* Under the client's lock. */
static uint32_t told_generation; /* of the connection; 0: none yet */
static uint64_t told_unswappable, told_own, told_ns;

static void note(void) {
    atomic_store(&moved, true);
    tl_monitor_wake();
}

void tl_holdings_watch(void) {
    told_generation = 0;
    told_unswappable = 0;
    told_own = 0;
    told_ns = 0;
    atomic_store(&moved, true);
    changes_own(note);
}

void tl_holdings_unwatch(void) {
    changes_own(NULL);
}

static void notice(tierline_client *client, uint32_t kind, uint64_t bytes, const char *text) {
    struct tlp_message message = {.type = TLP_NOTICE};
    message.notice.kind = kind;
    message.notice.size_bytes = bytes;
    snprintf(message.notice.text, sizeof message.notice.text, "%s", text);
    tl_send_one_way(client, &message);
}

static void tell(tierline_client *client, bool fresh) {
    atomic_store(&moved, false);
    uint64_t most = 0;
    uint64_t own = tierline_interposer_device_bytes(&most);
    uint64_t unswappable = tierline_interposer_unswappable_bytes();
    static const char text[] = "memory of the GPU that the process holds by itself";
    uint64_t before = fresh ? 0 : told_own;
    if (most > before && most > own) {
        notice(client, TLP_NOTICE_KIND_HELD, most, text);
        before = most;
    }
    if (own != before) {
        notice(client, TLP_NOTICE_KIND_HELD, own, text);
    }
    if (unswappable != (fresh ? 0 : told_unswappable)) {
        notice(client, TLP_NOTICE_KIND_UNSWAPPABLE, unswappable,
               "memory that can be neither moved nor dropped");
    }
    told_generation = client->generation;
    told_own = own;
    told_unswappable = unswappable;
    told_ns = tl_now_ns();
}

void tl_holdings_settle(tierline_client *client) {
    if (client->link == TL_LINK_UP && client->generation == told_generation &&
        atomic_load(&moved)) {
        tell(client, false);
    }
}

uint64_t tl_holdings_report(tierline_client *client) {
    uint64_t again_ns = TL_FOREVER; /* woken by a new connection, or by a call */
    tl_lock_acquire(&client->lock);
    bool fresh = client->link == TL_LINK_UP && client->generation != told_generation;
    uint64_t since_ns = tl_now_ns() - told_ns;
    if (client->link != TL_LINK_UP || (!fresh && !atomic_load(&moved))) {
        /* Nothing to say, or nobody to hear it. */
    } else if (!fresh && since_ns < PAUSE_NS) {
        again_ns = PAUSE_NS - since_ns;
    } else {
        tell(client, fresh);
    }
    tl_lock_release(&client->lock);
    return again_ns;
}
