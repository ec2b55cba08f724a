/* libFuzzer target over the C codec: any bytes as a stream of frames.
 *
 * What is accepted must encode to the same bytes, and must be printable without reading outside.
 */
#include "describe.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(const struct tlp_message *message, const struct tlp_header *header,
                  const uint8_t *frame) {
    static uint8_t again[TLP_MAX_FRAME];
    size_t length = tlp_encode(message, header->sequence, again, sizeof again);
    if (length != TLP_HEADER_BYTES + header->payload_length || memcmp(again, frame, length) != 0) {
        abort();
    }
    static FILE *nowhere;
    if (nowhere == NULL) {
        nowhere = fopen("/dev/null", "w");
    }
    describe_message(nowhere, message);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    size_t at = 0;
    while (size - at >= TLP_HEADER_BYTES) {
        struct tlp_header header;
        struct tlp_message message;
        struct tlp_refusal why;
        if (tlp_decode_header(data + at, &header, &why) != 0 ||
            size - at - TLP_HEADER_BYTES < header.payload_length) {
            break;
        }
        /* An own copy of exactly the payload, so that a sanitizer sees one byte too many. */
        uint8_t *payload = malloc(header.payload_length + 1U);
        if (payload == NULL) {
            break;
        }
        memcpy(payload, data + at + TLP_HEADER_BYTES, header.payload_length);
        int refused = tlp_decode(header.type, payload, header.payload_length, &message, &why);
        if (refused == 0) {
            check(&message, &header, data + at);
        }
        free(payload);
        if (refused != 0) {
            break;
        }
        at += TLP_HEADER_BYTES + header.payload_length;
    }
    return 0;
}
