/* See staging.h. */
#include "loading/staging.h"

uint32_t tl_take_staging_slot(tierline_client *client) {
    for (;;) {
        for (uint32_t i = 0; i < client->staging_slots; i++) {
            if ((client->staging_taken & (1ULL << i)) == 0) {
                client->staging_taken |= 1ULL << i;
                return i;
            }
        }
        tl_event_wait(&client->changed, &client->lock, TL_FOREVER);
    }
}

void tl_return_staging_slot(tierline_client *client, uint32_t slot) {
    client->staging_taken &= ~(1ULL << slot);
    tl_event_announce(&client->changed);
}
