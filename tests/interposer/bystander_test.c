/* A program that has nothing to do with CUDA. Checks that dlsym behaves as ever, through both of
 * its symbol versions, and prints what could show that somebody was here: descriptors, threads,
 * bytes allocated, libraries loaded (all but the interposer and its dependencies). */
#include <dirent.h>
#include <dlfcn.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lookups.h"

__attribute__((visibility("default"))) int lookups_marker(void) {
    return 2; /* before the library's own in the order of search */
}

void *old_dlsym(void *handle, const char *name);
__asm__(".symver old_dlsym, dlsym@GLIBC_2.2.5");

static void expect(int condition, const char *text) {
    if (!condition) {
        fprintf(stderr, "bystander: %s does not hold\n", text);
        exit(1);
    }
}
#define EXPECT(condition) expect(condition, #condition)

static int entries(const char *path) {
    int count = 0;
    DIR *folder = opendir(path);
    EXPECT(folder != NULL);
    while (readdir(folder) != NULL) {
        count++;
    }
    closedir(folder);
    return count;
}

int main(void) {
    size_t allocated = mallinfo2().uordblks;
    int files = entries("/proc/self/fd");
    int threads = entries("/proc/self/task");
    typedef int marker(void);
    marker *first = (marker *)lookups_default("lookups_marker");
    marker *next = (marker *)dlsym(RTLD_NEXT, "lookups_marker");
    marker *old_next = (marker *)old_dlsym(RTLD_NEXT, "lookups_marker");
    EXPECT(first != NULL && first() == 2);
    EXPECT(next != NULL && next() == 1);
    EXPECT(old_next == next);
    EXPECT(lookups_next("lookups_marker") == NULL);
    EXPECT(dlerror() != NULL);
    EXPECT(dlsym(RTLD_DEFAULT, "malloc") == (void *)malloc);
    EXPECT(dlerror() == NULL);
    /* There is no driver in this process, whatever the interposer exports. */
    void *whole = dlopen(NULL, RTLD_NOW);
    EXPECT(dlsym(RTLD_DEFAULT, "cuInit") == NULL);
    EXPECT(dlerror() != NULL);
    EXPECT(dlsym(whole, "cuInit") == NULL);
    EXPECT(old_dlsym(RTLD_DEFAULT, "cuMemAlloc_v2") == NULL);
    EXPECT(dlsym(whole, "cuNoSuchFunction") == NULL);
    EXPECT(dlsym(whole, "lookups_next") == (void *)lookups_next);
    EXPECT(dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD) == NULL);
    pid_t child = fork();
    if (child == 0) {
        _exit(dlsym(RTLD_DEFAULT, "malloc") == (void *)malloc ? 0 : 1);
    }
    int status = 1;
    EXPECT(waitpid(child, &status, 0) == child && status == 0);
    EXPECT(entries("/proc/self/fd") == files);
    EXPECT(entries("/proc/self/task") == threads);
    printf("files %d threads %d allocated %zu\n", files, threads, allocated);
    return 0;
}
