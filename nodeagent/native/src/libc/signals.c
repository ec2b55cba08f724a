/* sigaction and signal, as programs find them where this library is preloaded.
 *
 * Once faults are watched, the kernel's handler of SIGSEGV stays this library's: code that sets
 * another one, in any order and as often as it likes, sets which handler gets the faults that are
 * not of weights, and reads back what it set itself. So `faulthandler.enable()` and `disable()`
 * neither hide faults of weights from the library nor take its handler away.
 *
 * Every other signal, and all before that, is the C library's. Sanitized builds leave this file
 * out: a sanitizer's runtime answers a program's sigaction itself.
 */
#include "driver/intercept.h"
#include "loading/faults.h"
#include "tierline/tierline.h"

#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>

typedef int real_sigaction(int number, const struct sigaction *action, struct sigaction *before);

static real_sigaction *next_sigaction(void) {
    static _Atomic(real_sigaction *) known;
    real_sigaction *found = atomic_load_explicit(&known, memory_order_acquire);
    if (found == NULL) {
        intercept_dlsym *look = intercept_last();
        found = look == NULL ? NULL : (real_sigaction *)look(RTLD_NEXT, "sigaction");
        atomic_store_explicit(&known, found, memory_order_release);
    }
    return found;
}

/* NOLINTNEXTLINE(readability-inconsistent-declaration-parameter-name) */
TIERLINE_API int sigaction(int number, const struct sigaction *action, struct sigaction *before) {
    if (number == SIGSEGV && tl_faults_installed && tl_faults_exchange(action, before)) {
        return 0;
    }
    real_sigaction *next = next_sigaction();
    if (next == NULL) {
        errno = ENOSYS;
        return -1;
    }
    return next(number, action, before);
}

/* NOLINTNEXTLINE(readability-inconsistent-declaration-parameter-name) */
TIERLINE_API sighandler_t signal(int number, sighandler_t handler) {
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART};
    struct sigaction before;
    sigemptyset(&action.sa_mask);
    sigaddset(&action.sa_mask, number);
    return sigaction(number, &action, &before) == 0 ? before.sa_handler : SIG_ERR;
}
