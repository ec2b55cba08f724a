/* Tells the listeners (tierline_interposer_on_change) that what the process holds has changed. */
#pragma once

#include <stdint.h>

/* The ledger's figures may have changed. Cheap; any lock may be held. */
void changes_note(void);
struct changes_figures {
    uint64_t unswappable, spilled, on_device; /* bytes */
};
/* At the end of a hook, without locks: calls back if one of these figures moved by enough; the
 * program's listener only for the first two. Asks for them only if something was noted and somebody
 * listens. */
void changes_tell(void (*figures)(struct changes_figures *now));

/* The library's own listener, told in addition to the program's; NULL takes it away, but calls
 * under way may still be in it. */
void changes_own(void (*function)(void));

/* In a forked child. */
void changes_forget(void);
