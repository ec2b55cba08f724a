/* Tells the agent how many bytes of fast memory this process holds by itself, and how many of them
 * cannot be swapped.
 *
 * Driver calls note that the figures moved, on their own threads and without waiting; the monitor
 * sends them, as few times as it can: once a connection, and when they changed, ten times a second
 * at most. The most that was held in between is told as well.
 *
 * Invariant: when a job begins that the program asked for, the agent knows what was held as the
 * last call before it ended.
 */
#ifndef TIERLINE_HOLDINGS_H
#define TIERLINE_HOLDINGS_H

#include "link/state.h"

/* The figures of a client that was adopted are to be sent, from now on. */
void tl_holdings_watch(void);
void tl_holdings_unwatch(void);

/* Sends what changed, before a job begins; with the client's lock. */
void tl_holdings_settle(tierline_client *client);

/* Sends what is due, if there is a connection; by the monitor, without locks. Returns nanoseconds
 * until the next time that something may be due, TL_FOREVER when nothing is. */
uint64_t tl_holdings_report(tierline_client *client);

#endif
