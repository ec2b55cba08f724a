"""Coverage-guided fuzzing of the Python codec (atheris): any bytes, fed in pieces of any size.

What is accepted must encode to the same bytes; how the bytes are cut must not matter; nothing but
ProtocolError may be raised; the buffer stays bounded.
"""

from __future__ import annotations

import inspect
import sys

import atheris

from tierline_agent.transport import protocol


def instrument() -> None:
    """Let atheris see the branches of the codec.

    Its import hook does not work with the loader of an editable install, so each function gets an
    instrumented body in place.
    """
    found = [f for f in vars(protocol).values() if inspect.isfunction(f)]
    for kind in (c for c in vars(protocol).values() if inspect.isclass(c)):
        if kind.__module__ == protocol.__name__:
            for member in vars(kind).values():
                function = getattr(member, "__func__", member)
                if inspect.isfunction(function):
                    found.append(function)
    for function in found:
        function.__code__ = atheris.instrument_func(function).__code__


def decode(data: bytes, step: int) -> tuple[list[tuple[int, protocol.Message]], int]:
    """The messages of a stream, and the code that ended it (0: none)."""
    decoder = protocol.Decoder()
    got: list[tuple[int, protocol.Message]] = []
    try:
        for at in range(0, len(data), step):
            decoder.feed(data[at : at + step])
            got.extend(decoder)
            if decoder.buffered_bytes >= protocol.HEADER_BYTES + protocol.MAX_PAYLOAD:
                raise AssertionError("the buffer is not bounded")
    except protocol.ProtocolError as error:
        return got, int(error.code)
    return got, 0


def check_one_input(data: bytes) -> None:
    """One stream."""
    whole, code = decode(data, max(len(data), 1))
    pieces, code_of_pieces = decode(data, 1 + len(data) % 7)
    if pieces != whole[: len(pieces)] or code != code_of_pieces:
        raise AssertionError("pieces decode otherwise than the whole")
    at = 0
    for sequence, message in whole:
        frame = protocol.encode(message, sequence)
        if data[at : at + len(frame)] != frame:
            raise AssertionError(f"{message} encodes otherwise than it was decoded")
        at += len(frame)


if __name__ == "__main__":
    instrument()
    atheris.Setup(sys.argv, check_one_input)
    atheris.Fuzz()
