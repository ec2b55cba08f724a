"""A program that trains while it is measured: its steps, its sections, what it keeps.

It writes lines of JSON as an observed program does (`backends.observed`): the number of its
process, an `output` for each step (its input is the number of the step, its output the weights
after it), and the profile. That has one layer without bytes, the worst step; `first_section_s`, the
longest time from one moment at which a step can give the device away to the next one, of all steps,
the first included; `state_bytes`, and as workspace the peak of what one step allocates in addition.

On Kubernetes it may be measured while the tasks of others run: then it takes the lease as any that
trains, so that its times are its own. Once it has its profile it makes no further step
(`backends.until_planned`).

That peak is taken from a step of its own, which counts for nothing else: the allocator is asked by
PyTorch's profiler, which takes time.
"""

from __future__ import annotations

import atexit
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from statistics import fmean

from tierline_client import GiveBack
from tierline_torch.backends import until_planned
from tierline_torch.backends.record import Record
from tierline_torch.errors import TierlineError
from tierline_torch.telling import tell
from tierline_torch.tensors.workspace import WorkspaceMeter
from tierline_torch.training.leased import Leased, step_digest
from tierline_torch.training.state import Keeps

_METERED = 2
"""The step, from 1, of which the memory is measured: by then the optimizer has its state."""
_WARM = 2
"""So many steps are not counted."""


class Measured:
    """See `steps.Turn`."""

    def __init__(
        self, path: str, steps: int, turn: Leased | None = None, planned: str = ""
    ) -> None:
        """Write to `path`, a profile after so many steps that count. Raises TierlineError.

        Args:
            path: of the file.
            steps: that count.
            turn: takes the device; None where nobody else is there.
            planned: the file that is there once the task is planned, where others wait for that.
        """
        self._asked, self._turn, self._planned = steps, turn, planned
        try:
            self._record = Record(Path(path), empty=True)
        except OSError as error:
            raise TierlineError(
                f"could not write TIERLINE_OBSERVE={path}: {error.strerror}; "
                "give a file that can be written"
            ) from error
        self._write({"began": os.getpid()})
        self.held = False
        self._since_s = 0.0
        self._step_s = 0.0
        """How long the step in progress had the device."""
        self._number = 1
        self._steps_s: list[float] = []
        self._uncounted_s: list[float] = []
        self._section_s = 0.0
        self._state_bytes = self._workspace_bytes = 0
        self._workspace_known = False
        self._meter: WorkspaceMeter | None = None
        self._taken: list[GiveBack] = []
        self._gradients_bytes = 0
        self._told = 0
        atexit.register(self.finish, os.getpid())

    def begins(self) -> None:
        """A step begins."""
        if self._planned:
            until_planned.end_if_decided(self._planned)
            if self._told:
                until_planned.make_room(self._planned)
        if self._turn is not None:
            self._turn.begins()
        self._step_s = 0.0
        if self._number == _METERED and self._meter is None:
            self._meter = WorkspaceMeter()
            self._meter.begin(self._taken)

    def take(self) -> None:
        """Wait for the device."""
        if self._turn is not None:
            self._take_turn(self._turn)
        self._since_s, self.held = time.perf_counter(), True

    def _take_turn(self, turn: Leased) -> None:
        try:
            turn.take()
        finally:
            if self._planned:  # decided meanwhile: the agent may have refused it for that
                until_planned.end_if_decided(self._planned)

    def give_back(self) -> None:
        """It is not wanted for now."""
        if self.held:
            self._note()
            self.held = False
            if self._turn is not None:
                self._turn.give_back()

    def pass_gate(self) -> None:
        """Others could have it here."""
        self._note()
        if self._turn is not None:  # at each: what it may keep the device for is a section's limit
            self._turn.give_back()
            self._take_turn(self._turn)
        self._since_s = time.perf_counter()

    def _note(self) -> None:
        section_s = time.perf_counter() - self._since_s
        self._step_s += section_s
        if self._meter is None:
            self._section_s = max(self._section_s, section_s)

    def ends(self, number: int, keeps: Keeps, rest: Callable[[], None]) -> None:
        """A step is over."""
        digest = keeps.digest(number, rest)
        self.give_back()
        self._number = number + 1
        if self._meter is not None:
            self._take_in(self._meter, keeps)
            self._meter = None
        elif number <= _WARM:
            self._uncounted_s.append(self._step_s)
        else:
            self._steps_s.append(self._step_s)
        given = digest.hex() if digest is not None else ""
        told = {"input": step_digest(number).hex(), "output": given, "compute_s": self._step_s}
        self._write({"output": told})
        if len(self._steps_s) == self._asked:
            self._write_profile()

    def _take_in(self, meter: WorkspaceMeter, keeps: Keeps) -> None:
        meter.end()
        self._state_bytes, gradients_bytes = keeps.bytes_now()
        peak_bytes = meter.peak_bytes
        self._workspace_known = peak_bytes is not None
        # Gradients that the step made again are counted with what stays.
        self._workspace_bytes = max(0, (peak_bytes or 0) - gradients_bytes)

    def finish(self, process: int) -> None:
        """The program is over: of a short one there is what it showed."""
        known = len(self._steps_s or self._uncounted_s)
        if os.getpid() == process and known > self._told:
            self._write_profile()

    def _write_profile(self) -> None:
        self._told = len(self._steps_s)
        steps_s = self._steps_s or self._uncounted_s
        layer = {
            "name": "a step",
            "bytes": 0,
            "compute_s": max(steps_s),
            "mean_compute_s": min(fmean(steps_s), max(steps_s)),
            "pinned": True,
            "arena": 0,
        }
        self._write(
            {
                "profile": {
                    "layers": [layer],
                    "workspace_bytes": self._workspace_bytes,
                    "workspace_known": self._workspace_known,
                    "state_bytes": self._state_bytes,
                    "weights_digest": "",
                    "first_section_s": self._section_s,
                    "compute_s": self._steps_s,
                }
            }
        )

    def _write(self, record: dict[str, object]) -> None:
        try:
            self._record.write(json.dumps(record))
        except OSError as error:  # the program goes on; its profile is not complete
            tell(f"could not write TIERLINE_OBSERVE: {error.strerror}")
