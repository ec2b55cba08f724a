/* Tells whoever asked (tierline_interposer_on_change) that what the process holds has changed. */
#pragma once

/* The ledger's figures may have changed. Cheap; any lock may be held. */
void changes_note(void);
/* At the end of a hook, without locks: calls back if a figure moved by enough. */
void changes_tell(void);

/* The library's own listener, told beside the program's; NULL takes it away, but calls under way
 * may still be in it. */
void changes_own(void (*function)(void));

/* In a forked child. */
void changes_forget(void);
