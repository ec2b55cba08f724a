/* See detours.h. */
#include "lease/detours.h"

#include "link/request.h"

#include <stdio.h>

#define JOBS_IN_A_ROW 3U
#define MIB 20U

static uint32_t calls, strays, returns; /* of the job in progress */
static uint32_t row;                    /* jobs so far that took much longer than they have to */
static bool told;

void tl_detours_begin(void) {
    calls = 0;
    strays = 0;
    returns = 0;
}

void tl_detours_count(bool in_turn) {
    calls++;
    strays += !in_turn;
}

void tl_detours_return(void) {
    returns++;
}

static void tell(tierline_client *client, uint64_t copied, uint64_t once) {
    struct tlp_message message = {.type = TLP_NOTICE};
    message.notice.kind = TLP_NOTICE_KIND_ORDER_CHANGED;
    snprintf(message.notice.text, sizeof message.notice.text,
             "%u of %u launches read weights in another order than in the first jobs: a job's "
             "stream begins again %u times, and copies %llu MiB of %llu",
             strays, calls, returns, (unsigned long long)(copied >> MIB),
             (unsigned long long)(once >> MIB));
    tl_send_one_way(client, &message);
    told = true;
}

void tl_detours_end(tierline_client *client, uint64_t streamed, uint64_t extents) {
    uint64_t once = extents * client->terms.extent_bytes;
    uint64_t copied = streamed * client->terms.extent_bytes + client->job.stats.fetched_bytes;
    uint64_t spent = copied + (uint64_t)TL_RETURN_COST * returns * client->terms.extent_bytes;
    row = strays > 0 && 2 * spent > 3 * once ? row + 1 : 0;
    if (row == JOBS_IN_A_ROW && !told) {
        tell(client, copied, once);
    }
}
