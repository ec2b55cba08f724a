/* What the client library keeps in a CUDA context beside arenas and the workspace, and loses with
 * it. What the interposer's driver.h asks for is here.
 *
 * Invariant: nothing that belongs to a context is used once the program has ended that; the next
 * arena or workspace that is shown has it made anew.
 */
#include "driver.h"
#include "launch_state.h"
#include "stand_in.h"
#include "stream_marks.h"
#include "streams.h"

static void ended(const void *context) {
    tl_lock_acquire(&tl_gates.lock);
    tl_streams_context_ended(context);
    tl_marks_context_ended(context);
    tl_stand_in_context_ended(context);
    tl_lock_release(&tl_gates.lock);
}

const struct driver_tenant driver_tenant = {.context_ended = ended};
