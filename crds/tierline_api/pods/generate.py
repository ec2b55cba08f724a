"""Writes the admission policies as the chart takes them.

python -m tierline_api.pods.generate --write charts/tierline/files/
python -m tierline_api.pods.generate --check charts/tierline/files/
"""

import sys
from collections.abc import Iterator

from tierline_api.generated import as_yaml, write_or_check
from tierline_api.pods import installed

_MODULE = "tierline_api.pods.generate"


def files() -> Iterator[tuple[str, str]]:
    """Yield the name and the text of each file that is generated."""
    for name, manifests in (
        ("admission.yaml", installed.always()),
        ("root-pods.yaml", installed.of_root()),
    ):
        yield name, as_yaml(_MODULE, "charts/tierline/files", manifests)


def main(arguments: list[str] | None = None) -> int:
    """Write or check the policies; returns 1 when a checked file is out of date."""
    return write_or_check(_MODULE, files(), arguments)


if __name__ == "__main__":
    sys.exit(main())
