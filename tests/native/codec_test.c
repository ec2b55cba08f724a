/* The C codec against the golden vectors, and against every way to cut or
 * change them. */
#include "describe.h"
#include "expect.h"
#include "vectors.h"

#include <string.h>

static char *described(const struct tlp_message *message) {
    char *text = NULL;
    size_t size = 0;
    FILE *to = open_memstream(&text, &size);
    EXPECT(to != NULL);
    describe_message(to, message);
    fclose(to);
    return text;
}

/* Decodes from memory of exactly the given size, so that a sanitizer sees one
 * byte too many. */
static int decode(const uint8_t *frame, size_t length, struct tlp_header *header,
                  struct tlp_message *message, uint8_t **kept, struct tlp_refusal *why) {
    *kept = NULL;
    if (length < TLP_HEADER_BYTES) {
        why->code = TLP_ERROR_CODE_MALFORMED;
        return -1;
    }
    if (tlp_decode_header(frame, header, why) != 0) {
        return -1;
    }
    if (header->payload_length != length - TLP_HEADER_BYTES) {
        why->code = TLP_ERROR_CODE_MALFORMED;
        return -1;
    }
    *kept = malloc(header->payload_length + 1);
    EXPECT(*kept != NULL);
    uint8_t *payload = *kept + 1; /* unaligned on purpose */
    memcpy(payload, frame + TLP_HEADER_BYTES, header->payload_length);
    return tlp_decode(header->type, payload, header->payload_length, message, why);
}

static void check_accepted(const struct vector *vector) {
    struct tlp_header header;
    struct tlp_message message;
    struct tlp_refusal why;
    uint8_t *kept;
    EXPECT(decode(vector->frame, vector->length, &header, &message, &kept, &why) == 0);
    char *text = described(&message);
    if (strcmp(text, vector->expected) != 0) {
        fprintf(stderr, "%s:\n got %s\nwant %s\n", vector->name, text, vector->expected);
        exit(1);
    }
    static uint8_t again[TLP_MAX_FRAME];
    size_t length = tlp_encode(&message, header.sequence, again, sizeof again);
    EXPECT(length == vector->length && memcmp(again, vector->frame, length) == 0);
    EXPECT(tlp_encode(&message, header.sequence, again, length - 1) == 0);
    free(text);
    free(kept);
}

static void check_refused(const struct vector *vector) {
    struct tlp_header header;
    struct tlp_message message;
    struct tlp_refusal why;
    uint8_t *kept;
    EXPECT(decode(vector->frame, vector->length, &header, &message, &kept, &why) != 0);
    if (why.code != strtoul(vector->expected, NULL, 10)) {
        fprintf(stderr, "%s: code %u, want %s\n", vector->name, why.code, vector->expected);
        exit(1);
    }
    free(kept);
}

/* No cut payload of a fixed message is accepted, and no single changed byte is
 * misread: what is accepted encodes to the very same bytes. */
static void check_mutations(const struct vector *vector) {
    static struct vector changed;
    struct tlp_header header;
    struct tlp_message message;
    struct tlp_refusal why;
    uint8_t *kept;
    for (size_t at = 0; at < vector->length; at++) {
        for (int bit = 0; bit < 8; bit++) {
            changed = *vector;
            changed.frame[at] ^= (uint8_t)(1 << bit);
            if (decode(changed.frame, changed.length, &header, &message, &kept, &why) == 0) {
                static uint8_t again[TLP_MAX_FRAME];
                size_t length = tlp_encode(&message, header.sequence, again, sizeof again);
                EXPECT(length == changed.length && memcmp(again, changed.frame, length) == 0);
            }
            free(kept);
        }
    }
    for (size_t length = TLP_HEADER_BYTES; length < vector->length; length++) {
        changed = *vector;
        uint32_t payload = (uint32_t)(length - TLP_HEADER_BYTES);
        memcpy(changed.frame, &payload, sizeof payload);
        EXPECT(decode(changed.frame, length, &header, &message, &kept, &why) != 0);
        free(kept);
    }
}

int main(int count, char **arguments) {
    EXPECT(count == 2);
    FILE *file = fopen(arguments[1], "r");
    EXPECT(file != NULL);
    static struct vector vector;
    int seen = 0;
    while (next_vector(file, &vector)) {
        if (vector.accepted) {
            check_accepted(&vector);
            check_mutations(&vector);
        } else {
            check_refused(&vector);
        }
        free(vector.name);
        free(vector.expected);
        seen++;
    }
    fclose(file);
    EXPECT(seen > 80);
    struct tlp_message unknown = {.type = 77};
    uint8_t frame[64];
    EXPECT(tlp_encode(&unknown, 1, frame, sizeof frame) == 0);
    printf("%d vectors\n", seen);
    return 0;
}
