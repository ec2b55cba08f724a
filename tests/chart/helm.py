"""Helm on this repository's chart, and what it makes of it."""

from __future__ import annotations

import os
import subprocess
from functools import cache
from pathlib import Path

import yaml

from tierline_cluster.api import Manifest
from tierline_cluster.build import built
from tierline_cluster.versions import HELM_BUILD, REPOSITORY

CHART = REPOSITORY / "charts" / "tierline"
VARIANTS = tuple(sorted((CHART / "ci").glob("*-values.yaml")))
"""Values that the chart must work with; the README's are among them."""
RELEASE = "tierline"
SYSTEM = "tierline-system"


def helm(*arguments: str | Path, home: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run Helm, which keeps what it remembers of this machine in `home`, if that is given."""
    environment = {name: value for name, value in os.environ.items() if name != "KUBECONFIG"}
    if home is not None:
        environment |= {f"HELM_{kind}_HOME": str(home) for kind in ("CACHE", "CONFIG", "DATA")}
    return subprocess.run(
        [built(HELM_BUILD) / "helm", *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def templated(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run `helm template` as it is run for a release in SYSTEM."""
    return helm("template", RELEASE, CHART, "--namespace", SYSTEM, *arguments)


@cache
def rendered(values: Path | None = None, only: str = "") -> str:
    """Return what `values` make of the chart, or of its template `only`; raises AssertionError."""
    chosen: list[str | Path] = []
    if values:
        chosen += ["--values", values]
    if only:
        chosen += ["--show-only", only]
    done = templated(*chosen)
    assert done.returncode == 0, done.stderr
    return done.stdout


@cache
def objects(values: Path | None = None, only: str = "") -> tuple[Manifest, ...]:
    """Return the objects of `rendered`, which nobody changes."""
    found = yaml.load_all(rendered(values, only), yaml.CSafeLoader)
    return tuple(manifest for manifest in found if manifest)


def rights(of: str) -> tuple[Manifest, ...]:
    """Return service account, roles and bindings of `of`: operator or agent."""
    return objects(only=f"templates/{of}/rbac.yaml")
