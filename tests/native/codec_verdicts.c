/* Says of each file named on standard input whether the C codec accepts it as a
 * frame, and as what: one line each, as tests/fuzz/verdicts.py prints it for
 * the Python codec. */
#include "describe.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static void judge(const uint8_t *data, size_t size) {
    struct tlp_header header;
    struct tlp_message message;
    struct tlp_refusal why;
    bool headed = size >= TLP_HEADER_BYTES;
    bool refused = headed && tlp_decode_header(data, &header, &why) != 0;
    bool whole = headed && !refused && size - TLP_HEADER_BYTES >= header.payload_length;
    if (whole) {
        refused = tlp_decode(header.type, data + TLP_HEADER_BYTES, header.payload_length, &message,
                             &why) != 0;
    }
    if (refused) {
        printf("refused %u\n", why.code);
    } else if (!whole) {
        puts("incomplete");
    } else {
        printf("%u ", header.sequence);
        describe_message(stdout, &message);
        putchar('\n');
    }
}

int main(void) {
    char path[4096];
    while (fgets(path, sizeof path, stdin) != NULL) {
        path[strcspn(path, "\n")] = 0;
        FILE *file = fopen(path, "rb");
        if (file == NULL) {
            perror(path);
            return 1;
        }
        static uint8_t data[TLP_MAX_FRAME + 1];
        size_t size = fread(data, 1, sizeof data, file);
        fclose(file);
        judge(data, size);
    }
    return 0;
}
