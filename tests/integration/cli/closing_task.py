"""A task that closes every descriptor but the first three, and opens files under their numbers.

It does so between two jobs, as daemons do when they start. It fails if its files, or what waits to
be read from its sockets, are not what it put there.
"""

from __future__ import annotations

import os
import socket
import tempfile
from contextlib import suppress
from pathlib import Path

import torch
from torch import nn

import tierline

_CLOSES_AT = (2, 5)
_MINE = b"mine"


class Own:
    """What the program opens, under numbers that were somebody else's."""

    def __init__(self, count: int) -> None:
        self._files: list[int] = []
        self._sockets: list[tuple[int, int]] = []
        for _ in range(count):
            file, path = tempfile.mkstemp()
            Path(path).unlink()
            os.write(file, _MINE)
            near, far = socket.socketpair()
            far.send(_MINE)
            far.setblocking(False)
            self._files.append(file)
            # They are closed by number; no object of theirs may close what has it afterwards.
            self._sockets.append((near.detach(), far.detach()))

    def check(self) -> None:
        """Raise AssertionError if something else was there."""
        for file in self._files:
            assert os.pread(file, 99, 0) == _MINE
            assert os.lseek(file, 0, os.SEEK_CUR) == len(_MINE)
        for near, far in self._sockets:
            waiting = socket.socket(fileno=os.dup(near))
            answered = socket.socket(fileno=os.dup(far))
            with waiting, answered:
                assert waiting.recv(99, socket.MSG_PEEK | socket.MSG_DONTWAIT) == _MINE
                with suppress(BlockingIOError):
                    assert not answered.recv(99)


def main() -> None:
    """Serve, and check."""
    torch.manual_seed(1)
    torch.set_num_threads(1)
    model = nn.Sequential(*[nn.Linear(256, 256) for _ in range(20)]).eval()
    own: Own | None = None
    for release in tierline.periodic(period=0.2):
        with torch.inference_mode():
            model(torch.full((1, 256), float(release.index)))
        if not release.warmup and release.index in _CLOSES_AT and "TIERLINE_SOCKET" in os.environ:
            numbers = [int(name.name) for name in Path("/proc/self/fd").iterdir()]
            os.closerange(3, 4096)
            own = Own(len(numbers))
        if own is not None:
            own.check()


if __name__ == "__main__":
    main()
