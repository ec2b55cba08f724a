"""The control plane that tests run on: unprivileged, several at once, with users of their own."""

from __future__ import annotations

import os
import ssl
import subprocess
import sys
from pathlib import Path
from urllib.request import urlopen

import pytest

from tierline_cluster.api import Api, ApiError
from tierline_cluster.control_plane import ControlPlane
from tierline_cluster.errors import ClusterError
from tierline_cluster.versions import KUBERNETES, REPOSITORY

NO_WAY = r"SSL|TLS|reset|EOF|Broken pipe|closed connection"
"""How a connection ends that the server does not want: it depends on which end was faster."""


def test_it_needs_no_privilege_and_runs_next_to_another_one(
    api_server: ControlPlane, tmp_path: Path
) -> None:
    script = (
        "from pathlib import Path\n"
        "from tierline_cluster.control_plane import ControlPlane\n"
        f"plane = ControlPlane(Path({str(api_server.programs)!r}), Path({str(tmp_path)!r}))\n"
        "plane.start().start_controllers()\n"
        "print(plane.api.request('GET', '/version')['gitVersion'])\n"
        "print(Path('/proc/self/status').read_text().split('CapEff:')[1].split()[0])\n"
        "plane.stop()\n"
    )
    # Root without capabilities may do no more than the owner of its files.
    bare = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"] if os.geteuid() == 0 else []
    done = subprocess.run(
        [*bare, sys.executable, "-c", script],
        env=os.environ | {"PYTHONPATH": str(REPOSITORY / "cluster")},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    version, capabilities = done.stdout.split()
    assert version == KUBERNETES
    assert int(capabilities, 16) == 0


def test_a_user_has_the_rights_that_it_was_given(api_server: ControlPlane, namespace: str) -> None:
    reader = api_server.api_for("reader", ("readers",))
    with pytest.raises(ApiError, match='User "reader" cannot list resource "pods"') as refused:
        reader.list("v1", "Pod", namespace)
    assert refused.value.status == 403

    # Not the built-in role `view`: without controllers nobody fills it.
    rules = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}]
    role = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": {"name": "readers", "namespace": namespace},
        "rules": rules,
    }
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": {"name": "readers", "namespace": namespace},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "readers"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "readers"}],
    }
    api_server.api.apply(role)
    api_server.api.apply(binding)
    api_server.api.wait(binding, lambda _: may_list(reader, namespace))


def may_list(reader: Api, namespace: str) -> bool:
    """Say whether RBAC, which learns of bindings a moment later, allows it by now."""
    try:
        reader.list("v1", "Pod", namespace)
    except ApiError:
        return False
    return True


def test_the_pods_of_a_job_that_is_deleted_go_with_it(control_plane: ControlPlane) -> None:
    """The API server's own default leaves them, without owner."""
    api, namespace = control_plane.api, control_plane.namespace()
    pod = {"restartPolicy": "Never", "containers": [{"name": "main", "image": "none"}]}
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "j", "namespace": namespace},
        "spec": {"template": {"spec": pod}},
    }
    api.create(job)
    api.wait(job, lambda found: (found.get("status") or {}).get("active"))
    [made] = api.list("v1", "Pod", namespace)
    api.delete(job)
    api.wait_gone({"apiVersion": "v1", "kind": "Pod", **made})


def test_no_user_of_the_api_server_can_reach_etcd(api_server: ControlPlane) -> None:
    admin = api_server.certificate_for("admin", ("system:masters",))
    arguments = Path(f"/proc/{api_server.daemons[0].pid}/cmdline").read_text().split("\0")
    flags = dict(argument.partition("=")[::2] for argument in arguments)
    context = ssl.create_default_context(cafile=flags["--trusted-ca-file"])
    for pair in (None, admin):
        if pair is not None:
            context.load_cert_chain(pair.certificate, pair.key)
        with pytest.raises(OSError, match=NO_WAY):
            urlopen(f"{flags['--listen-client-urls']}/version", context=context)  # noqa: S310
    context.load_cert_chain(flags["--cert-file"], flags["--key-file"])
    with urlopen(f"{flags['--listen-client-urls']}/version", context=context) as answer:  # noqa: S310
        assert b"etcdserver" in answer.read()


def test_an_api_server_that_cannot_start_shows_its_log(
    api_server: ControlPlane, tmp_path: Path
) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "etcd").symlink_to(api_server.programs / "etcd")
    broken = programs / "kube-apiserver"
    broken.write_text("#!/bin/sh\necho no luck today\nexit 3\n")
    broken.chmod(0o755)
    plane = ControlPlane(programs, tmp_path / "plane")
    with pytest.raises(ClusterError, match=r"kube-apiserver has ended(.|\n)*no luck today"):
        plane.start()
    plane.stop()
