"""Errors of calls of the client library.

ClientError
    every failure; `code` tells what to do: RETRY is worth another attempt from `reserve` on,
    REVOKED ends a job, NESTED says that the caller goes on without one, ARGUMENT and STATE are
    mistakes of the caller, the rest is the agent's or the system's trouble.
"""

from __future__ import annotations

import enum


class ErrorCode(enum.IntEnum):
    """TIERLINE_E_ codes of tierline.h."""

    MALFORMED = -1
    UNSUPPORTED_VERSION = -2
    OUT_OF_ORDER = -3
    QUOTA = -4
    NOT_ADMITTED = -5
    NO_SPACE = -6
    CORRUPT = -7
    IO = -8
    REVOKED = -9
    INTERNAL = -10
    NESTED = -11
    ARGUMENT = -20
    STATE = -21
    CONNECTION = -22
    RETRY = -23
    TIMEOUT = -24
    NO_MEMORY = -25
    SYSTEM = -26
    FORKED = -27
    WRITTEN = -28
    GPU = -29


class ClientError(Exception):
    """A call failed; the message says what was attempted and why not."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
