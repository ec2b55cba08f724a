"""All that the chart installs for admission: what its files hold, and a check looks for."""

from collections.abc import Iterator

from tierline_api.objects.pod import Manifest
from tierline_api.pods import agents, described, notes, operators, policies, root, scaling, staying


def always() -> Iterator[Manifest]:
    """Yield what is there whatever the chart's values say."""
    for part in (policies, agents, operators, notes, staying, described, scaling):
        yield from part.manifests()


def of_root() -> Iterator[Manifest]:
    """Yield what is there unless the value rootPods is `allow`."""
    yield from root.manifests()
