"""Certificates, kubeconfigs and images: the files that a cluster is made of."""

from __future__ import annotations

import hashlib
import json
import ssl
import tarfile
from pathlib import Path
from typing import Any

import pytest

from tierline_cluster.build import ProgramFolders
from tierline_cluster.certificates import Authority, write_kubeconfig
from tierline_cluster.cluster import Cluster
from tierline_cluster.errors import ClusterError
from tierline_cluster.images import Image


def test_a_certificate_is_signed_for_its_user_and_addresses(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "certificates")
    made = authority.issue("server", "system:node:n", ("system:nodes",), ("IP:127.0.0.1",))
    context = ssl.create_default_context(cafile=str(authority.certificate))
    context.load_cert_chain(made.certificate, made.key)

    (trusted,) = context.get_ca_certs()
    assert trusted["subject"] == ((("commonName", "tierline-cluster"),),)
    assert (tmp_path / "certificates").stat().st_mode & 0o777 == 0o700


def test_an_authority_is_made_once(tmp_path: Path) -> None:
    first = Authority(tmp_path).certificate.read_bytes()
    issued = Authority(tmp_path).issue("a", "a").certificate.read_bytes()

    assert Authority(tmp_path).certificate.read_bytes() == first
    assert Authority(tmp_path).issue("a", "a").certificate.read_bytes() == issued
    assert Authority(tmp_path).service_account_key().read_text().startswith("-----BEGIN EC")


def test_a_kubeconfig_names_no_other_file_and_is_private(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "certificates")
    user = authority.issue("admin", "admin")
    path = write_kubeconfig(tmp_path / "config", "https://127.0.0.1:1", authority, user)

    assert str(tmp_path) not in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_folder_whose_sockets_could_not_be_named_is_refused(tmp_path: Path) -> None:
    deep = Cluster(tmp_path / ("deep" * 20))
    with pytest.raises(ClusterError, match=r"too long for the sockets .* by --folder"):
        deep.up(ProgramFolders(tmp_path, tmp_path))


def read(archive: Path) -> dict[str, bytes]:
    with tarfile.open(archive) as tar:
        files = [(m.name, tar.extractfile(m)) for m in tar.getmembers()]
        return {name: file.read() for name, file in files if file is not None}


def test_an_image_holds_its_files_and_says_how_to_run_them(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_bytes(b"#!/bin/true")
    program.chmod(0o755)
    image = Image(
        "example.local/a:1",
        {"/usr/bin/program": program},
        links={"/usr/bin/other": "program"},
        entrypoint=["program"],
        user="65532",
    )
    blobs = read(image.write(tmp_path / "a.tar"))
    index = json.loads(blobs["index.json"])
    (entry,) = index["manifests"]
    manifest = found(blobs, entry)
    config = found(blobs, manifest["config"])

    assert entry["annotations"] == {"io.containerd.image.name": "example.local/a:1"}
    assert config["config"]["Entrypoint"] == ["program"]
    assert config["config"]["User"] == "65532"
    (tmp_path / "layer.tar").write_bytes(blob(blobs, manifest["layers"][0]))
    with tarfile.open(tmp_path / "layer.tar") as layer:
        members = {m.name: m for m in layer.getmembers()}
    assert members["usr/bin/program"].mode == 0o755
    assert members["usr/bin/other"].linkname == "program"
    assert members["usr/bin"].isdir()
    assert members["tmp"].isdir()


def test_the_same_files_make_the_same_image(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_bytes(b"x")
    image = Image("example.local/a:1", {"/program": program})

    first, second = (image.write(tmp_path / name).read_bytes() for name in ("a.tar", "b.tar"))
    assert first == second


def blob(blobs: dict[str, bytes], descriptor: dict[str, Any]) -> bytes:
    """Return the content of a descriptor, checked against its digest."""
    digest = descriptor["digest"].removeprefix("sha256:")
    content = blobs[f"blobs/sha256/{digest}"]
    assert hashlib.sha256(content).hexdigest() == digest
    assert len(content) == descriptor["size"]
    return content


def found(blobs: dict[str, bytes], descriptor: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON value of a descriptor."""
    value: dict[str, Any] = json.loads(blob(blobs, descriptor))
    return value


def test_a_cluster_of_several_nodes_is_removed_by_its_folder_alone(tmp_path: Path) -> None:
    """As its guard does, and `make cluster-down`, which know no names of nodes."""
    folder = tmp_path / "two"
    for name in ("node", "node-second"):
        (folder / name).mkdir(parents=True)
    kept = {"settings": {}, "made": [], "starter": [1, 1], "nodes": ["first", "second"]}
    (folder / "before.json").write_text(json.dumps(kept))
    Cluster(folder).down()
    assert not folder.exists()
