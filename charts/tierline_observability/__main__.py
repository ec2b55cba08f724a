"""`python -m tierline_observability --write .` at the repository's root; `--check .` in CI."""

import sys
from collections.abc import Iterator

from grafana_foundation_sdk.cog.encoder import JSONEncoder

from tierline_api.generated import write_or_check
from tierline_observability.fleet import FLEET
from tierline_observability.links import LINKS
from tierline_observability.metrics_page import page
from tierline_observability.nodes import NODES
from tierline_observability.tasks import TASKS

FOLDER = "charts/tierline/files/dashboards"


def files() -> Iterator[tuple[str, str]]:
    """Yield the name and the text of each file that is generated."""
    for one in (FLEET, NODES, TASKS, LINKS):
        text = JSONEncoder(sort_keys=True, indent=2).encode(one.build())
        yield f"{FOLDER}/{one.name}.json", text + "\n"
    yield "docs/reference/metrics.md", page()


if __name__ == "__main__":
    sys.exit(write_or_check("tierline_observability", files(), None))
