/* The thread that watches over a job on a GPU. */
#ifndef TIERLINE_LAUNCH_MONITOR_H
#define TIERLINE_LAUNCH_MONITOR_H

/* With the gates' lock. 0 or a code. */
int tl_monitor_start(void);
/* Without it: the thread may take it before it ends. */
void tl_monitor_stop(void);

#endif
