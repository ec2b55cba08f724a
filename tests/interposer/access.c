/* See access.h. */
#include "access.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "simcuda.h"

struct access access_table;

_Noreturn void access_fail(const char *file, int line, const char *text, int seen, int wanted) {
    fprintf(stderr, "%s:%d: %s is %d, not %d\n", file, line, text, seen, wanted);
    _Exit(1);
}

#define TEXT(name) TEXT_(name)
#define TEXT_(name) #name

#ifdef ACCESS_LINKED
static void open_driver(void) {
#define LINKED(name) access_table.p_##name = &name;
    ACCESS_FUNCTIONS(LINKED)
}
#else
static void open_by_dlsym(void *driver) {
#define LOOK_UP(name) *(void **)&access_table.p_##name = dlsym(driver, TEXT(name));
    ACCESS_FUNCTIONS(LOOK_UP)
}

typedef CUresult proc_address_v1(const char *, void **, int, cuuint64_t);
typedef CUresult proc_address_v2(const char *, void **, int, cuuint64_t,
                                 CUdriverProcAddressQueryResult *);

static void open_by_proc_address(void *driver, bool first_version) {
    cuuint64_t flags = getenv("ACCESS_PER_THREAD") != NULL
                           ? CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM
                           : CU_GET_PROC_ADDRESS_LEGACY_STREAM;
    void *found = NULL;
    if (first_version) {
        proc_address_v1 *ask = (proc_address_v1 *)dlsym(driver, "cuGetProcAddress");
        CHECK(ask != NULL);
        OK(ask("cuGetProcAddress", &found, 11030, flags));
        ask = (proc_address_v1 *)found;
#define ASK_V1(name)                                                                               \
    OK(ask(#name, &found, CUDA_VERSION, flags));                                                   \
    *(void **)&access_table.p_##name = found;
        ACCESS_FUNCTIONS(ASK_V1)
        return;
    }
    proc_address_v2 *ask = (proc_address_v2 *)dlsym(driver, "cuGetProcAddress_v2");
    CUdriverProcAddressQueryResult status;
    CHECK(ask != NULL);
    OK(ask("cuGetProcAddress", &found, 12000, flags, &status));
    ask = (proc_address_v2 *)found;
#define ASK_V2(name)                                                                               \
    OK(ask(#name, &found, CUDA_VERSION, flags, &status));                                          \
    EQUAL(status, CU_GET_PROC_ADDRESS_SUCCESS);                                                    \
    *(void **)&access_table.p_##name = found;
    ACCESS_FUNCTIONS(ASK_V2)
    OK(ask("cuNoSuchFunction", &found, CUDA_VERSION, flags, &status));
    CHECK(found == NULL && status == CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
}

static void open_driver(void) {
    const char *way = getenv("ACCESS");
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    CHECK(way != NULL && driver != NULL);
    if (strcmp(way, "dlsym") == 0) {
        open_by_dlsym(driver);
    } else {
        open_by_proc_address(driver, strcmp(way, "proc_address_v1") == 0);
    }
}
#endif

void access_open(void) {
    open_driver();
#define PRELOADED(name) *(void **)&access_table.p_##name = dlsym(RTLD_DEFAULT, #name);
    ACCESS_INTERPOSER(PRELOADED)
    CHECK(D(cuInit) != NULL && D(cuGraphLaunch) != NULL);
}

CUcontext access_device(void) {
    CUdevice device;
    CUcontext context;
    OK(D(cuInit)(0));
    OK(D(cuDeviceGet)(&device, 0));
    OK(D(cuDevicePrimaryCtxRetain)(&context, device));
    OK(D(cuCtxSetCurrent)(context));
    return context;
}

CUfunction access_function(CUmodule *module, const char *name) {
    CUmodule loaded;
    CUfunction function;
    OK(D(cuModuleLoadData)(&loaded, SIMCUDA_IMAGE));
    OK(D(cuModuleGetFunction)(&function, loaded, name));
    if (module != NULL) {
        *module = loaded;
    }
    return function;
}

tierline_held access_held(void) {
    tierline_held held;
    CHECK(D(tierline_interposer_held) != NULL);
    D(tierline_interposer_held)(&held);
    return held;
}

int access_run(int argc, char **argv, const struct scenario *scenarios, size_t count) {
    CHECK(argc == 2);
    for (size_t i = 0; i < count; i++) {
        if (strcmp(argv[1], scenarios[i].name) == 0) {
            access_open();
            scenarios[i].run();
            return 0;
        }
    }
    return 2;
}
