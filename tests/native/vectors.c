/* See vectors.h. */
#include "vectors.h"

#include "expect.h"

#include <string.h>

static char *field(char **rest) {
    char *found = strsep(rest, "|");
    EXPECT(found != NULL);
    return found;
}

bool next_vector(FILE *file, struct vector *out) {
    char *line = NULL;
    size_t capacity = 0;
    while (getline(&line, &capacity, file) > 0) {
        line[strcspn(line, "\n")] = 0;
        if (line[0] == '#' || line[0] == 0) {
            continue;
        }
        char *rest = line;
        out->accepted = strcmp(field(&rest), "accept") == 0;
        out->name = strdup(field(&rest));
        const char *hex = field(&rest);
        out->expected = strdup(field(&rest));
        out->length = strlen(hex) / 2;
        EXPECT(out->length <= sizeof out->frame && out->name != NULL && out->expected != NULL);
        for (size_t i = 0; i < out->length; i++) {
            char pair[3] = {hex[2 * i], hex[2 * i + 1], 0};
            out->frame[i] = (uint8_t)strtoul(pair, NULL, 16);
        }
        free(line);
        return true;
    }
    free(line);
    return false;
}
