/* See descriptor.h. */
#include "wire/descriptor.h"

#include <sys/stat.h>
#include <unistd.h>

struct tl_descriptor tl_descriptor_of(int number) {
    struct stat found;
    if (number < 0 || fstat(number, &found) != 0) {
        return TL_NO_DESCRIPTOR;
    }
    return (struct tl_descriptor){.number = number, .device = found.st_dev, .inode = found.st_ino};
}

bool tl_descriptor_is_ours(const struct tl_descriptor *descriptor) {
    struct stat found;
    return descriptor->number >= 0 && fstat(descriptor->number, &found) == 0 &&
           found.st_dev == descriptor->device && found.st_ino == descriptor->inode;
}

void tl_descriptor_close(struct tl_descriptor *descriptor) {
    if (tl_descriptor_is_ours(descriptor)) {
        close(descriptor->number);
    }
    *descriptor = TL_NO_DESCRIPTOR;
}
