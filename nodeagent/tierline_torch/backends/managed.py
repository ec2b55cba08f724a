"""Runs this process's jobs under the node agent.

A learned site is settled between two jobs: its arena is loaded and sealed, and the parameters
become views of it. If the agent does not take the arena, the weights stay in the process, the
site's jobs only take the lease, and a notice says why. Where the task was planned to give the
device away in the middle, such a job does so as first ones do: it is a row of jobs without rank,
each of a module or a few, and the last one, which computes nothing, is the one that counts.

A call that is a part of another process's job has no job: it runs as PyTorch would, and weights are
fetched as it touches them.

Invariants: a site's `gates` are set only while its parameters view its arena. No job of a task that
is planned to yield has the device for longer at once than `FIRST_GATE_NS` and a module or, with
gates, a layer, unless its profile has its site outside of arenas, as a layer.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from tierline_client import (
    Client,
    ClientError,
    Device,
    ErrorCode,
    GiveBack,
    LayerProfile,
    NoticeKind,
)
from tierline_torch.arenas.arena import Arena, store_again
from tierline_torch.arenas.gates import StreamGate
from tierline_torch.arenas.origins import move_back
from tierline_torch.backends.connecting import connected, fit
from tierline_torch.backends.observed_lease import NESTED
from tierline_torch.backends.owner import Owner
from tierline_torch.calls import Invoke, plain
from tierline_torch.errors import GpuError, TierlineError
from tierline_torch.learning.site import FIRST_GATE_NS, Lesson, Reportable, Site, Window
from tierline_torch.learning.survey import Survey
from tierline_torch.ours import ours
from tierline_torch.tensors.weights import tensors_of_weights

if TYPE_CHECKING:
    import torch

    from tierline_torch.arenas.contents import Contents
    from tierline_torch.arenas.origins import Origin

_LOADS = 3
"""Times an arena is loaded when the connection breaks in between."""
_UNSEEN = "a process of this task read weights that no launch named, before it was started again"
_NOT_OURS = (ErrorCode.REVOKED, ErrorCode.FORKED)
"""Of a job that was revoked, or is of the process that this one was forked from."""


class _Settled(NamedTuple):
    """An arena that holds weights."""

    site: Site
    """The one that it was made for."""
    base: int
    size_bytes: int
    origins: list[Origin | None]
    """In the order in which the client knows them; None: it moved back."""


class Manager:
    """The backend of a process that has an agent. See `site.Backend`."""

    releases: int | None = None
    profiles = False

    def __init__(self, process: Owner, client: Client, survey: Survey) -> None:
        terms = client.terms()
        self.period_ns = terms.period_ns
        self.deadline_ns = terms.deadline_ns
        self.wants_witness = terms.record_outputs
        self._yields = terms.preemptible
        self._reads_unseen = terms.reads_unseen
        self._extent_bytes = terms.extent_bytes
        self.survey = survey
        self._process = process
        self._client = client
        self._numbers = set(range(terms.max_arenas))
        """Arena numbers not in use. The plan numbers extents over the arenas in order, so the
        lowest is taken, and arena n+1 is made after arena n."""
        self._retired: deque[int] = deque()
        self._settled: dict[int, _Settled] = {}
        """By arena number."""
        self._vacated: dict[int, list[tuple[int, int]]] = {}
        """By arena number, where weights on a GPU lay before, until that memory is given back."""
        self._guests: list[Site] = []
        """Sites whose jobs begin with the arena of another one."""
        self._job = 0
        self._granted_ns = 0
        self._window = Window(0, 0)
        """Of the job in progress."""
        self._arena: int | None = None
        """The one that it began with."""
        self._still_counts = False
        """It is a row of jobs, and the one that counts is still to come."""

    @classmethod
    def connect(cls, process: Owner, socket_path: str, survey: Survey) -> Manager:
        """Connect to the agent. Raises TierlineError."""
        device = Device.CUDA if survey.kind == "cuda" else Device.CPU
        return cls(process, connected(socket_path, device), survey)

    @property
    def waits(self) -> bool:
        """Whether a thread of this process waits for the agent now."""
        return self._client.waits

    @property
    def over(self) -> GiveBack:
        """Gives the lease back, if there is one."""
        return self._client.job_over

    def begin(self, site: Site, window: Window, *, warmup: bool, stream: bool) -> Invoke:
        """Take the lease; stream the site's arena if it has one."""
        if self._retired:
            ours(self._free_retired)
        if self._client.touched:
            ours(self._move_back)
        self._arena = arena = site.arena if stream else None
        in_parts = stream and arena is None and site.left_out and self._yields
        self._still_counts = in_parts and not warmup
        try:
            self._job = self._job_begin(arena, window, warmup=warmup or in_parts)
        except ClientError as error:
            raise TierlineError(f"could not begin a job of {site.name}: {error}") from error
        self._window, self._granted_ns = window, time.monotonic_ns()
        if self._job == NESTED:
            self._process.say(
                f"{site.name} runs as a part of a job of another process of its task, which waits "
                "for this one"
            )
            return plain
        if in_parts:
            return self._paused
        if arena is None or not site.gates:
            return plain
        return self._gate(site, arena)

    def _job_begin(self, arena: int | None, window: Window, *, warmup: bool) -> int:
        release_ns, deadline_ns = window
        try:
            return self._client.job_begin(arena, release_ns, deadline_ns, warmup=warmup)
        except ClientError as error:
            if error.code == ErrorCode.NESTED:
                return NESTED
            if error.code != ErrorCode.WRITTEN:
                raise
        self._store_written()
        return self._client.job_begin(arena, release_ns, deadline_ns, warmup=warmup)

    def _paused(
        self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        self.pause()
        result = plain(module, args, kwargs)
        self.pause()
        return result

    def pause(self) -> None:
        """Give the lease back and wait for it again, if the job has held it for `FIRST_GATE_NS`.

        A job that has no arena has no flag word by which it could be asked.
        """
        if self._job == NESTED or not self.survey.finish():
            return
        if time.monotonic_ns() - self._granted_ns < FIRST_GATE_NS:
            return
        with self.without_lease():
            pass

    @contextmanager
    def without_lease(self) -> Iterator[None]:
        """End the job, and begin it again afterwards."""
        gone = self._job != NESTED and self._give_away()
        try:
            yield
        finally:
            if gone:
                self._come_back()

    def _give_away(self) -> bool:
        """Whether the job has given the lease back."""
        try:
            self._client.job_end(self._job)
        except ClientError as error:
            # STATE: a stream is captured, and what runs on it later is not to be waited for.
            if error.code not in {ErrorCode.STATE, *_NOT_OURS}:
                raise TierlineError(f"could not pause a job: {error}") from error
            return False
        return True

    def _come_back(self) -> None:
        try:
            self._job = self._job_begin(self._arena, self._window, warmup=True)
        except ClientError as error:
            if error.code not in _NOT_OURS:
                raise TierlineError(f"could not go on with a job: {error}") from error
        self._granted_ns = time.monotonic_ns()

    def _store_written(self) -> None:
        """Let jobs read what the program wrote to weights on a GPU since the last one."""
        for number, settled in self._settled.items():
            extents = self._client.written(number)
            if extents:
                store_again(
                    self._client,
                    number,
                    settled.base,
                    settled.size_bytes,
                    self._extent_bytes,
                    extents,
                )
                self._process.say(
                    f"weights of {settled.site.name} were used outside its jobs, by what may have "
                    "changed them: they are stored again before its next job"
                )

    def _gate(self, site: Site, arena: int) -> StreamGate:
        client = self._client

        def begin(layer: int) -> None:
            try:
                client.layer_begin(arena, layer)
            except ClientError as error:
                self._tolerate(site, error)
            if client.touched:
                ours(self._move_back)

        def end(layer: int) -> None:
            try:
                client.layer_end(arena, layer)
            except ClientError as error:
                self._tolerate(site, error)

        return StreamGate(site.gates, begin, end, lambda _: self._out_of_order(site))

    def _move_back(self) -> None:
        """Move weights back to their own memory that code uses there, or that were written."""
        try:
            given = self._client.give_back()
        except ClientError as error:
            self._process.say(f"could not move weights back to their own memory: {error}")
            return
        moved = []
        for number, index, touched in given:
            settled = self._settled[number]
            origin, settled.origins[index] = settled.origins[index], None
            if origin is None:
                continue
            moved.append(origin)
            if touched:  # the library has told of those that were written
                text = (
                    f"{settled.site.name}: code that PyTorch does not know keeps the address of "
                    f"{origin.name}, which stays in its own memory"
                )
                self._process.say(text)
                self._notice(NoticeKind.LEFT_MANAGEMENT, origin.size_bytes, text)
        move_back(moved)

    def _tolerate(self, site: Site, error: ClientError) -> None:
        """A job that lost its lease goes on: what it reads is right, and slow."""
        if error.code == ErrorCode.FORKED:
            return
        if error.code != ErrorCode.REVOKED:
            failure = TierlineError(f"could not wait for the weights of {site.name}: {error}")
            self._process.count_failed(failure)
            raise failure from error
        self._process.say(f"a job of {site.name} lost its lease and goes on slowly: {error}")

    def _out_of_order(self, site: Site) -> None:
        if not site.order_changed:
            site.order_changed = True
            self._notice(
                NoticeKind.ORDER_CHANGED,
                0,
                f"{site.name} called its modules in another order than in its first job; "
                "it stays correct, but waits for weights that come out of turn",
            )

    def end(self, site: Site) -> Reportable | None:
        """Give the lease back."""
        counts, self._still_counts = self._still_counts, False
        if self._job == NESTED:
            return None
        self._job_end(site)
        if counts:
            try:
                self._job = self._job_begin(None, self._window, warmup=False)
            except ClientError as error:
                raise TierlineError(f"could not count a job of {site.name}: {error}") from error
            if self._job == NESTED:
                return None
            self._job_end(site)
        return Reportable(self._job, 0.0)

    def _job_end(self, site: Site) -> None:
        try:
            self._client.job_end(self._job, site.workspace_bytes)
        except ClientError as error:
            if error.code != ErrorCode.REVOKED:
                kind = GpuError if error.code == ErrorCode.GPU else TierlineError
                raise kind(f"could not end a job of {site.name}: {error}") from error
            self._process.say(f"a job of {site.name} lost its lease: {error}")

    def witnessed(self, job: Reportable, inputs: bytes, outputs: bytes) -> None:
        """Report a job's digests."""
        try:
            self._client.output(job.number, inputs, outputs)
        except ClientError as error:
            self._process.say(f"could not report the output of a job: {error}")

    def settle(self, site: Site, lesson: Lesson) -> None:
        """Load and seal the arena and move the weights there; or leave the site resident."""
        for sentence in lesson.sentences(site.name):
            self._process.say(sentence)
        for reason, size_bytes in lesson.stays.items():
            self._notice(NoticeKind.STAYS_RESIDENT, size_bytes, f"{site.name}: {reason}")
        if lesson.reason:
            self._notice(NoticeKind.STAYS_RESIDENT, 0, f"{site.name}: {lesson.reason}")
        contents = lesson.contents
        if contents is None:
            self._choose_arena(site)
            return
        if self._reads_unseen:
            self._stay(site, contents, _UNSEEN)
            return
        if not self._numbers:
            self._stay(site, contents, "the task has more job roots than arenas")
            return
        arena = self._load(site, contents)
        if arena is None:
            return
        moved_back = arena.move(self._retired.append)
        if arena.vacated:
            self._vacated[arena.number] = arena.vacated
        self._settled[arena.number] = _Settled(
            site, arena.base, contents.size_bytes, list(arena.origins)
        )
        for reason in dict.fromkeys(moved_back.values()):
            size_bytes = sum(one.size_bytes for one, why in moved_back.items() if why == reason)
            text = f"{site.name}: {reason}"
            self._process.say(text)
            self._notice(NoticeKind.STAYS_RESIDENT, size_bytes, text)
        site.arena = arena.number
        site.gates = dict(contents.gates)
        self._choose_arena(site)
        self._report(site, contents, lesson.workspace_bytes, arena.number)

    def _choose_arena(self, site: Site) -> None:
        """Let a site's jobs on a GPU begin with the arena that has most of its weights.

        It may be another site's, with which it shares them. A job that streams goes on to its other
        arenas by itself; one that has the lease alone, or nothing to stream, may have it open.
        """
        if self.survey.kind != "cuda":
            return
        roots = [root for ref in site.roots if (root := ref()) is not None]
        modules = (module for root in roots for module in root.modules())
        tensors = (one for module in modules for _, one in tensors_of_weights(module))
        places = {one.data_ptr(): one.nbytes for one in tensors}
        sizes = {
            number: sum(
                size
                for place, size in places.items()
                if settled.base <= place < settled.base + settled.size_bytes
            )
            for number, settled in self._settled.items()
        }
        number = max(sizes, key=sizes.__getitem__, default=None)
        if number is not None and sizes[number] > 0 and number != site.arena:
            site.arena = number
            self._guests.append(site)

    def _load(self, site: Site, contents: Contents) -> Arena | None:
        number = min(self._numbers)
        for attempt in range(_LOADS):
            arena = Arena(self._client, number, contents, self._extent_bytes, self.survey.kind)
            try:
                arena.load()
            except ClientError as error:
                self._give_up(number)
                if error.code != ErrorCode.RETRY or attempt == _LOADS - 1:
                    self._stay(site, contents, str(error))
                    break
            else:
                self._numbers.discard(number)
                return arena
        return None

    def _give_up(self, number: int) -> bool:
        try:
            self._client.free(number)
        except ClientError:
            return False  # it was not reserved; the failure that led here is the one to report
        return True

    def _stay(self, site: Site, contents: Contents, reason: str) -> None:
        site.left_out = True
        text = f"{site.name} stays resident: {reason}"
        self._process.say(text)
        self._notice(NoticeKind.STAYS_RESIDENT, contents.size_bytes, text)

    def _report(self, site: Site, contents: Contents, workspace_bytes: int, arena: int) -> None:
        for entry in contents.entries:
            if entry.pinned:
                self._notice(NoticeKind.PINNED, entry.size_bytes, f"{site.name}: {entry.name}")
        # Times are the observed run's: this process has none yet.
        layers = [
            LayerProfile(entry.size_bytes, 0, entry.pinned, fit(entry.name))
            for entry in contents.entries
        ]
        try:
            self._client.profile(arena, layers, workspace_bytes)
        except ClientError as error:
            self._process.say(f"could not report the profile of {site.name}: {error}")

    def _notice(self, kind: NoticeKind, size_bytes: int, text: str) -> None:
        try:
            self._client.notice(kind, size_bytes, text)
        except ClientError as error:
            self._process.say(f"could not tell the agent that {text}: {error}")

    def _free_retired(self) -> None:
        """Give back arenas that no tensor views any more. Between jobs: none reads them."""
        while self._retired:
            number = self._retired.popleft()
            origins = self._leave(number)
            if self._give_up(number):
                for origin in filter(None, origins):
                    origin.let_go()
            self._numbers.add(number)

    def _leave(self, number: int) -> list[Origin | None]:
        """Let the site of a retired arena run without it: the number may soon be another's.

        If its model lives, its weights moved back, or the program gave it others, as `half()` or a
        new state do.
        """
        settled = self._settled.pop(number)
        site, size_bytes = settled.site, settled.size_bytes
        for one in (site, *self._guests):
            if one.arena == number:
                one.arena, one.left_out = None, True
        site.gates = {}
        if any(root() is not None for root in site.roots):
            back = None in settled.origins
            why = "are back in their own memory" if back else "were replaced"
            text = f"{site.name} is no longer streamed: its weights {why}"
            self._process.say(text)
            self._notice(NoticeKind.LEFT_MANAGEMENT, size_bytes, text)
        return settled.origins

    def watched(self) -> None:
        """Keep the addresses of weights that moved from all others. Their memory is given back."""
        while self._vacated:
            number, places = self._vacated.popitem()
            try:
                self._client.vacated(number, places)
            except ClientError as error:
                self._process.say(f"old addresses of weights may be used again: {error}")

    def ready(self) -> tuple[int, int]:
        """Wait for the administrator's START."""
        # In a thread of its own: the wait may be long, and Ctrl-C must reach the program's.
        answer: Future[tuple[int, int]] = Future()
        threading.Thread(target=self._await_start, args=(answer,), daemon=True).start()
        try:
            return answer.result()
        except ClientError as error:
            raise TierlineError(f"could not wait for the start of releases: {error}") from error

    def _await_start(self, answer: Future[tuple[int, int]]) -> None:
        try:
            answer.set_result(self._client.ready())
        except ClientError as error:
            answer.set_exception(error)

    def finish(self) -> None:
        """Nothing is left to do: the connection ends with the process."""
