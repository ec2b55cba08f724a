/* Connecting and closing, as a program does: under policy Swap the library has a client already,
 * which the program shares. */
#include "client/client.h"
#include "client/swap_client.h"

#include <stddef.h>

int tierline_connect(const char *socket_path, const char *process_name, tierline_client **out) {
    return tierline_connect_device(socket_path, process_name, TIERLINE_DEVICE_CPU, out);
}

int tierline_connect_device(const char *socket_path, const char *process_name, uint32_t device,
                            tierline_client **out) {
    return device == TIERLINE_DEVICE_CUDA && out != NULL && tl_swap_wanted()
               ? tl_swap_share(out)
               : tl_connect(socket_path, process_name, device, out);
}

void tierline_close(tierline_client *client) {
    if (client != NULL && !tl_swap_owns(client)) {
        tl_close(client);
    }
}
