"""Writes what is in an image, and what it was made from, for those that check what they run.

    python images/contents.py ARCHIVE DOCKERFILE REVISION

ARCHIVE is an OCI archive with one image. Next to it lie then, by its name:

* `.spdx.json`: each Debian and Python package in it with its version (SPDX 2.3);
* `.provenance.json`: what it was built from, as a statement of in-toto (SLSA provenance 1.0), of
  the image that the manifest's digest names. It is not signed: a release does that, with
  `cosign attest --type slsaprovenance1 --predicate` and the predicate in it.

The same archive gives the same bytes: its time is the image's own.
"""

from __future__ import annotations

import email.parser
import hashlib
import json
import re
import sys
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

_REPOSITORY: Final = Path(__file__).resolve().parent.parent
_DEBIAN: Final = "var/lib/dpkg/status"
_PYTHON: Final = re.compile(r"\.dist-info/METADATA$")
_HIDDEN: Final = re.compile(r"(^|/)\.wh\.")
_OWN: Final = "tierline"


def main(archive: str, dockerfile: str, revision: str) -> None:
    """Write both files."""
    path = Path(archive)
    image, files = read(path)
    kinds = {"spdx": packages_of(image, files), "provenance": origin(image, dockerfile, revision)}
    for kind, document in kinds.items():
        text = json.dumps(document, indent=1, sort_keys=True)
        path.with_suffix(f".{kind}.json").write_text(text + "\n", "utf-8")


def read(path: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the image's `name`, `digest`, `created`, `labels`, and the texts that name packages.

    Raises:
        ValueError: a layer hides a package of one below it; then the lists would be wrong.
    """
    files: dict[str, str] = {}
    with tarfile.open(path) as tar:
        (manifest,) = _json(tar, "index.json")["manifests"]
        held = _json(tar, _blob(manifest["digest"]))
        config = _json(tar, _blob(held["config"]["digest"]))
        for layer in held["layers"]:
            with tarfile.open(fileobj=tar.extractfile(_blob(layer["digest"]))) as inside:
                files.update(_texts(inside))
    image = {
        "name": manifest["annotations"]["org.opencontainers.image.ref.name"],
        "digest": manifest["digest"],
        "created": config["created"],
        "labels": config["config"].get("Labels") or {},
    }
    return image, files


def _texts(layer: tarfile.TarFile) -> Iterator[tuple[str, str]]:
    for entry in layer:
        if not entry.isfile():
            continue
        if _HIDDEN.search(entry.name) and ("dpkg" in entry.name or "dist-info" in entry.name):
            raise ValueError(f"a layer hides {entry.name}, and lists of packages would have it")
        if entry.name == _DEBIAN or _PYTHON.search(entry.name):
            member = layer.extractfile(entry)
            if member is not None:
                yield entry.name, member.read().decode("utf-8", "replace")


def packages_of(image: Mapping[str, Any], files: Mapping[str, str]) -> dict[str, Any]:
    """Return the SPDX document."""
    found = sorted({*_debian(files[_DEBIAN]), *_python(files)})
    digest = image["digest"].replace(":", "-")
    root = {
        "SPDXID": "SPDXRef-image",
        "name": image["name"],
        "versionInfo": image["labels"].get("org.opencontainers.image.version", ""),
        "downloadLocation": "NOASSERTION",
        "filesAnalyzed": False,
        "primaryPackagePurpose": "CONTAINER",
        "checksums": [{"algorithm": "SHA256", "checksumValue": image["digest"].split(":")[1]}],
    }
    listed = [
        {
            "SPDXID": f"SPDXRef-{number}",
            "name": name,
            "versionInfo": version,
            "downloadLocation": "NOASSERTION",
            "filesAnalyzed": False,
            "externalRefs": [
                {
                    "referenceCategory": "PACKAGE-MANAGER",
                    "referenceType": "purl",
                    "referenceLocator": f"pkg:{kind}/{quote(name)}@{quote(version)}",
                }
            ],
        }
        for number, (kind, name, version) in enumerate(found)
    ]
    described = ("SPDXRef-DOCUMENT", "DESCRIBES", root["SPDXID"])
    contained = [(root["SPDXID"], "CONTAINS", one["SPDXID"]) for one in listed]
    return {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": image["name"],
        "documentNamespace": f"https://spdx.org/spdxdocs/{_OWN}-{digest}",
        "creationInfo": {"created": _seconds(image["created"]), "creators": [f"Tool: {_OWN}"]},
        "packages": [root, *listed],
        "relationships": [
            {"spdxElementId": one, "relationshipType": how, "relatedSpdxElement": other}
            for one, how, other in [described, *contained]
        ],
    }


def _debian(status: str) -> Iterator[tuple[str, str, str]]:
    for paragraph in status.split("\n\n"):
        fields = dict(
            line.split(": ", 1) for line in paragraph.splitlines() if re.match(r"\w+: ", line)
        )
        if fields.get("Status", "").endswith(" installed"):
            yield "deb/debian", fields["Package"], fields["Version"]


def _python(files: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    for name, text in files.items():
        if name != _DEBIAN:
            fields = email.parser.HeaderParser().parsestr(text)
            yield "pypi", fields["Name"].lower().replace("_", "-"), fields["Version"]


def origin(image: Mapping[str, Any], dockerfile: str, revision: str) -> dict[str, Any]:
    """Return the statement of what the image was built from."""
    recipe = _REPOSITORY / dockerfile
    pins = sorted(recipe.parent.rglob("requirements.txt"))
    inputs = [recipe, *pins, *sorted((_REPOSITORY / "images" / "base").iterdir())]
    materials = [
        {"uri": str(path.relative_to(_REPOSITORY)), "digest": {"sha256": _sha256(path)}}
        for path in inputs
    ]
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": image["name"], "digest": {"sha256": image["digest"].split(":")[1]}}],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": "images/build.sh",
                "externalParameters": {
                    "dockerfile": dockerfile,
                    "version": image["labels"].get("org.opencontainers.image.version", ""),
                },
                "resolvedDependencies": [
                    {"uri": "git", "digest": {"gitCommit": revision}},
                    *materials,
                ],
            },
            "runDetails": {"builder": {"id": "images/build.sh"}},
        },
    }


def _seconds(created: str) -> str:
    """SPDX has no fractions of a second."""
    return re.sub(r"\.\d+", "", created)


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _blob(digest: str) -> str:
    return f"blobs/{digest.replace(':', '/')}"


def _json(tar: tarfile.TarFile, name: str) -> Any:
    member = tar.extractfile(name)
    if member is None:
        raise ValueError(f"no {name} in the archive")
    return json.load(member)


if __name__ == "__main__":
    main(*sys.argv[1:])
