"""What the images install is within the ranges of pyproject.toml."""

from __future__ import annotations

import pytest
from images.lock import PACKAGES, locked, requirements
from packaging.requirements import Requirement


@pytest.mark.parametrize("image", PACKAGES)
def test_an_image_installs_what_the_project_allows(image: str) -> None:
    pins, ranges = locked(image), requirements()
    assert set(PACKAGES[image]) <= pins.keys()
    for name in pins.keys() & ranges.keys():
        assert Requirement(ranges[name]).specifier.contains(pins[name]), name
