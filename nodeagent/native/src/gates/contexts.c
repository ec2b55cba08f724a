/* What the client library keeps in a CUDA context in addition to arenas and the workspace, and
 * loses with it. What the interposer's lifecycle.h asks for is here.
 *
 * Invariant: nothing that belongs to a context is used once the program has ended that; the next
 * arena or workspace that is shown has it made again.
 */
#include "cuda/stand_in.h"
#include "cuda/stream_marks.h"
#include "cuda/streams.h"
#include "cuda/upload.h"
#include "entry/lifecycle.h"
#include "lease/launch_state.h"
#include "wire/words.h"

static void ended(const void *context) {
    tl_lock_acquire(&tl_gates.lock);
    tl_streams_context_ended(context);
    tl_marks_context_ended(context);
    tl_stand_in_context_ended(context);
    tl_upload_context_ended(context);
    tl_lock_release(&tl_gates.lock);
}

const struct lifecycle_tenant lifecycle_tenant = {.context_ended = ended};
