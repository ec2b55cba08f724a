/* Requests and replies over the connection, for several threads at once. All with the lock held,
 * which they release while they wait. */
#ifndef TIERLINE_REQUEST_H
#define TIERLINE_REQUEST_H

#include "link/state.h"

enum tl_persistence { TL_REPEAT_AFTER_RECONNECT, TL_FAIL_ON_RECONNECT };
/* Around each wait for the agent. */
void tl_waits_begin(tierline_client *client);
void tl_waits_end(tierline_client *client);
int tl_request(tierline_client *client, const struct tlp_message *message, uint16_t expected,
               struct tlp_message *reply, enum tl_persistence persistence);
/* Sends JOB_END and lets its answer come when it may: what is sent next comes after it anyway. */
int tl_send_unawaited(tierline_client *client, const struct tlp_message *message);
int tl_send_one_way(tierline_client *client, const struct tlp_message *message);
/* Leaves a message, of TL_UNTOLD_FRAME bytes at most, to whatever is sent next, or to tl_tell. */
void tl_tell_later(tierline_client *client, const struct tlp_message *message);
void tl_tell(tierline_client *client);
int tl_ensure_connected(tierline_client *client);
/* Makes one attempt, if the link is down and nobody reads from it. 0 or a code. */
int tl_try_to_connect(tierline_client *client);
void tl_break_link(tierline_client *client);
/* Whether the program has left open what the link lies in; breaks the link if not. */
bool tl_link_is_ours(tierline_client *client);
void tl_pump(tierline_client *client, int timeout_ms);
/* Reads what has come without waiting. */
void tl_look(tierline_client *client);

#endif
