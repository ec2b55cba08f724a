/* dlsym.
 *
 * A program that asks for a hooked function by name gets the hook, if the library that it asked is
 * the function's own (the driver, for the driver's), or the function found lies in that library:
 * the owner decides, never the name alone. RTLD_DEFAULT and RTLD_NEXT depend on the caller, so the
 * exported dlsym is a few instructions of assembly that jump, not call, to the real one with
 * everything as it was.
 *
 * Invariants: no lock is held here, nothing is allocated, and a call that is not about a hooked
 * name reaches the real dlsym unchanged. This file is built without sanitizers: their runtimes call
 * dlsym before their own shadow memory exists.
 */
#include "driver/intercept.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#include "driver/names.h"

#ifndef __x86_64__
#error "the interposer knows how to pass dlsym on only on x86-64"
#endif

/* Both symbol versions that programs ask for: from before glibc 2.34, and since. */
__asm__(".text\n"
        ".p2align 4\n"
        ".globl tierline_dlsym, tierline_dlsym_old\n"
        ".type tierline_dlsym, @function\n"
        ".type tierline_dlsym_old, @function\n"
        "tierline_dlsym:\n"
        "tierline_dlsym_old:\n"
        "    .cfi_startproc\n"
        "    endbr64\n"
        "    pushq %rdi\n"
        "    .cfi_adjust_cfa_offset 8\n"
        "    pushq %rsi\n"
        "    .cfi_adjust_cfa_offset 8\n"
        "    subq $8, %rsp\n"
        "    .cfi_adjust_cfa_offset 8\n"
        "    call tierline_intercept_decide\n"
        "    addq $8, %rsp\n"
        "    .cfi_adjust_cfa_offset -8\n"
        "    popq %rsi\n"
        "    .cfi_adjust_cfa_offset -8\n"
        "    popq %rdi\n"
        "    .cfi_adjust_cfa_offset -8\n"
        "    testq %rdx, %rdx\n"
        "    jz 1f\n"
        "    jmpq *%rdx\n"
        "1:  ret\n"
        "    .cfi_endproc\n"
        ".size tierline_dlsym, . - tierline_dlsym\n"
        ".size tierline_dlsym_old, . - tierline_dlsym_old\n"
        ".symver tierline_dlsym, dlsym@@GLIBC_2.34\n"
        ".symver tierline_dlsym_old, dlsym@GLIBC_2.2.5\n");

/* musl has neither; an unresolved strong reference would end its process. */
#pragma weak dlvsym
#pragma weak dlinfo

static _Atomic(intercept_dlsym *) next_dlsym, last_dlsym;

/* ---- the real dlsym without dlvsym: in the symbol tables of the objects loaded after this one */

struct search {
    ElfW(Addr) self; /* the base address of this library */
    bool passed;
    void *found;
};

static uint32_t symbol_count(const Elf32_Word *hash, const uint32_t *gnu_hash) {
    if (hash != NULL) {
        return hash[1];
    }
    if (gnu_hash == NULL) {
        return 0;
    }
    const uint32_t bucket_count = gnu_hash[0];
    const uint32_t first = gnu_hash[1];
    const uint32_t bloom_words = gnu_hash[2];
    const uint32_t *buckets = gnu_hash + 4 + (size_t)bloom_words * (sizeof(ElfW(Addr)) / 4);
    const uint32_t *chains = buckets + bucket_count;
    uint32_t last = 0;
    for (uint32_t i = 0; i < bucket_count; i++) {
        last = buckets[i] > last ? buckets[i] : last;
    }
    if (last < first) {
        return first;
    }
    while ((chains[last - first] & 1) == 0) {
        last++;
    }
    return last + 1;
}

static const void *at(ElfW(Addr) address) {
    return (const void *)address; /* NOLINT(performance-no-int-to-ptr) the loader's own addresses */
}

static int search_object(struct dl_phdr_info *object, size_t size, void *context) {
    (void)size;
    struct search *search = context;
    const ElfW(Dyn) *dynamic = NULL;
    for (int i = 0; i < object->dlpi_phnum; i++) {
        if (object->dlpi_phdr[i].p_type == PT_DYNAMIC) {
            dynamic = at(object->dlpi_addr + object->dlpi_phdr[i].p_vaddr);
        }
    }
    if (object->dlpi_addr == search->self) {
        search->passed = true;
        return 0;
    }
    if (!search->passed || dynamic == NULL) {
        return 0;
    }
    const ElfW(Sym) *symbols = NULL;
    const char *strings = NULL;
    const Elf32_Word *hash = NULL;
    const uint32_t *gnu_hash = NULL;
    for (; dynamic->d_tag != DT_NULL; dynamic++) {
        /* Some loaders have added the base already, some have not. */
        ElfW(Addr) value = dynamic->d_un.d_ptr;
        value += value < object->dlpi_addr ? object->dlpi_addr : 0;
        switch (dynamic->d_tag) {
        case DT_SYMTAB:
            symbols = at(value);
            break;
        case DT_STRTAB:
            strings = at(value);
            break;
        case DT_HASH:
            hash = at(value);
            break;
        case DT_GNU_HASH:
            gnu_hash = at(value);
            break;
        default:
            break;
        }
    }
    if (symbols == NULL || strings == NULL) {
        return 0;
    }
    uint32_t count = symbol_count(hash, gnu_hash);
    for (uint32_t i = 0; i < count; i++) {
        if (symbols[i].st_shndx != SHN_UNDEF && symbols[i].st_value != 0 &&
            names_compare(strings + symbols[i].st_name, "dlsym") == 0) {
            search->found = (void *)(object->dlpi_addr + symbols[i].st_value); /* NOLINT */
            return 1;
        }
    }
    return 0;
}

static void *search_dlsym(void) {
    struct search search = {0};
    Dl_info self;
    if (dladdr((const void *)hook_names, &self) == 0) {
        return NULL;
    }
    search.self = (ElfW(Addr))self.dli_fbase;
    dl_iterate_phdr(search_object, &search);
    return search.found;
}

intercept_dlsym *intercept_next(void) {
    intercept_dlsym *found = atomic_load_explicit(&next_dlsym, memory_order_relaxed);
    if (found != NULL) {
        return found;
    }
    void *address = NULL;
    if (dlvsym != NULL) {
        address = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.34");
        address = address != NULL ? address : dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
    }
    if (address == NULL) {
        address = search_dlsym();
    }
    found = (intercept_dlsym *)address; /* all threads find the same */
    atomic_store_explicit(&next_dlsym, found, memory_order_relaxed);
    return found;
}

intercept_dlsym *intercept_last(void) {
    intercept_dlsym *found = atomic_load_explicit(&last_dlsym, memory_order_relaxed);
    if (found != NULL) {
        return found;
    }
    void *libc = dlvsym != NULL ? dlopen("libc.so.6", RTLD_LAZY | RTLD_NOLOAD) : NULL;
    if (libc == NULL) {
        return intercept_next();
    }
    /* Before 2.34 it was another library's, and libc.so.6 has none. */
    found = (intercept_dlsym *)dlvsym(libc, "dlsym", "GLIBC_2.34");
    dlclose(libc);
    if (found == NULL) {
        return intercept_next();
    }
    atomic_store_explicit(&last_dlsym, found, memory_order_relaxed);
    return found;
}

/* ---- the owner of a function */

/* Whether a path's last part is the library of a function: libcuda.so, whatever its version. */
static bool is_owners(int function, const char *path) {
    if (path == NULL) {
        return false;
    }
    const char *name = path;
    for (const char *c = path; *c != '\0'; c++) {
        name = *c == '/' ? c + 1 : name;
    }
    const char *soname = hook_libraries[hook_owners[function]];
    for (size_t i = 0;; i++) {
        if (soname[i] != name[i]) {
            return false;
        }
        if (i >= 3 && soname[i] == 'o' && soname[i - 1] == 's' && soname[i - 2] == '.') {
            return true;
        }
    }
}

static bool handle_is_owners(int function, void *handle) {
    struct link_map *map = NULL;
    return dlinfo != NULL && dlinfo(handle, RTLD_DI_LINKMAP, &map) == 0 && map != NULL &&
           is_owners(function, map->l_name);
}

bool intercept_is_owners(int function, const void *address) {
    Dl_info owner;
    return dladdr(address, &owner) != 0 && is_owners(function, owner.dli_fname);
}

__attribute__((used)) struct intercept_verdict tierline_intercept_decide(void *handle,
                                                                         const char *name) {
    intercept_dlsym *next = intercept_next();
    struct intercept_verdict verdict = {NULL, next};
    if (next == NULL || name == NULL || handle == RTLD_NEXT) {
        return verdict;
    }
    int hook = names_find(name);
    if (hook == NO_HOOK) {
        return verdict;
    }
    void *own = (void *)hook_functions[hook];
    if (handle == RTLD_DEFAULT) {
        /* A program may ask this way whether CUDA is there: without a next function, say no. */
        verdict.go_on = next(RTLD_NEXT, name) != NULL ? next : NULL;
        return verdict;
    }
    void *found = next(handle, name);
    verdict.go_on = NULL;
    if (found != NULL && (handle_is_owners(hook, handle) || intercept_is_owners(hook, found))) {
        found = own;
    } else if (found == own) {
        found = next(RTLD_NEXT, name) != NULL ? own : NULL; /* the handle of the whole program */
    }
    verdict.answer = found;
    return verdict;
}
