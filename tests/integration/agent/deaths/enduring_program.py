"""`task_program` for agents that die: it loads again, and bears that a job is revoked."""

from __future__ import annotations

import time
from contextlib import suppress

from tests.integration.agent.task_program import Program, main

from tierline_client import Client, ClientError, ErrorCode


class Enduring(Program):
    """What it reads is right, whatever becomes of the agent."""

    def __init__(self, socket_path: str, seed: int, extents: int) -> None:
        super().__init__(socket_path, seed, extents)
        self.seen_before = self.seen.copy()

    def connect(self, socket_path: str) -> Client:
        while True:
            with suppress(ClientError):
                return super().connect(socket_path)
            time.sleep(0.01)  # a first connection is tried once

    def load(self) -> int:
        while True:
            try:
                return super().load()
            except ClientError as failure:
                if failure.code is not ErrorCode.RETRY:
                    raise
                with suppress(ClientError):
                    self.client.free(0)

    def read(self, first: int, last: int, *, gates: bool = True) -> None:
        try:
            super().read(first, last, gates=gates)
        except ClientError as failure:
            if failure.code is not ErrorCode.REVOKED:
                raise
            self.seen = self.seen_before.copy()
            super().read(first, last, gates=False)
        self.seen_before = self.seen.copy()

    def begin(self, deadline_ns: int = 3000 * 10**9) -> None:
        super().begin(deadline_ns)
        self.seen_before = self.seen.copy()

    def step(self, layers: int) -> str:
        said = super().step(layers)
        self.seen_before = self.seen.copy()
        return said

    def end(self) -> str:
        try:
            return super().end()
        except ClientError as failure:
            if failure.code is not ErrorCode.REVOKED:
                raise
            return self.seen.hexdigest()


if __name__ == "__main__":
    main(Enduring)
