/* See names.h. */
#include "driver/names.h"

int names_compare(const char *one, const char *other) {
    while (*one != '\0' && *one == *other) {
        one++;
        other++;
    }
    return (unsigned char)*one - (unsigned char)*other;
}

int names_find(const char *symbol) {
    if (!(symbol[0] == 'c' && symbol[1] == 'u') && !(symbol[0] == 'n' && symbol[1] == 'v')) {
        return NO_HOOK; /* nearly every name that a process looks up */
    }
    int low = 0;
    int high = HOOK_COUNT;
    while (low < high) {
        int middle = (low + high) / 2;
        int order = names_compare(symbol, hook_names[middle]);
        if (order == 0) {
            return middle;
        }
        if (order < 0) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    return NO_HOOK;
}
