"""A real Prometheus that scrapes what it is told."""

from __future__ import annotations

import json
import subprocess
import urllib.request
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import urlencode

import yaml

from tierline_cluster.processes import free_port


class Prometheus:
    """The process, from its making until `stop`."""

    def __init__(self, folder: Path, targets: list[dict[str, Any]], rules: Path) -> None:
        """Start it; `targets` are scrape configurations, with addresses and labels."""
        self._folder, self._port = folder, free_port()
        configuration = {
            "global": {
                "scrape_interval": "2s",
                "scrape_timeout": "2s",
                "evaluation_interval": "2s",
            },
            "rule_files": [str(rules)],
            "scrape_configs": targets,
        }
        path = folder / "prometheus.yaml"
        path.write_text(yaml.safe_dump(configuration))
        with (folder / "prometheus.log").open("wb") as log:
            self._process = subprocess.Popen(
                [
                    "prometheus",
                    f"--config.file={path}",
                    f"--storage.tsdb.path={folder / 'data'}",
                    f"--web.listen-address=127.0.0.1:{self._port}",
                ],
                stdout=log,
                stderr=log,
            )

    def ready(self) -> bool:
        """Whether it answers."""
        assert self._process.poll() is None, (self._folder / "prometheus.log").read_text()
        try:
            self._get("/-/ready")
        except (URLError, ConnectionError):
            return False
        return True

    def query(self, expression: str) -> list[float]:
        """The values that an expression has now, one a series."""
        answer = json.loads(self._get("/api/v1/query?" + urlencode({"query": expression})))
        return [float(found["value"][1]) for found in answer["data"]["result"]]

    def rules(self) -> dict[str, dict[str, Any]]:
        """The state of its alert rules by name."""
        groups = json.loads(self._get("/api/v1/rules"))["data"]["groups"]
        return {rule["name"]: rule for group in groups for rule in group["rules"]}

    def stop(self) -> None:
        """End it."""
        self._process.terminate()
        self._process.wait(60)

    def _get(self, path: str) -> str:
        address = f"http://127.0.0.1:{self._port}{path}"
        with urllib.request.urlopen(address, timeout=60) as answer:
            return str(answer.read(), "utf-8")
