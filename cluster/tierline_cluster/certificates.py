"""One certificate authority, the certificates that it signs, and kubeconfigs that use them.

Keys live in one folder that only its owner may read; each cluster gets new ones, which are worth
nothing elsewhere.
"""

import json
import subprocess
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from .errors import ClusterError

_VALID_DAYS: Final = "365"
_KEY: Final = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")


@dataclass(frozen=True)
class Certificate:
    """A certificate and its private key, both PEM files."""

    certificate: Path
    key: Path


class Authority:
    """Signs certificates; its files lie in `folder`."""

    def __init__(self, folder: Path) -> None:
        """Make the authority, or take the one that is in `folder` already."""
        self.folder = folder
        self.certificate = folder / "ca.crt"
        self._key = folder / "ca.key"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not self.certificate.exists():
            subject = "/CN=tierline-cluster"
            _openssl(*_request(self._key, self.certificate, subject))

    def issue(
        self,
        name: str,
        common_name: str,
        groups: Sequence[str] = (),
        addresses: Sequence[str] = (),
    ) -> Certificate:
        """Return a certificate for user `common_name` in `groups`, or a server at `addresses`.

        Addresses are written as in a subjectAltName: ``IP:127.0.0.1`` or ``DNS:localhost``.
        """
        made = Certificate(self.folder / f"{name}.crt", self.folder / f"{name}.key")
        if made.certificate.exists():
            return made
        subject = "".join(f"/O={group}" for group in groups) + f"/CN={common_name}"
        extensions = ["-addext", "basicConstraints=critical,CA:FALSE"]
        extensions += ["-addext", "extendedKeyUsage=serverAuth,clientAuth"]
        if addresses:
            extensions += ["-addext", f"subjectAltName={','.join(addresses)}"]
        signed = ["-CA", str(self.certificate), "-CAkey", str(self._key)]
        _openssl(*_request(made.key, made.certificate, subject), *signed, *extensions)
        return made

    def service_account_key(self) -> Path:
        """Return a private key that signs service accounts' tokens."""
        key = self.folder / "service-accounts.key"
        if not key.exists():
            # In SEC1 form: of PKCS#8 the API server does not take the public half.
            _openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", str(key))
        return key


def write_kubeconfig(path: Path, server: str, authority: Authority, user: Certificate) -> Path:
    """Write a kubeconfig that names nothing outside itself, so that it may be copied; return it."""
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {
                "name": "tierline",
                "cluster": {
                    "server": server,
                    "certificate-authority-data": _base64(authority.certificate),
                },
            }
        ],
        "users": [
            {
                "name": "tierline",
                "user": {
                    "client-certificate-data": _base64(user.certificate),
                    "client-key-data": _base64(user.key),
                },
            }
        ],
        "contexts": [{"name": "tierline", "context": {"cluster": "tierline", "user": "tierline"}}],
        "current-context": "tierline",
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch(mode=0o600)
    path.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    return path


def _request(key: Path, certificate: Path, subject: str) -> list[str]:
    files = ["-keyout", str(key), "-out", str(certificate)]
    return ["req", "-x509", *_KEY, "-days", _VALID_DAYS, "-subj", subject, *files]


def _base64(path: Path) -> str:
    return b64encode(path.read_bytes()).decode("ascii")


def _openssl(*arguments: str) -> None:
    try:
        subprocess.run(["openssl", *arguments], check=True, capture_output=True, text=True)
    except FileNotFoundError as missing:
        raise ClusterError("cannot make certificates: install openssl") from missing
    except subprocess.CalledProcessError as failed:
        what = " ".join(arguments)
        raise ClusterError(f"cannot make certificates: openssl {what}: {failed.stderr}") from failed
