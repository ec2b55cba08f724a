"""Kind `forks`: number N is one way to fork, at one moment, and one way to use the model there.

A way starts children, and returns what collects their answers: between the two the parent goes on.
"""

from __future__ import annotations

import hashlib
import io
import itertools
import multiprocessing
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from tests.programs.kinds import Say
from tests.programs.seen import seen
from torch import nn
from torch.utils.data import DataLoader, Dataset

WIDTH, LAYERS, JOBS = 144, 8, 8
_FORKED = multiprocessing.get_context("fork")
Use = Callable[[nn.Module], str]
Collect = Callable[[], object]


def _given(i: int) -> torch.Tensor:
    return torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(i))


# -- what a child does with the model


def _state(model: nn.Module) -> str:
    return seen(model.state_dict())


def _saved(model: nn.Module) -> str:
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    return seen(torch.load(io.BytesIO(file.getvalue())))


def _saved_to_file(model: nn.Module) -> str:
    read, write = os.pipe()
    digest = hashlib.sha256()
    for weight in model.state_dict().values():  # the kernel reads it first
        rows = weight.numpy().reshape(-1)[:2000]
        os.write(write, rows)
        digest.update(os.read(read, rows.nbytes))
    os.close(read)
    os.close(write)
    return digest.hexdigest()


def _forward(model: nn.Module) -> str:
    with torch.inference_mode():
        return seen([model(_given(i)) for i in range(3)])


def _many_forwards(model: nn.Module) -> str:
    with torch.inference_mode():
        return seen([model(_given(i % 4)) for i in range(7)] + [model.state_dict()])


def _layer(model: nn.Module) -> str:
    with torch.inference_mode():
        return seen([model[3](_given(1)), model(_given(2))])  # type: ignore[index]


def _arrays(model: nn.Module) -> str:
    digests = [
        hashlib.sha256(one.detach().numpy().tobytes()).hexdigest() for one in model.parameters()
    ]
    return " ".join(digests)


def _writes(model: nn.Module) -> str:
    with torch.no_grad():
        for one in model.parameters():
            one.mul_(1.5)
    return _forward(model) + _state(model)


USES: tuple[Use, ...] = (
    *(_state, _saved, _saved_to_file, _forward, _many_forwards, _layer, _arrays, _writes),
)


# -- ways to fork


def _told(use: Use, model: nn.Module, end: int) -> None:
    """In a child: write the answer to a pipe, and end."""
    code = 1
    try:
        with open(end, "w") as file:
            file.write(use(model))
        code = 0
    finally:
        os._exit(code)


def _heard(end: int, child: int) -> str:
    with open(end) as file:
        text = file.read()
    return f"{text} {os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])}"


def by_os(use: Use, model: nn.Module) -> Collect:
    read, write = os.pipe()
    child = os.fork()
    if not child:
        _told(use, model, write)
    os.close(write)
    return lambda: _heard(read, child)


def by_a_thread(use: Use, model: nn.Module) -> Collect:
    collects: list[Collect] = []
    thread = threading.Thread(target=lambda: collects.append(by_os(use, model)))
    thread.start()
    thread.join()
    return collects[0]


def twice(use: Use, model: nn.Module) -> Collect:
    """A child and its child, which is forked before or after the child has read."""
    return by_os(lambda one: by_os(use, one)().__str__() + use(one) + str(by_os(use, one)()), model)


def by_process(use: Use, model: nn.Module) -> Collect:
    ours, theirs = _FORKED.Pipe(duplex=False)
    process = _FORKED.Process(target=lambda: theirs.send(use(model)))
    process.start()

    def collect() -> object:
        theirs.close()
        told = ours.recv()
        process.join()
        return told, process.exitcode

    return collect


_in_pool: list[tuple[Use, nn.Module]] = []


def _pooled(_: int) -> str:
    use, model = _in_pool[0]
    return use(model) if use is not _writes else use(_copy(model))


def _copy(model: nn.Module) -> nn.Module:
    copy = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))).eval()
    copy.load_state_dict(model.state_dict())
    return copy


def by_pool(use: Use, model: nn.Module) -> Collect:
    _in_pool[:] = [(use, model)]
    pool = _FORKED.Pool(2)

    def collect() -> object:
        with pool:
            return pool.map(_pooled, range(3))

    return collect


class _Data(Dataset[str]):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, _: int) -> str:
        return _pooled(0)


def by_loader(use: Use, model: nn.Module) -> Collect:
    _in_pool[:] = [(use, model)]
    batches = iter(DataLoader(_Data(), num_workers=2, batch_size=2))
    return lambda: list(batches)


def and_exec(use: Use, model: nn.Module) -> Collect:
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.dup2(write, 1)
        os.execv("/bin/echo", ["echo", use.__name__])  # noqa: S606 - the point
    os.close(write)
    return lambda: _heard(read, child)


def and_closes_all(use: Use, model: nn.Module) -> Collect:
    """As daemons do."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.dup2(write, 1)
        os.closerange(2, 4096)
        _told(use, model, 1)
    os.close(write)
    return lambda: _heard(read, child)


WAYS = (*(by_os, by_a_thread, twice, by_process, by_pool, by_loader, and_exec, and_closes_all),)


# -- moments


def _serve(say: Say, model: nn.Module, jobs: Sequence[int]) -> None:
    with torch.inference_mode():
        for i in jobs:
            say(model(_given(i)))


def _between(before: int) -> Callable[..., None]:
    def moment(say: Say, model: nn.Module, start: Callable[[], Collect]) -> None:
        _serve(say, model, range(before))
        collect = start()
        _serve(say, model, range(before, JOBS))
        say(collect())

    return moment


def _at_once(say: Say, model: nn.Module, start: Callable[[], Collect]) -> None:
    """The parent waits for its children, and then goes on."""
    _serve(say, model, range(6))
    say(start()())
    _serve(say, model, range(6, JOBS))


def _within_a_job(say: Say, model: nn.Module, start: Callable[[], Collect]) -> None:
    """Another thread is in the middle of a job when it is forked."""
    reached, go, own = threading.Event(), threading.Event(), os.getpid()

    def wait(*_: object) -> None:
        if os.getpid() == own:
            reached.set()
            go.wait()

    _serve(say, model, range(6))
    hook = model[4].register_forward_pre_hook(wait)  # type: ignore[index]
    thread = threading.Thread(target=_serve, args=(say, model, [6]))
    thread.start()
    reached.wait()
    collect = start()
    go.set()
    thread.join()
    hook.remove()
    _serve(say, model, range(7, JOBS))
    say(collect())


def _weights_replaced(say: Say, model: nn.Module, start: Callable[[], Collect]) -> None:
    """The parent gives its model other weights before the child has read those that it has."""
    _serve(say, model, range(6))
    go = _FORKED.Event()
    _gate[:] = [go]
    collect = start()
    _gate.clear()
    model.load_state_dict(
        {key: value * 2 for key, value in model.state_dict().items()}, assign=True
    )
    _serve(say, model, range(6, JOBS + 4))
    go.set()
    say(collect())


def _within_forward(say: Say, model: nn.Module, start: Callable[[], Collect]) -> None:
    """The thread that forks runs a job."""
    _serve(say, model, range(6))
    collects: list[Collect] = []
    own = os.getpid()

    def fork(*_: object) -> None:
        if os.getpid() == own:
            collects.append(start())

    hook = model[4].register_forward_pre_hook(fork)  # type: ignore[index]
    _serve(say, model, [6])
    hook.remove()
    _serve(say, model, range(7, JOBS))
    say(collects[0]())


MOMENTS = {
    "before": _between(0),
    "profiling": _between(1),
    "streaming": _between(5),
    "waited_for": _at_once,
    "within_a_job": _within_a_job,
    "within_forward": _within_forward,
    "replaced": _weights_replaced,
}
_gate: list[Any] = []
"""What a child waits for before it looks at the model."""


_ALL = [
    (way, moment, use)
    for way, moment, use in itertools.product(WAYS, MOMENTS, USES)
    # A pool's workers are forked when they like.
    if not (moment == "replaced" and way in (by_pool, by_loader, and_exec))
]


def numbers(first: int, count: int) -> list[int]:
    """Return so many numbers, as far as there are any."""
    return list(range(len(_ALL)))[first : first + count]


def pairs() -> list[int]:
    """Return numbers of which each two of way, moment and use occur together in at least one."""
    missing = {pair for one in _ALL for pair in itertools.combinations(one, 2)}
    chosen: list[int] = []
    while missing:
        number = max(
            range(len(_ALL)), key=lambda n: len(missing & {*itertools.combinations(_ALL[n], 2)})
        )
        chosen.append(number)
        missing -= {*itertools.combinations(_ALL[number], 2)}
    return sorted(chosen)


def tags(number: int) -> tuple[str, ...]:
    """Return how, when and for what it forks."""
    way, moment, use = _ALL[number]
    return way.__name__, moment, use.__name__


def unordered(number: int) -> bool:
    """Say that it says things in order."""
    return False


def run(number: int, say: Say, folder: Path) -> None:
    """Run it."""
    way, moment, use = _ALL[number]
    torch.manual_seed(number)
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))).eval()
    gate = _gate

    def used(one: nn.Module) -> str:
        for event in gate:
            event.wait()
        return use(one)

    used.__name__ = use.__name__
    MOMENTS[moment](say, model, lambda: way(used, model))
    say(_state(model))
    with suppress(ChildProcessError):
        say(os.waitpid(-1, os.WNOHANG))
