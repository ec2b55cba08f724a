/* See swap_objects.h. */
#include "memory/swap_objects.h"

#include <ctype.h>
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>

static bool read_number(const char **at, uint64_t *number) {
    char *end = NULL;
    errno = 0;
    if (!isdigit((unsigned char)**at)) {
        return false;
    }
    *number = strtoull(*at, &end, 10);
    *at = end;
    return errno == 0;
}

bool swap_objects_read(struct swap_objects *objects, const char *text) {
    *objects = (struct swap_objects){.all = text == NULL};
    for (const char *at = text; at != NULL && *at != 0;) {
        uint64_t first = 0;
        uint64_t last = 0;
        if (objects->count == SWAP_OBJECTS_MOST || !read_number(&at, &first)) {
            return false;
        }
        last = first;
        if (*at == '-') {
            at++;
            last = UINT64_MAX;
            if (*at != 0 && *at != ',' && !read_number(&at, &last)) {
                return false;
            }
        }
        if (last < first || (*at != 0 && *at != ',') || (*at == ',' && at[1] == 0)) {
            return false;
        }
        at += *at == ',';
        objects->ranges[objects->count].first = first;
        objects->ranges[objects->count++].last = last;
    }
    return true;
}

bool swap_objects_hold(const struct swap_objects *objects, uint64_t number) {
    for (uint32_t i = 0; i < objects->count; i++) {
        if (number >= objects->ranges[i].first && number <= objects->ranges[i].last) {
            return true;
        }
    }
    return objects->all;
}
