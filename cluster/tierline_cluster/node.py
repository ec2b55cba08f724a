"""A node: containerd and kubelet, with a bridge for pods. Needs root.

Both run in a mount namespace of their own, in which the folders that containerd and the CNI
library insist on are folders of this cluster. So no mount of a pod and no socket of a shim is ever
seen by the machine, they go with the last process, and another containerd on the machine is not
touched; nor is another node of the same cluster, which has folders, addresses and a control group
of its own.
"""

import json
import shutil
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Interface, IPv4Network
from pathlib import Path
from subprocess import CalledProcessError, run
from typing import Any, Final

from . import cgroups
from .build import ProgramFolders
from .control_plane import ControlPlane
from .errors import ClusterError
from .images import Image
from .processes import Daemon, start, wait_until

PAUSE: Final = "tierline.local/pause:1"
SOCKET: Final = "node/containerd.sock"
"""containerd's socket in a cluster's folder."""
_ON_DISK: Final = ("/run/containerd", "/var/lib/cni", "/var/log/containers", "/var/lib/tierline")
_IN_MEMORY: Final = "/run/tierline"
FIXED: Final = (*_ON_DISK, _IN_MEMORY)
"""Folders whose names are built into containerd, the CNI library, the kubelet, and the pods of
Tierline's agents."""
KUBELET_ROOT: Final = "/var/lib/kubelet"
"""The kubelet's folder of an ordinary node, and of those of kind and k3s."""
CDI: Final = "/var/run/cdi"
"""Where a container runtime looks for descriptions of devices."""
ORDINARY: Final = (KUBELET_ROOT, CDI)
"""Folders that an ordinary node has in addition: a cluster may share them with the machine."""
MOST_NODES: Final = 2
"""Nodes that the addresses of a cluster suffice for."""
_PATH: Final = "/usr/local/sbin:/usr/sbin:/sbin:/usr/bin:/bin"


@dataclass(frozen=True)
class Place:
    """A node's own part of the machine."""

    index: int
    """Which node of the cluster it is, from 0."""
    group: str
    """The cluster's control group."""
    bridge: str
    gateway: IPv4Interface
    """The address of the bridge, and of the API server; the first node's own in addition."""
    apart: frozenset[str] = frozenset()
    """Folders of ORDINARY that the node has for itself, under their usual names."""

    @property
    def address(self) -> IPv4Address:
        """The node's own."""
        return self.gateway.ip + self.index

    @property
    def pods(self) -> IPv4Network:
        """The addresses of its pods: the upper half of the bridge's is for pods."""
        upper = list(self.gateway.network.subnets(1))[1]
        return list(upper.subnets(new_prefix=upper.prefixlen + MOST_NODES - 1))[self.index]

    @property
    def own_group(self) -> str:
        """The control group of the node's pods."""
        return f"{self.group}/node-{self.index}"


class Node:
    """One node of `plane`, called `name`."""

    def __init__(
        self, plane: ControlPlane, programs: ProgramFolders, place: Place, name: str
    ) -> None:
        """Prepare it; the bridge is up with its address, and the control groups are made."""
        self.plane = plane
        self.name = name
        self.folder = plane.folder / "node" if not place.index else plane.folder / f"node-{name}"
        self.kubelet_root = (
            Path(KUBELET_ROOT) if KUBELET_ROOT in place.apart else self.folder / "kubelet"
        )
        """The kubelet's folder, as the node sees it: plugins register in `plugins_registry` below
        it."""
        self.socket = self.folder / Path(SOCKET).name
        self._programs = programs
        self._place = place
        self.group = place.group
        """The cluster's control group: all of its processes are in it or below."""
        self._on_disk = (*_ON_DISK, *sorted(place.apart))

    def outside(self, path: str) -> Path:
        """Where a folder of FIXED on disk, or one that is apart, lies for the machine."""
        return self.folder / f"fixed{path}"

    def start(self) -> None:
        """Start containerd and the kubelet; returns when the node is Ready."""
        for tool in ("runc", "unshare", "nsenter", "mount"):
            if shutil.which(tool, path=self._path) is None:
                raise ClusterError(f"cannot start a node: there is no {tool}; run: make cluster")
        networks = self._programs.networks
        if not (networks / "bridge").exists():
            raise ClusterError(f"cannot start a node: no CNI plugins in {networks}")
        containerd = self._start_containerd()
        wait_until("containerd does not answer", self._containerd_answers, [containerd])
        pause = Image(PAUSE, {"/pause": self._programs.kubernetes / "pause"}, entrypoint=["/pause"])
        self.import_image(pause.write(self.folder / "pause.tar"))
        kubelet = self._start_kubelet(containerd)
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": self.name}}

        def ready() -> bool:
            if not self.plane.api.exists(node):
                return False
            conditions = self.plane.api.get(node)["status"].get("conditions", [])
            return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)

        try:
            wait_until("the node is not Ready", ready, [containerd, kubelet])
        except ClusterError:
            if kubelet.alive or not containerd.alive:
                raise
            # Seldom it ends as soon as it begins ("failed to create listener for podResources
            # endpoint"). On an ordinary node the init system starts it again.
            kubelet = self._start_kubelet(containerd)
            wait_until("the node is not Ready", ready, [containerd, kubelet])

    def import_image(self, archive: Path) -> None:
        """Give the image in an OCI `archive` to the node; raises ClusterError."""
        self.ctr("images", "import", "--local", str(archive))

    def ctr(self, *arguments: str) -> str:
        """Return what containerd's own client prints."""
        ctr = [str(self._programs.containerd / "ctr"), "--address", str(self.socket)]
        try:
            command = [*ctr, "--namespace", "k8s.io", *arguments]
            return run(command, check=True, capture_output=True, text=True).stdout
        except CalledProcessError as failed:
            what = " ".join(arguments)
            raise ClusterError(f"ctr {what}: {failed.stderr.strip()}") from failed

    @property
    def _path(self) -> str:
        """Where containerd and its shims find programs."""
        return f"{self._programs.containerd}:{_PATH}"

    @property
    def _suffix(self) -> str:
        """The suffix that tells its logs from those of the first node."""
        return f"-{self.name}" if self._place.index else ""

    def _containerd_answers(self) -> bool:
        try:
            self.ctr("version")
        except ClusterError:
            return False
        return True

    def _start_containerd(self) -> Daemon:
        for name in ("cni/conf", "cni/leases", *(f"fixed{path}" for path in self._on_disk)):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        (self.folder / "cni" / "conf" / "10-pods.conflist").write_text(json.dumps(self._cni()))
        config = self.folder / "containerd.toml"
        config.write_text(self._containerd_config())
        binds = "; ".join(f"mount --bind '{self.outside(path)}' {path}" for path in self._on_disk)
        binds += f"; mount -t tmpfs -o mode=755 tierline {_IN_MEMORY}"
        programs = self._programs.containerd
        return start(
            f"containerd{self._suffix}",
            [
                *cgroups.entering(self.group),
                *("unshare", "--mount", "--propagation", "private"),
                *("sh", "-ec", f'{binds}; exec "$@"', "containerd"),
                *(str(programs / "containerd"), "--config", str(config)),
            ],
            self.plane.logs,
            environment={"PATH": self._path},
            outlives_us=True,
        )

    def _start_kubelet(self, containerd: Daemon) -> Daemon:
        user = f"system:node:{self.name}"
        config = self.folder / "kubelet.json"
        config.write_text(json.dumps(self._kubelet_config(), indent=1))
        kubeconfig = self.plane.kubeconfig_for(user, ("system:nodes",))
        return start(
            f"kubelet{self._suffix}",
            [
                *cgroups.entering(self.group),
                *("nsenter", f"--mount=/proc/{containerd.pid}/ns/mnt"),
                str(self._programs.kubernetes / "kubelet"),
                f"--config={config}",
                f"--kubeconfig={kubeconfig}",
                f"--hostname-override={self.name}",
                f"--node-ip={self._place.address}",
                f"--root-dir={self.kubelet_root}",
                f"--cert-dir={self.folder / 'pki'}",
            ],
            self.plane.logs,
            outlives_us=True,
        )

    def _cni(self) -> dict[str, Any]:
        place = self._place
        pods = place.pods
        ipam = {
            "type": "host-local",
            "dataDir": str(self.folder / "cni" / "leases"),
            "ranges": [
                [
                    {
                        "subnet": str(place.gateway.network),
                        "rangeStart": str(pods[1]),
                        "rangeEnd": str(pods[-2]),
                        "gateway": str(place.gateway.ip),
                    }
                ]
            ],
            "routes": [{"dst": "0.0.0.0/0"}],
        }
        bridge = {"type": "bridge", "bridge": place.bridge, "isGateway": True, "ipam": ipam}
        return {"cniVersion": "0.4.0", "name": "pods", "plugins": [bridge]}

    def _containerd_config(self) -> str:
        return f"""\
version = 3
root = "{self.folder}/containerd"
state = "{self.folder}/state"
[grpc]
  address = "{self.socket}"
[plugins."io.containerd.cri.v1.images"]
  snapshotter = "overlayfs"
  [plugins."io.containerd.cri.v1.images".pinned_images]
    sandbox = "{PAUSE}"
[plugins."io.containerd.cri.v1.runtime"]
  enable_cdi = true
  netns_mounts_under_state_dir = true
  # Without CAP_SYS_RESOURCE, as in a virtual machine's container, scores cannot be lowered.
  restrict_oom_score_adj = true
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = ["{self._programs.networks}"]
    conf_dir = "{self.folder}/cni/conf"
  [plugins."io.containerd.cri.v1.runtime".containerd]
    default_runtime_name = "runc"
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
        Root = "{self.folder}/runc"
"""

    def _kubelet_config(self) -> dict[str, Any]:
        authority = self.plane.authority
        serving = authority.issue(
            f"kubelet-serving{self._suffix}",
            f"system:node:{self.name}",
            ("system:nodes",),
            (f"IP:{self._place.address}", f"DNS:{self.name}"),
        )
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": str(self._place.address),
            "readOnlyPort": 0,
            "healthzPort": 0,
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(authority.certificate)},
            },
            "authorization": {"mode": "Webhook"},
            "tlsCertFile": str(serving.certificate),
            "tlsPrivateKeyFile": str(serving.key),
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": f"/{self._place.own_group}",
            "failCgroupV1": False,
            "failSwapOn": False,
            "enforceNodeAllocatable": [],
            "oomScoreAdj": 0,
            "containerRuntimeEndpoint": f"unix://{self.socket}",
            "resolvConf": "",
            "podLogsDir": str(self.plane.logs / f"pods{self._suffix}"),
            "volumePluginDir": str(self.folder / "volume-plugins"),
            # A test's disk may be fuller than a kubelet likes, and nothing can be pulled again.
            "evictionHard": {},
            "imageMinimumGCAge": "24h",
            "imageGCHighThresholdPercent": 100,
            "makeIPTablesUtilChains": False,
        }
