"""What the Python codec makes of frames in files: one line each, as codec_verdicts.c prints it."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.unit.agent.transport.describe import describe

from tierline_agent.transport.protocol import Decoder, ProtocolError


def verdict(data: bytes) -> str:
    """`incomplete`, `refused CODE`, or the sequence and the message of the first frame."""
    decoder = Decoder()
    decoder.feed(data)
    try:
        for sequence, message in decoder:
            return f"{sequence} {describe(message)}"
    except ProtocolError as error:
        return f"refused {int(error.code)}"
    return "incomplete"


def main() -> None:
    """Judge the files named on standard input."""
    for line in sys.stdin:
        print(verdict(Path(line.rstrip("\n")).read_bytes()))


if __name__ == "__main__":
    main()
