"""Whether the line that a pod wrote is a profile: judged in a process of its own, which then ends.

A pod can write what takes most of a second to parse, in one call that keeps the interpreter to
itself. In the agent no job of the node would get its lease meanwhile, so the agent runs this module
as a program, gives it the line and what is measured, and loads only what it makes of them.

Started as a new program and not forked: nothing of the agent's memory is in this process, and it
has no file of the agent's. Light to import: without the API server's client, which takes seconds to
load.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from dataclasses import asdict, dataclass
from typing import Final

from tierline_api.objects.memprofile import MemProfile, ProfiledDevice
from tierline_api.objects.observed import ObservedProfile
from tierline_api.schema.metadata import ObjectMeta

UNUSABLE: Final = 3
"""Exit status: the line is no profile; what was printed says why."""
_NICE: Final = 10
"""Jobs of the node run by the clock; this does not."""
_MOST_MEMORY_BYTES: Final = 1 << 30
"""Of addresses. The longest line takes a tenth; the agent's pod must not be what it is taken of."""
_LONGEST_SENTENCE: Final = 2000
"""In characters: the API's own sentence names each mistake, and a line can hold thousands."""


@dataclass(frozen=True)
class Subject:
    """The subject of a measurement: which profile it becomes, and of which device."""

    namespace: str
    name: str
    kind: str
    product: str

    def written(self) -> str:
        """As the argument of the program."""
        return json.dumps(asdict(self))


def profile_of(line: str, subject: Subject) -> MemProfile:
    """The profile in the line that a program wrote of it.

    Raises:
        ValueError: it is not what the API takes.
    """
    return ObservedProfile.of_line(line).memprofile(
        ObjectMeta(name=subject.name, namespace=subject.namespace),
        ProfiledDevice.model_validate({"kind": subject.kind, "product": subject.product}),
    )


def main() -> int:
    """Print the API's object for the line on standard input; returns the exit status."""
    os.nice(_NICE)
    resource.setrlimit(resource.RLIMIT_AS, (_MOST_MEMORY_BYTES, _MOST_MEMORY_BYTES))
    subject = Subject(**json.loads(sys.argv[1]))
    line = sys.stdin.buffer.read().decode(errors="replace")
    try:
        sys.stdout.write(json.dumps(profile_of(line, subject).to_api()))
    except ValueError as error:
        sentence = " ".join(str(error).split()).encode("ascii", "backslashreplace")
        sys.stdout.write(sentence[:_LONGEST_SENTENCE].decode())
        return UNUSABLE
    return 0


if __name__ == "__main__":
    sys.exit(main())
