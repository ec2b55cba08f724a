"""A driver of dynamic resources as small as can be: it shows that this cluster runs one.

It prepares a claim by a CDI file that mounts a folder of the claim's own and sets a variable.
"""

from __future__ import annotations

import json
import shutil
import threading
import uuid
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import grpc

from tierline_cluster.api import Api, Manifest

CDI: Final = Path("/var/run/cdi")
_HERE: Final = "tests/e2e"


class Driver:
    """A driver called `name` for the node `node`, whose kubelet lives in `kubelet_root`."""

    def __init__(
        self,
        name: str,
        node: str,
        kubelet_root: Path,
        api: Api,
        files: Mapping[str, Path] | None = None,
    ) -> None:
        """Prepare it; copies of `files` come into each claim's folder."""
        self.name = name
        self.node = node
        self.registered = threading.Event()
        self.prepared: list[str] = []
        self.unprepared: list[str] = []
        self._files = files or {}
        self._api = api
        self._folder = kubelet_root / "plugins" / name
        self._registry = kubelet_root / "plugins_registry"
        self._dra, dra_services = grpc.protos_and_services(f"{_HERE}/dra.proto")
        self._registration, services = grpc.protos_and_services(f"{_HERE}/registration.proto")
        self._server = grpc.server(ThreadPoolExecutor(4))
        dra_services.add_DRAPluginServicer_to_server(self, self._server)
        services.add_RegistrationServicer_to_server(self, self._server)

    def start(self) -> None:
        """Publish one device that claims share, and register with the kubelet."""
        for folder in (self._folder, self._registry, CDI):
            folder.mkdir(parents=True, exist_ok=True)
        self._api.create(self._slice())
        self._server.add_insecure_port(f"unix:{self._folder}/dra.sock")
        self._server.add_insecure_port(f"unix:{self._registry}/{self.name}-reg.sock")
        self._server.start()

    def stop(self) -> None:
        """Take everything back."""
        self._server.stop(grace=1).wait()
        self._api.delete(self._slice())
        for file in CDI.glob(f"{self.name}-claim-*.json"):
            file.unlink()
        if CDI.exists() and not any(CDI.iterdir()):
            CDI.rmdir()

    def admit(self, pod: Manifest) -> str:
        """Allocate the claim of a gated `pod` and remove its gate, as the operator does.

        Returns the claim's uid.
        """
        waiting = self._api.wait(pod, lambda found: found["status"].get("resourceClaimStatuses"))
        claim = waiting["status"]["resourceClaimStatuses"][0]["resourceClaimName"]
        named = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": claim, "namespace": pod["metadata"]["namespace"]},
        }
        patch = {
            "metadata": {"finalizers": ["resource.kubernetes.io/delete-protection"]},
            "status": {"allocation": self._allocation()},
        }
        stored = self._api.merge(named, patch, subresource="status")
        self._api.merge(pod, {"spec": {"schedulingGates": None}})
        uid: str = stored["metadata"]["uid"]
        return uid

    def _allocation(self) -> Manifest:
        here = {"key": "metadata.name", "operator": "In", "values": [self.node]}
        result = {
            "request": "device",
            "driver": self.name,
            "pool": self.node,
            "device": "cpu",
            "shareID": str(uuid.uuid4()),
            "consumedCapacity": {"fastMemory": "256Mi"},
        }
        return {
            # Without it the scheduler would add it, which an allocation does not allow.
            "allocationTimestamp": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [here]}]},
            "devices": {"results": [result]},
        }

    def cdi_file(self, uid: str) -> Path:
        """Return the file that describes a claim's devices to containerd."""
        return CDI / f"{self.name}-claim-{uid}.json"

    def _slice(self) -> dict[str, Any]:
        device = {
            "name": "cpu",
            "allowMultipleAllocations": True,
            "attributes": {"kind": {"string": "cpu"}},
            "capacity": {"fastMemory": {"value": "1Gi"}},
        }
        return {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceSlice",
            "metadata": {"name": f"{self.node}-{self.name}"},
            "spec": {
                "driver": self.name,
                "nodeName": self.node,
                "pool": {"name": self.node, "generation": 1, "resourceSliceCount": 1},
                "devices": [device],
            },
        }

    # -- what the kubelet calls; the names are the protocol's ---------------------------------

    def GetInfo(self, _request: Any, _context: Any) -> Any:  # noqa: N802
        return self._registration.PluginInfo(
            type="DRAPlugin",
            name=self.name,
            endpoint=str(self._folder / "dra.sock"),
            supported_versions=["v1.DRAPlugin"],
        )

    def NotifyRegistrationStatus(self, request: Any, _context: Any) -> Any:  # noqa: N802
        if request.plugin_registered:
            self.registered.set()
        return self._registration.RegistrationStatusResponse()

    def NodePrepareResources(self, request: Any, _context: Any) -> Any:  # noqa: N802
        reply = self._dra.NodePrepareResourcesResponse()
        for claim in request.claims:
            found = self._api.get(
                {
                    "apiVersion": "resource.k8s.io/v1",
                    "kind": "ResourceClaim",
                    "metadata": {"name": claim.name, "namespace": claim.namespace},
                }
            )
            home = self._folder / claim.uid
            home.mkdir(exist_ok=True)
            results = found["status"]["allocation"]["devices"]["results"]
            (home / "granted").write_text(json.dumps(results))
            for file, source in self._files.items():
                shutil.copy(source, home / file)
            self._describe(claim.uid, home)
            for result in results:
                reply.claims[claim.uid].devices.add(
                    request_names=[result["request"]],
                    pool_name=result["pool"],
                    device_name=result["device"],
                    cdi_device_ids=[f"{self.name}/claim={claim.uid}"],
                    share_id=result.get("shareID"),
                )
            self.prepared.append(claim.uid)
        return reply

    def NodeUnprepareResources(self, request: Any, _context: Any) -> Any:  # noqa: N802
        reply = self._dra.NodeUnprepareResourcesResponse()
        for claim in request.claims:
            self.cdi_file(claim.uid).unlink(missing_ok=True)
            reply.claims[claim.uid].error = ""
            self.unprepared.append(claim.uid)
        return reply

    def _describe(self, uid: str, home: Path) -> None:
        options = ["ro", "nosuid", "nodev", "bind"]
        mount = {"hostPath": str(home), "containerPath": "/run/tierline", "options": options}
        edits = {"env": [f"TIERLINE_CLAIM={uid}"], "mounts": [mount]}
        description = {
            "cdiVersion": "0.6.0",
            "kind": f"{self.name}/claim",
            "devices": [{"name": uid, "containerEdits": edits}],
        }
        draft = CDI / f".{self.name}-{uid}"
        draft.write_text(json.dumps(description))
        draft.rename(self.cdi_file(uid))
