/* Loading modules and libraries, and asking about functions. See modules.h.
 *
 * An image is a text that begins with SIMCUDA_IMAGE; any other (PTX, cubin, fatbin) is refused,
 * because nothing here could run it. A library belongs to no context, so its kernels serve as
 * functions in all of them.
 */
#include "modules.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "context.h"
#include "entry.h"
#include "objects.h"
#include "simcuda.h"
#include "standing.h"
#include "streams.h"

struct CUmod_st {
    CUmodule next; /* guarded by the lock below */
    CUcontext ctx;
    struct CUfunc_st functions[BUILTIN_COUNT];
};

struct CUlib_st {
    struct CUfunc_st kernels[BUILTIN_COUNT];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static CUmodule modules;

struct CUfunc_st *function_of(CUfunction handle) {
    return object_is(handle, OBJECT_FUNCTION) || object_is(handle, OBJECT_KERNEL) ? handle : NULL;
}

bool modules_load_lazily(void) {
    const char *mode = getenv("CUDA_MODULE_LOADING");
    return mode == NULL || strcmp(mode, "EAGER") != 0;
}

static bool image_known(const void *image) {
    return image != NULL && strncmp(image, SIMCUDA_IMAGE, strlen(SIMCUDA_IMAGE)) == 0;
}

static void functions_fill(struct CUfunc_st *functions, CUmodule module, CUlibrary library,
                           enum object_kind kind) {
    for (size_t i = 0; i < BUILTIN_COUNT; i++) {
        functions[i].builtin = &builtins[i];
        functions[i].module = module;
        functions[i].library = library;
        atomic_init(&functions[i].loaded, !modules_load_lazily());
        object_add(&functions[i], kind);
    }
}

static void functions_drop(struct CUfunc_st *functions, enum object_kind kind) {
    for (size_t i = 0; i < BUILTIN_COUNT; i++) {
        object_remove(&functions[i], kind);
    }
}

/* The first bytes of a file, enough to tell what it is. */
static CUresult file_head(const char *path, char *head, size_t bytes) {
    FILE *file = path == NULL ? NULL : fopen(path, "re");
    if (file == NULL) {
        return CUDA_ERROR_FILE_NOT_FOUND;
    }
    head[fread(head, 1, bytes - 1, file)] = '\0';
    fclose(file);
    return CUDA_SUCCESS;
}

CUresult IMPL(cuModuleLoadData)(CUmodule *module, const void *image) {
    CUcontext ctx;
    CUresult result = context_current(&ctx);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    standing_wait();
    if (module == NULL || image == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (!image_known(image)) {
        return CUDA_ERROR_INVALID_IMAGE;
    }
    CUmodule loaded = calloc(1, sizeof *loaded);
    if (loaded == NULL || !object_add(loaded, OBJECT_MODULE)) {
        free(loaded);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    loaded->ctx = ctx;
    functions_fill(loaded->functions, loaded, NULL, OBJECT_FUNCTION);
    pthread_mutex_lock(&lock);
    loaded->next = modules;
    modules = loaded;
    pthread_mutex_unlock(&lock);
    *module = loaded;
    return CUDA_SUCCESS;
}

CUresult IMPL(cuModuleLoadDataEx)(CUmodule *module, const void *image, unsigned int numOptions,
                                  CUjit_option *options, void **optionValues) {
    (void)numOptions;
    (void)options;
    (void)optionValues;
    return IMPL(cuModuleLoadData)(module, image);
}

CUresult IMPL(cuModuleLoad)(CUmodule *module, const char *fname) {
    char head[64];
    CUresult result = file_head(fname, head, sizeof head);
    return result == CUDA_SUCCESS ? IMPL(cuModuleLoadData)(module, head) : result;
}

/* Takes a module out of the list, if it is there. */
static void module_free(CUmodule module) {
    pthread_mutex_lock(&lock);
    for (CUmodule *link = &modules; *link != NULL; link = &(*link)->next) {
        if (*link == module) {
            *link = module->next;
            break;
        }
    }
    pthread_mutex_unlock(&lock);
    functions_drop(module->functions, OBJECT_FUNCTION);
    free(module);
}

CUresult IMPL(cuModuleUnload)(CUmodule hmod) {
    CUcontext ctx;
    CUresult result = context_current(&ctx);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (!object_remove(hmod, OBJECT_MODULE)) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    result = streams_drain(hmod->ctx);
    module_free(hmod);
    return result;
}

void modules_end(CUcontext ctx) {
    for (;;) {
        pthread_mutex_lock(&lock);
        CUmodule module = modules;
        while (module != NULL && module->ctx != ctx) {
            module = module->next;
        }
        pthread_mutex_unlock(&lock);
        if (module == NULL) {
            return;
        }
        if (object_remove(module, OBJECT_MODULE)) {
            module_free(module);
        }
    }
}

CUresult IMPL(cuModuleGetLoadingMode)(CUmoduleLoadingMode *mode) {
    if (!driver_ready()) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    *mode = modules_load_lazily() ? CU_MODULE_LAZY_LOADING : CU_MODULE_EAGER_LOADING;
    return CUDA_SUCCESS;
}

static struct CUfunc_st *function_named(struct CUfunc_st *functions, const char *name) {
    const struct builtin *builtin = builtin_find(name);
    return builtin == NULL ? NULL : &functions[builtin - builtins];
}

CUresult IMPL(cuModuleGetFunction)(CUfunction *hfunc, CUmodule hmod, const char *name) {
    CUcontext ctx;
    CUresult result = context_current(&ctx);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (hfunc == NULL || name == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (!object_is(hmod, OBJECT_MODULE)) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    *hfunc = function_named(hmod->functions, name);
    return *hfunc == NULL ? CUDA_ERROR_NOT_FOUND : CUDA_SUCCESS;
}

CUresult IMPL(cuModuleGetFunctionCount)(unsigned int *count, CUmodule mod) {
    if (count == NULL || !object_is(mod, OBJECT_MODULE)) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    *count = BUILTIN_COUNT;
    return CUDA_SUCCESS;
}

CUresult IMPL(cuModuleEnumerateFunctions)(CUfunction *functions, unsigned int numFunctions,
                                          CUmodule mod) {
    if (functions == NULL || !object_is(mod, OBJECT_MODULE)) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    for (unsigned i = 0; i < numFunctions && i < BUILTIN_COUNT; i++) {
        functions[i] = &mod->functions[i];
    }
    return CUDA_SUCCESS;
}

CUresult IMPL(cuModuleGetGlobal_v2)(CUdeviceptr *dptr, size_t *bytes, CUmodule hmod,
                                    const char *name) {
    (void)dptr;
    (void)bytes;
    (void)name;
    return object_is(hmod, OBJECT_MODULE) ? CUDA_ERROR_NOT_FOUND : CUDA_ERROR_INVALID_HANDLE;
}

CUresult IMPL(cuLibraryLoadData)(CUlibrary *library, const void *code, CUjit_option *jitOptions,
                                 void **jitOptionsValues, unsigned int numJitOptions,
                                 CUlibraryOption *libraryOptions, void **libraryOptionValues,
                                 unsigned int numLibraryOptions) {
    (void)jitOptions;
    (void)jitOptionsValues;
    (void)numJitOptions;
    (void)libraryOptions;
    (void)libraryOptionValues;
    (void)numLibraryOptions;
    if (!driver_ready()) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    standing_wait();
    if (library == NULL || code == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (!image_known(code)) {
        return CUDA_ERROR_INVALID_IMAGE;
    }
    CUlibrary loaded = calloc(1, sizeof *loaded);
    if (loaded == NULL || !object_add(loaded, OBJECT_LIBRARY)) {
        free(loaded);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    functions_fill(loaded->kernels, NULL, loaded, OBJECT_KERNEL);
    *library = loaded;
    return CUDA_SUCCESS;
}

CUresult IMPL(cuLibraryLoadFromFile)(CUlibrary *library, const char *fileName,
                                     CUjit_option *jitOptions, void **jitOptionsValues,
                                     unsigned int numJitOptions, CUlibraryOption *libraryOptions,
                                     void **libraryOptionValues, unsigned int numLibraryOptions) {
    char head[64];
    CUresult result = file_head(fileName, head, sizeof head);
    return result == CUDA_SUCCESS
               ? IMPL(cuLibraryLoadData)(library, head, jitOptions, jitOptionsValues, numJitOptions,
                                         libraryOptions, libraryOptionValues, numLibraryOptions)
               : result;
}

CUresult IMPL(cuLibraryUnload)(CUlibrary library) {
    if (!driver_ready()) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    if (!object_remove(library, OBJECT_LIBRARY)) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    functions_drop(library->kernels, OBJECT_KERNEL);
    free(library);
    return CUDA_SUCCESS;
}

CUresult IMPL(cuLibraryGetKernel)(CUkernel *pKernel, CUlibrary library, const char *name) {
    if (!driver_ready()) {
        return CUDA_ERROR_NOT_INITIALIZED;
    }
    if (pKernel == NULL || name == NULL) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (!object_is(library, OBJECT_LIBRARY)) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    *pKernel = (CUkernel)function_named(library->kernels, name);
    return *pKernel == NULL ? CUDA_ERROR_NOT_FOUND : CUDA_SUCCESS;
}

CUresult IMPL(cuLibraryGetKernelCount)(unsigned int *count, CUlibrary lib) {
    if (count == NULL || !object_is(lib, OBJECT_LIBRARY)) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    *count = BUILTIN_COUNT;
    return CUDA_SUCCESS;
}

CUresult IMPL(cuLibraryEnumerateKernels)(CUkernel *kernels, unsigned int numKernels,
                                         CUlibrary lib) {
    if (kernels == NULL || !object_is(lib, OBJECT_LIBRARY)) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    for (unsigned i = 0; i < numKernels && i < BUILTIN_COUNT; i++) {
        kernels[i] = (CUkernel)&lib->kernels[i];
    }
    return CUDA_SUCCESS;
}

CUresult IMPL(cuKernelGetFunction)(CUfunction *pFunc, CUkernel kernel) {
    CUcontext ctx;
    CUresult result = context_current(&ctx);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    if (pFunc == NULL || !object_is(kernel, OBJECT_KERNEL)) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    *pFunc = (CUfunction)kernel;
    return CUDA_SUCCESS;
}

CUresult IMPL(cuKernelGetLibrary)(CUlibrary *pLib, CUkernel kernel) {
    if (pLib == NULL || !object_is(kernel, OBJECT_KERNEL)) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    *pLib = ((CUfunction)kernel)->library;
    return CUDA_SUCCESS;
}
