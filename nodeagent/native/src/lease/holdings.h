/* Tells the agent how many bytes of fast memory this process holds that cannot be swapped.
 *
 * Driver calls note that the figure moved, on their own threads and without waiting; the monitor
 * sends it, as few times as it can: once a connection, and when it changed, ten times a second at
 * most.
 */
#ifndef TIERLINE_HOLDINGS_H
#define TIERLINE_HOLDINGS_H

#include "link/state.h"

/* The figure of a client that was adopted is to be sent, from now on. */
void tl_holdings_watch(void);
void tl_holdings_unwatch(void);

/* Sends what is due, if there is a connection; by the monitor, without locks. Returns nanoseconds
 * until the next time that something may be due, TL_FOREVER when nothing is. */
uint64_t tl_holdings_report(tierline_client *client);

#endif
