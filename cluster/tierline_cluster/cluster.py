"""A whole cluster on one machine: up, down, and nothing left of it. Needs root.

What a cluster is made of is named after its folder: one control group that every process is in,
one bridge. So down() needs no record of what up() did, and works however far that came, after a
crash as well. The things that cannot be derived, the kernel settings that a kubelet changes, the
folders that were made outside and the process that started it, are written down before they are
touched. One process at a time brings a cluster up or down.
"""

import fcntl
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from http.client import HTTPException
from ipaddress import IPv4Interface
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, Final

from . import bridge, cgroups
from .api import Api, ApiError, Identity
from .build import ProgramFolders
from .certificates import Authority
from .control_plane import ControlPlane, Network
from .errors import ClusterError
from .node import FIXED, MOST_NODES, Node, Place
from .processes import started
from .versions import SOURCES

_KUBELET_SETS: Final = (
    *("vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops"),
    *("kernel/keys/root_maxkeys", "kernel/keys/root_maxbytes"),
)
_OWN: Final = frozenset(
    {"before.json", "certificates", "etcd", "kubeconfig", "kubeconfigs", "kubectl", "logs", "node"}
)
"""The files of a cluster, in its folder."""
_DEEPEST: Final = "node/kubelet/plugins_registry/gpu.tierline.io-reg.sock"
_LONGEST_SOCKET: Final = 107
"""Characters in the path of a Unix socket (unix(7))."""
_SYSCTL: Final = Path("/proc/sys")


class Cluster:
    """The cluster that lives in `folder`."""

    def __init__(
        self,
        folder: Path,
        node_name: str = "tierline",
        *others: str,
        apart: Iterable[str] = (),
    ) -> None:
        """Describe it; nothing happens yet.

        `others` are the names of further nodes. Its nodes do not share the folders `apart`, of
        ORDINARY, with the machine.
        """
        self.folder = folder.resolve()
        self.kubeconfig = self.folder / "kubeconfig"
        """The administrator's; it is there while the cluster is up."""
        self.kubelet_root = self.folder / "node" / "kubelet"
        """The folder of its node's kubelet, unless that is an ordinary one."""
        self.nodes: list[Node] = []
        """Its nodes, once it is up."""
        self._names = (node_name, *others)
        self._apart = frozenset(apart)
        digest = sha256(str(self.folder).encode()).hexdigest()[:8]
        self.group = f"tierline-{digest}"
        self.bridge = f"tl-{digest}"
        self._memory = self.folder / "before.json"

    def up(self, programs: ProgramFolders) -> tuple[ControlPlane, Node]:
        """Start everything from `programs`; returns when all nodes are Ready. Raises ClusterError.

        What is returned is the first node; `nodes` are all.

        What an earlier cluster in this folder left is removed first.
        """
        self._refuse_strangers()
        if len(self._names) > MOST_NODES:
            raise ClusterError(f"cannot start {len(self._names)} nodes: {MOST_NODES} are the most")
        if len(str(self.folder / _DEEPEST)) > _LONGEST_SOCKET:
            raise ClusterError(
                f"cannot start a node in {self.folder}: the path is too long for the sockets of"
                " the kubelet's plugins; choose a shorter one by --folder"
            )
        if os.geteuid() != 0:
            raise ClusterError("cannot start a node: only root may; run it with sudo")
        with self._alone():
            self._down(keep_logs=False)
            return self._start(programs)

    def _start(self, programs: ProgramFolders) -> tuple[ControlPlane, Node]:
        began = time.monotonic()
        network = bridge.free_network()
        own = IPv4Interface((network[1], network.prefixlen))
        self._remember()
        cgroups.create(self.group)
        bridge.add(self.bridge, own)
        plane = ControlPlane(
            programs.kubernetes,
            self.folder,
            # Pods find the API server at the first address of the services: the bridge's own.
            Network(str(own.ip), 443, str(next(network.subnets(1)))),
            before=cgroups.entering(self.group),
            outlives_us=True,
        )
        plane.start()
        _say("API server", began)
        plane.start_controllers()
        _say("controllers and scheduler", began)
        self.nodes = []
        for index, name in enumerate(self._names):
            place = Place(index, self.group, self.bridge, own, self._apart)
            cgroups.create(place.own_group)
            if index:
                address = IPv4Interface((place.address, network.prefixlen))
                bridge.add_address(self.bridge, index, address)
            node = Node(plane, programs, place, name)
            node.start()
            self.nodes.append(node)
            _say(f"node {name} Ready", began)
        shutil.copy(plane.kubeconfig, self.kubeconfig)
        return plane, self.nodes[0]

    def is_up(self) -> bool:
        """Say whether its API server answers and its processes are there."""
        if not self.kubeconfig.exists() or not cgroups.exists(self.group):
            return False
        config = json.loads(self.kubeconfig.read_text(encoding="utf-8"))
        server: str = config["clusters"][0]["cluster"]["server"]
        authority = Authority(self.folder / "certificates")
        admin = Identity(authority.issue("user-admin", "admin"))
        api = Api(server, authority.certificate, admin)
        try:
            nodes = api.list("v1", "Node")
        except (OSError, HTTPException, ApiError):
            return False
        return any(
            condition["type"] == "Ready" and condition["status"] == "True"
            for node in nodes
            for condition in node["status"].get("conditions", [])
        )

    def down(self, *, keep_logs: bool = False) -> None:
        """End every process and remove every trace, but the logs if they are kept.

        Nothing happens if there is none.
        """
        with self._alone():
            self._down(keep_logs=keep_logs)

    def down_after(self, pid: int) -> None:
        """Wait for the end of process `pid`; then remove the cluster if that process started it."""
        with suppress(ProcessLookupError):
            process = os.pidfd_open(pid)
            with os.fdopen(process):
                wait([process])
        with self._alone():
            starter, began = self._remembered("starter", (0, 0))
            if starter == pid and began != started(pid):
                self._down(keep_logs=True)

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Remove the cluster at the end of the block, and also when this process is killed in it.

        Its logs stay.
        """
        words = ("down", "--after", str(os.getpid()), "--folder", str(self.folder))
        guard = subprocess.Popen(
            [sys.executable, "-m", __package__, *words],
            env={**os.environ, "PYTHONPATH": str(SOURCES)},
            start_new_session=True,
        )
        try:
            yield
        finally:
            self.down(keep_logs=True)
            guard.kill()
            guard.wait()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Keep others from bringing up or down what lies in the same folder."""
        parent = self.folder.parent
        parent.mkdir(parents=True, exist_ok=True)
        lock = os.open(parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    def _down(self, *, keep_logs: bool) -> None:
        self._refuse_strangers()
        if cgroups.exists(self.group) and os.geteuid() != 0:
            raise ClusterError(f"cannot end the cluster in {self.folder}: only root may; use sudo")
        cgroups.kill_all(self.group)
        cgroups.remove(self.group)
        if Path("/sys/class/net", self.bridge).exists():
            bridge.remove(self.bridge)
        if self._memory.exists():
            before = json.loads(self._memory.read_text(encoding="utf-8"))
            for name, value in before["settings"].items():
                (_SYSCTL / name).write_text(value, encoding="ascii")
            for path in before["made"]:
                _remove_empty(Path(path))
        for left in self.folder.glob("*"):
            if left.name == "logs" and keep_logs:
                continue
            if left.is_dir():
                shutil.rmtree(left)
            else:
                left.unlink()
        if not keep_logs and self.folder.exists():
            self.folder.rmdir()

    def _remembered(self, what: str, otherwise: Any) -> Any:
        """The record that `_remember` made of a cluster in this folder, whoever describes it."""
        if not self._memory.exists():
            return otherwise
        return json.loads(self._memory.read_text(encoding="utf-8")).get(what, otherwise)

    def _refuse_strangers(self) -> None:
        """Raise ClusterError if the folder holds what no cluster has: it may be anybody's."""
        own = _OWN | {f"node-{name}" for name in (*self._names, *self._remembered("nodes", ()))}
        strangers = sorted({path.name for path in self.folder.glob("*")} - own)
        if strangers:
            raise ClusterError(
                f"{self.folder} is no folder of a cluster: it holds {', '.join(strangers[:3])};"
                " name one that is empty or does not exist"
            )

    def _remember(self) -> None:
        """Write down what only a record can bring back."""
        self.folder.mkdir(parents=True, exist_ok=True)
        settings = {
            name: (_SYSCTL / name).read_text(encoding="ascii")
            for name in _KUBELET_SETS
            if (_SYSCTL / name).exists()
        }
        fixed = (*FIXED, *sorted(self._apart))
        made = [
            str(folder)
            for path in fixed
            for folder in (Path(path), *Path(path).parents)
            if not folder.exists()
        ]
        starter = [os.getpid(), started(os.getpid())]
        kept = {"settings": settings, "made": made, "starter": starter, "nodes": self._names}
        text = json.dumps(kept)
        self._memory.write_text(text, encoding="utf-8")
        for path in fixed:
            Path(path).mkdir(parents=True, exist_ok=True)


def _remove_empty(folder: Path) -> None:
    """Remove a folder that was made here, unless somebody else uses it by now."""
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()


def _say(what: str, began: float) -> None:
    print(f"{what}: {time.monotonic() - began:.1f} s", file=sys.stderr, flush=True)
