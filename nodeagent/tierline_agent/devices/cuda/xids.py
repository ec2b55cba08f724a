"""Errors that the kernel's side of the driver reports of GPUs (Xid), as NVML passes them on.

Most are a program's own fault and end that program alone; some take the device away. Which it was,
the device's own check finds out: this only says that there was one, and which.

One thread for all GPUs; it ends within `_WAIT_MS` of `close`. A driver that reports no such events
is left at that, with a word in the log.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping

import pynvml

from tierline_agent.concurrency import go_on

_log = logging.getLogger(__name__)
_WAIT_MS = 500


class XidWatch:
    """Listens to all GPUs of a node."""

    def __init__(self, uuids: Mapping[str, str], on_xid: Callable[[str, int], None]) -> None:
        """Listen to the GPUs with these uuids, by their names; `on_xid` runs in a thread."""
        self._uuids = uuids
        self._on_xid = on_xid
        self._closed = threading.Event()
        self._thread = threading.Thread(
            target=go_on, args=("xids", self._run), name="xids", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop listening."""
        self._closed.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            pynvml.nvmlInit()
            try:
                self._listen()
            finally:
                pynvml.nvmlShutdown()
        except pynvml.NVMLError as error:
            _log.warning("errors of GPUs are not reported: %s", error)

    def _listen(self) -> None:
        events = pynvml.nvmlEventSetCreate()
        try:
            names = {}
            for name, uuid in self._uuids.items():
                handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
                pynvml.nvmlDeviceRegisterEvents(
                    handle, pynvml.nvmlEventTypeXidCriticalError, events
                )
                names[pynvml.nvmlDeviceGetIndex(handle)] = name
            while not self._closed.is_set():
                try:
                    event = pynvml.nvmlEventSetWait_v2(events, _WAIT_MS)
                except pynvml.NVMLError_Timeout:
                    continue
                self._report(names, event)
        finally:
            pynvml.nvmlEventSetFree(events)

    def _report(self, names: Mapping[int, str], event: pynvml.c_nvmlEventData_t) -> None:
        try:
            index = pynvml.nvmlDeviceGetIndex(event.device)
        except pynvml.NVMLError:  # it has gone by now: then all are to be looked at
            concerned = list(names.values())
        else:
            concerned = [name for number, name in names.items() if number == index]
        for name in concerned:
            self._on_xid(name, int(event.eventData))
