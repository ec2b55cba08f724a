"""A program that was measured on a cluster takes nothing of the device until it runs by its plan.

Others are measured after it on the same device, each alone, before all of them are planned. So it
runs no job meanwhile: it waits a moment for its plan, and then ends, so that its memory is free.
Its container starts it again, and where its profile is written already, it waits at `import torch`,
before it has loaded anything. When its plan is there it ends once more, to start by that.

TIERLINE_PLANNED names the file that says so; a file `unmeasured` next to it says that measuring was
given up. Invariant: a program with TIERLINE_PLANNED that has a profile begins no job. It imports
nothing of PyTorch. Nothing here returns once the program is to start again.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Final, NoReturn

from tierline_torch.telling import tell

ENDS_TO_START_AGAIN: Final = 75
"""Exit status: EX_TEMPFAIL of sysexits.h, ask again."""
_GIVEN_UP: Final = "unmeasured"
_PROFILE: Final = b'{"profile":'
_WAITS_S: Final = 10.0
"""A plan comes in a few seconds where nobody else is to be measured."""
_PAUSE_S: Final = 0.2


def wait_if_measured(profile: str, planned: str) -> None:
    """At the start of a program: return at once, unless `profile` is written already."""
    try:
        lines = Path(profile).read_bytes().splitlines()
    except OSError:
        return
    if any(line.startswith(_PROFILE) for line in lines):
        tell("was measured before: it waits for its plan")
        while True:
            end_if_decided(planned)
            time.sleep(_PAUSE_S)


def make_room(planned: str) -> NoReturn:
    """After the measuring: wait a moment for the plan, then end."""
    until = time.monotonic() + _WAITS_S
    while time.monotonic() < until:
        end_if_decided(planned)
        time.sleep(_PAUSE_S)
    _end("measured: it ends, to leave the device to others until it is planned")


def end_if_decided(planned: str) -> None:
    """Return if the program is to go on being measured, or to wait."""
    if os.path.exists(planned):  # noqa: PTH110 - before each job
        _end("measured and planned: it ends, to start by its plan")
    if Path(planned).with_name(_GIVEN_UP).exists():
        _end(
            "it was not measured in time while others wait for the device, or what it wrote is no "
            "profile: it ends"
        )


def _end(sentence: str) -> NoReturn:
    tell(sentence)
    os._exit(ENDS_TO_START_AGAIN)
