"""The thread of the Kubernetes part, from `start` to `stop`, with an event loop of its own.

Light to import: gRPC and the API server's client take seconds to load on a busy node, in which the
agent would grant no lease; so the thread loads them itself.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from contextlib import suppress
from typing import Final

from tierline_agent.config import AgentConfig, KubernetesSettings
from tierline_agent.errors import AgentError
from tierline_agent.kubernetes.readiness import CLAIMS, Objection
from tierline_agent.processes.lives import Lives
from tierline_kube.errors import KubeError

_log = logging.getLogger(__name__)
_STOP_S: Final = 15.0


class KubernetesThread:
    """The thread."""

    def __init__(
        self,
        config: AgentConfig,
        settings: KubernetesSettings,
        node: str,
        lives: Lives,
        object_to: Objection,
    ) -> None:
        self._config = config
        self._settings = settings
        self._node = node
        self._lives = lives
        self._object_to = object_to
        self._loop = asyncio.new_event_loop()
        self._ending = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="kubernetes", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """Leave the kubelet in good order; what is prepared stays."""
        with suppress(RuntimeError):  # the loop is closed: it ended by itself
            self._loop.call_soon_threadsafe(self._ending.set)
        self._thread.join(_STOP_S)
        if self._thread.is_alive():
            _log.warning("the Kubernetes part did not end in %.0f s", _STOP_S)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            from tierline_agent.kubernetes.service import Service  # noqa: PLC0415

            service = Service(
                self._config, self._settings, self._node, self._lives, self._object_to
            )
            self._loop.run_until_complete(service.run(self._ending))
        except (AgentError, KubeError) as error:
            _log.error("the Kubernetes part ended: %s", error)
            self._object_to(CLAIMS, str(error))
        except Exception:
            _log.exception("the Kubernetes part ended")
            self._object_to(CLAIMS, "it ended; the agent's log says why")
        finally:
            self._loop.close()
