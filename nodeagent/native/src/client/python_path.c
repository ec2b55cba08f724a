/* Lets the Python of a pod find the plugin: where TIERLINE_PYTHON names its folder, that folder
 * comes to the end of PYTHONPATH before the program starts.
 *
 * A container's description could only replace a PYTHONPATH of the image's own; here it is
 * extended. What the program named itself stays in front, and programs that it starts inherit the
 * result as it is.
 */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool names(const char *path, const char *folder) {
    size_t length = strlen(folder);
    while (path != NULL) {
        if (strncmp(path, folder, length) == 0 && (path[length] == ':' || path[length] == '\0')) {
            return true;
        }
        path = strchr(path, ':');
        path = path == NULL ? NULL : path + 1;
    }
    return false;
}

__attribute__((constructor)) static void extend_python_path(void) {
    const char *folder = getenv("TIERLINE_PYTHON");
    const char *own = getenv("PYTHONPATH");
    if (folder == NULL || *folder == '\0' || names(own, folder)) {
        return;
    }
    if (own == NULL || *own == '\0') {
        setenv("PYTHONPATH", folder, 1);
        return;
    }
    size_t size = strlen(own) + 1 + strlen(folder) + 1;
    char *path = malloc(size);
    if (path != NULL) {
        snprintf(path, size, "%s:%s", own, folder);
        setenv("PYTHONPATH", path, 1);
        free(path);
    }
}
