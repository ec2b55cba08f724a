"""The pinned releases, and what each build makes of them.

A build's sources are the Go module files next to this package: `go.mod` and `go.sum` fix every
dependency by version and digest, so that the same commit builds the same programs everywhere.
"""

from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final

from . import cache

REPOSITORY: Final = Path(__file__).resolve().parents[2]
SOURCES: Final = REPOSITORY / "cluster"
CACHE: Final = cache.folder("cluster")

KUBERNETES: Final = "v1.36.3"
CONTAINERD: Final = "v2.4.2"
HELM: Final = "v4.2.4"
_MAJOR, _MINOR = KUBERNETES.removeprefix("v").split(".")[:2]
_VERSION: Final = "k8s.io/component-base/version"


@dataclass(frozen=True)
class Build:
    """One run of Go in one folder of sources."""

    name: str
    """The folder below SOURCES, and the name in the cache."""
    version: str
    """The release that it builds, for people."""
    commands: tuple[tuple[str, ...], ...]
    """Commands to run in the sources' folder; `{out}` is the folder for programs."""
    links: tuple[tuple[str, str], ...] = ()
    """Further names of programs: (name, program)."""

    def key(self, go_version: str) -> str:
        """Return the name of its result in the cache: it changes with anything that goes in."""
        digest = sha256(repr((self.commands, self.links, go_version)).encode())
        folder = SOURCES / self.name
        for path in sorted(p for p in folder.rglob("*") if p.is_file()):
            digest.update(f"{path.relative_to(folder)}\0".encode())
            digest.update(sha256(path.read_bytes()).digest())
        return f"{self.name}-{self.version}-{digest.hexdigest()[:12]}"


_STRIPPED: Final = ("-trimpath", "-ldflags", "-s -w")

KUBERNETES_BUILD: Final = Build(
    name="kubernetes",
    version=KUBERNETES,
    commands=(
        (
            *("build", "-trimpath", "-ldflags"),
            # The API server reports this version; a chart's kubeVersion is held against it.
            f"-s -w -X {_VERSION}.gitVersion={KUBERNETES}"
            f" -X {_VERSION}.gitMajor={_MAJOR} -X {_VERSION}.gitMinor={_MINOR}",
            *("-o", "{out}/kube", "."),
        ),
        ("build", *_STRIPPED, "-o", "{out}/pause", "./pause"),
    ),
    links=tuple(
        (name, "kube")
        for name in (
            *("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"),
            *("kubelet", "kubectl"),
        )
    ),
)

CONTAINERD_BUILD: Final = Build(
    name="containerd",
    version=CONTAINERD,
    commands=(
        (
            *("build", *_STRIPPED, "-o", "{out}/"),
            # Snapshotters that need libraries or other file systems; overlayfs is all a test needs.
            *("-tags", "no_btrfs no_zfs no_devmapper no_aufs"),
            *(
                f"github.com/containerd/containerd/v2/cmd/{program}"
                for program in ("containerd", "containerd-shim-runc-v2", "ctr")
            ),
        ),
    ),
)

HELM_BUILD: Final = Build(
    name="helm",
    version=HELM,
    commands=(
        (
            *("build", "-trimpath", "-ldflags"),
            f"-s -w -X helm.sh/helm/v4/internal/version.version={HELM}",
            *("-o", "{out}/"),
            *("helm.sh/helm/v4/cmd/helm", "github.com/yannh/kubeconform/cmd/kubeconform"),
        ),
    ),
)
"""Helm and kubeconform, which look at the chart."""
