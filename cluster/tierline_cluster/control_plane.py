"""etcd and kube-apiserver, and on wish the controllers and the scheduler.

Everything lies in one folder and listens on one address; any user may run it. etcd does not sync
to disk: a cluster for tests survives a crash of its processes, not of the machine.
"""

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Self

from .api import Api, ApiError, Identity
from .certificates import Authority, Certificate, write_kubeconfig
from .processes import Daemon, free_port, start, stop, wait_until


@dataclass(frozen=True)
class Network:
    """Where a control plane listens, and which addresses its services get.

    The API server's own service gets the first address of `services`. With `address` that same
    one, programs in pods reach it without kube-proxy.
    """

    address: str = "127.0.0.1"
    port: int | None = None
    """The API server's port; a free one if absent."""
    services: str = "10.0.0.0/24"


class ControlPlane:
    """A running control plane; its attributes are ready for use after start()."""

    def __init__(
        self,
        programs: Path,
        folder: Path,
        network: Network | None = None,
        *,
        before: Sequence[str] = (),
        outlives_us: bool = False,
    ) -> None:
        """Prepare one in `folder` from the folder of `programs`; nothing runs yet.

        `before` are words to put in front of each command. Processes end with this program
        unless `outlives_us`.
        """
        self.programs = programs
        self.folder = folder
        self.logs = folder / "logs"
        self.network = network or Network()
        self.daemons: list[Daemon] = []
        self._before = before
        self._outlives_us = outlives_us
        self.logs.mkdir(parents=True, exist_ok=True)
        self.authority = Authority(folder / "certificates")
        port = self.network.port or free_port(self.network.address)
        self.server = f"https://{self.network.address}:{port}"
        self._port = port
        self.kubeconfig = self.kubeconfig_for("admin", groups=("system:masters",))
        """The administrator's."""
        self.api = self.api_for("admin", groups=("system:masters",))
        """The administrator's view of the API server."""

    # -- users --------------------------------------------------------------------------------

    def certificate_for(self, user: str, groups: tuple[str, ...] = ()) -> Certificate:
        """Return a certificate that the API server takes as `user` in `groups`."""
        return self.authority.issue(f"user-{user.replace(':', '-')}", user, groups)

    def kubeconfig_for(self, user: str, groups: tuple[str, ...] = ()) -> Path:
        """Return a kubeconfig of `user`, with the rights that RBAC gives to it and `groups`."""
        path = self.folder / "kubeconfigs" / f"{user.replace(':', '-')}.kubeconfig"
        certificate = self.certificate_for(user, groups)
        return write_kubeconfig(path, self.server, self.authority, certificate)

    def api_for(self, user: str, groups: tuple[str, ...] = ()) -> Api:
        """Return the view of `user`, with the rights that RBAC gives to it and `groups`."""
        identity = Identity(certificate=self.certificate_for(user, groups))
        return Api(self.server, self.authority.certificate, identity)

    def kubectl(self, *arguments: str, given: str | None = None) -> str:
        """Return what kubectl prints, run by the administrator with `given` on its input.

        Raises subprocess.CalledProcessError, whose `stderr` is what a user would read.
        """
        # Another cluster may have listened here: what kubectl remembers of it is not of this one.
        own = (f"--kubeconfig={self.kubeconfig}", f"--cache-dir={self.folder / 'kubectl'}")
        command = [str(self.programs / "kubectl"), *own, *arguments]
        done = subprocess.run(command, input=given, capture_output=True, text=True, check=True)
        return done.stdout

    # -- objects ------------------------------------------------------------------------------

    def namespace(self, labels: Mapping[str, str] | None = None) -> str:
        """Make a namespace of a new name, in which pods can be created; returns the name."""
        metadata = {"generateName": "test-", "labels": dict(labels or {})}
        made = self.api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
        name: str = made["metadata"]["name"]
        # Pods need it, and without controllers nobody else makes it.
        account = {"name": "default", "namespace": name}
        self.api.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account})
        return name

    # -- life ---------------------------------------------------------------------------------

    def start(self) -> Self:
        """Start etcd and the API server; returns when it serves. Raises ClusterError."""
        etcd = f"https://127.0.0.1:{free_port()}"
        peers = f"https://127.0.0.1:{free_port()}"
        # An authority of its own: what may write to etcd may do anything, on a node also as root.
        trusted = Authority(self.folder / "certificates" / "etcd")
        pair = trusted.issue("etcd", "etcd", addresses=("IP:127.0.0.1",))
        self._start(
            "etcd",
            *_tls(pair, trusted, "", "trusted-ca-file"),
            *_tls(pair, trusted, "peer-", "trusted-ca-file"),
            "--client-cert-auth",
            "--peer-client-cert-auth",
            f"--data-dir={self.folder / 'etcd'}",
            f"--listen-client-urls={etcd}",
            f"--advertise-client-urls={etcd}",
            f"--listen-peer-urls={peers}",
            f"--initial-advertise-peer-urls={peers}",
            f"--initial-cluster=default={peers}",
            "--unsafe-no-fsync",
        )
        store = (f"--etcd-servers={etcd}", *_tls(pair, trusted, "etcd-", "cafile"))
        self._start("kube-apiserver", *store, *self._apiserver_flags())
        wait_until("the API server does not serve", self._ready, self.daemons)
        return self

    def start_controllers(self, *, without: Sequence[str] = ()) -> Self:
        """Start kube-controller-manager and kube-scheduler; returns when they work.

        `without` names controllers that are not to run.
        """
        manager = self.kubeconfig_for("system:kube-controller-manager")
        scheduler = self.kubeconfig_for("system:kube-scheduler")
        self._start(
            "kube-controller-manager",
            f"--kubeconfig={manager}",
            "--bind-address=127.0.0.1",
            f"--secure-port={free_port()}",
            f"--service-account-private-key-file={self.authority.service_account_key()}",
            f"--root-ca-file={self.authority.certificate}",
            "--use-service-account-credentials",
            "--leader-elect=false",
            f"--controllers={','.join(['*', *(f'-{name}' for name in without)])}",
        )
        self._start(
            "kube-scheduler",
            f"--kubeconfig={scheduler}",
            f"--authentication-kubeconfig={scheduler}",
            f"--authorization-kubeconfig={scheduler}",
            "--bind-address=127.0.0.1",
            f"--secure-port={free_port()}",
            "--leader-elect=false",
        )
        account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}
        wait_until("the controllers do not work", lambda: self.api.exists(account), self.daemons)
        return self

    def stop(self) -> None:
        """End every process; the folder stays."""
        # The API server before etcd: it would wait a minute for etcd to come back.
        for daemon in reversed(self.daemons):
            stop(daemon)
        self.daemons.clear()

    def _start(self, name: str, *flags: str) -> None:
        arguments = [*self._before, str(self.programs / name), *flags]
        self.daemons.append(start(name, arguments, self.logs, outlives_us=self._outlives_us))

    def _ready(self) -> bool:
        """Say whether the API server answers and has made what every cluster has."""
        try:
            return (
                self.api.request("GET", "/readyz") == "ok"
                and len(self.api.list("v1", "Namespace")) >= 4  # default and three kube-…
            )
        except (OSError, HTTPException, ApiError):
            return False

    def _apiserver_flags(self) -> list[str]:
        address, port = self.network.address, self._port
        names = ["DNS:localhost", "DNS:kubernetes.default.svc", "IP:127.0.0.1"]
        names += [f"IP:{address}"] if address != "127.0.0.1" else []
        serving = self.authority.issue("kube-apiserver", "kube-apiserver", addresses=names)
        kubelets = self.certificate_for("kube-apiserver-kubelet-client", ("system:masters",))
        key = self.authority.service_account_key()
        return [
            f"--bind-address={address}",
            f"--advertise-address={address}",
            f"--secure-port={port}",
            f"--cert-dir={self.authority.folder}",
            f"--client-ca-file={self.authority.certificate}",
            f"--tls-cert-file={serving.certificate}",
            f"--tls-private-key-file={serving.key}",
            f"--kubelet-client-certificate={kubelets.certificate}",
            f"--kubelet-client-key={kubelets.key}",
            "--kubelet-preferred-address-types=InternalIP",
            f"--service-account-issuer={self.server}",
            f"--service-account-key-file={key}",
            f"--service-account-signing-key-file={key}",
            f"--service-cluster-ip-range={self.network.services}",
            "--endpoint-reconciler-type=none",
            "--authorization-mode=Node,RBAC",
            "--allow-privileged",
        ]


def _tls(pair: Certificate, trusted: Authority, of: str, authority: str) -> list[str]:
    """Return the flags by which a program shows `pair` and trusts what `trusted` signed."""
    word = "certfile" if authority == "cafile" else "cert-file"
    return [
        f"--{of}{authority}={trusted.certificate}",
        f"--{of}{word}={pair.certificate}",
        f"--{of}{word.replace('cert', 'key')}={pair.key}",
    ]
