"""One release for all tests in this folder, and for each a namespace that ends empty."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.e2e.conftest import Running
from tests.e2e.product.release import Release
from tests.e2e.product.tasks import Tasks
from tests.e2e.python_image import python_image

from tierline_cluster.images import Image


def programs_image() -> Image:
    """The image of the tasks' program, with two libraries that every glibc brings along.

    They are for programs, and libraries like Tierline's, that an older glibc must run as well.
    """
    image = python_image()
    (libc,) = (name for name in image.files if name.endswith("/libc.so.6"))
    kept = {str(Path(libc).with_name(name)) for name in ("libpthread.so.0", "libdl.so.2")}
    return replace(image, files={**image.files, **{name: Path(name) for name in kept}})


@pytest.fixture(scope="package")
def release(cluster: Running) -> Iterator[Release]:
    """Tierline, installed."""
    made = Release(cluster)
    made.import_images()
    cluster.node.import_image(programs_image().write(cluster.node.folder / "python.tar"))
    try:
        made.install()
    except BaseException:
        print(made.logs())
        raise
    yield made
    made.uninstall()


@pytest.fixture
def tasks(release: Release, namespace: str, failed: Callable[[], bool]) -> Iterator[Tasks]:
    """Tasks in a namespace of their own that enforces PodSecurity `restricted`."""
    api = release.api
    named = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    api.merge(named, {"metadata": {"labels": labels}})
    made = Tasks(release, namespace)
    yield made
    if failed():
        print(made.describe(), release.logs(), sep="\n")
    made.remove_all()
