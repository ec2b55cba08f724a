/* Stream capture: calls on a capturing stream become nodes of a graph.
 *
 * The three hooks answer, in *captured, whether the call was captured (or refused because of a
 * capture); the caller then only passes the result on. */
#pragma once

#include "events.h"

/* Owns the work when captured. */
CUresult capture_work(CUstream stream, struct work *work, bool *captured);
CUresult capture_record(CUstream stream, CUevent event, unsigned flags, bool *captured);
CUresult capture_wait(CUstream stream, CUevent event, unsigned flags, bool *captured);

/* CUDA_SUCCESS unless the stream, or the last record of the event, is part of a capture. Such a
 * question ends the stream's capture. */
CUresult capture_forbids(CUstream stream);
CUresult capture_event_forbids(CUevent event);

/* The same question without ending the capture. */
bool capture_active(CUstream stream);
/* A call that may not be made while a capture is going on, by its mode and the thread's. */
CUresult capture_unsafe_call(void);

void capture_abandon(CUstream stream);
/* All of a context's streams are. */
void capture_context_ends(CUcontext ctx);
void capture_forget_event(CUevent event);
