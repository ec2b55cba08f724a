/* The handler of SIGSEGV, by which a read that no gate foresaw gets right bytes. */
#ifndef TIERLINE_FAULTS_H
#define TIERLINE_FAULTS_H

#include <stdbool.h>

/* Puts it on top, again if somebody replaced it. 0 or a code. */
int tl_faults_install(void);
extern _Atomic bool tl_faults_installed; /* ever */
/* What `sigaction` does with SIGSEGV for a program: exchanges the handler that comes after this
 * library's. False if the kernel has none of this library's. */
struct sigaction;
bool tl_faults_exchange(const struct sigaction *action, struct sigaction *before);
/* Says on stderr why a weight cannot be read. Allocates nothing. */
void tl_faults_say(const char *cause);

#endif
