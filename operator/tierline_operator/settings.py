"""The operator's settings, read from the environment; the command line sets the same names.

Every setting is `TIERLINE_OPERATOR_` and its field in capitals. An unknown name or a value that
makes no sense fails loudly: a typing mistake in a chart must not become a silent default.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields
from typing import Any, Final, TypeVar

from tierline_api.devices.device import DeviceKind
from tierline_api.devices.margins import MARGINS

PREFIX: Final = "TIERLINE_OPERATOR_"
MEANING: Final = "meaning"
"""Under this name the metadata of a field of Settings says what it is."""
_RANGE: Final = "range"
"""Under this name they say the least and the most that a number may be."""
T = TypeVar("T")


class SettingsError(ValueError):
    """A setting is unknown or has no sensible value; the sentence names it and the fix."""


def _identity() -> str:
    return f"{socket.gethostname()}-{os.getpid()}"


def _setting(default: T, meaning: str) -> T:
    """A setting that says what it is, in `--help` too."""
    made: T = field(default=default, metadata={MEANING: meaning})
    return made


def _number(default: T, least: float, most: float, meaning: str) -> T:
    """A setting that is a number from `least` to `most`: never infinite, never none at all."""
    made: T = field(default=default, metadata={MEANING: meaning, _RANGE: (least, most)})
    return made


@dataclass(frozen=True)
class Settings:
    """An administrator's settings."""

    namespace: str = _setting("tierline-system", "Where the leader's Lease lives.")
    lease: str = _setting("tierline-operator", "The name of that Lease.")
    identity: str = field(
        default_factory=_identity,
        metadata={MEANING: "The name of this replica in the Lease; else host name and process."},
    )
    lease_duration_s: float = _number(
        15.0, 1, 3600, "After so long without a renewal another replica may lead."
    )
    renew_deadline_s: float = _number(
        10.0,
        0.1,
        3600,
        "After so long without a renewal a leader stops acting; below the Lease's duration.",
    )
    retry_period_s: float = _number(
        2.0, 0.1, 3600, "Between two tries to renew or to take the Lease."
    )
    writes_at_once: int = _number(32, 1, 1000, "API writes under way at once.")
    metrics_port: int = _number(9402, 0, 65535, "Port of the Prometheus metrics; 0 for none.")
    health_port: int = _number(8080, 0, 65535, "Port of /healthz for the kubelet; 0 for none.")
    log_format: str = _setting("json", "json: one object a line; text: for people.")
    log_level: str = _setting("info", "debug, info, warning or error.")
    cpu_margin: float = _number(
        MARGINS[DeviceKind.CPU],
        1,
        100,
        "Safety factor of compute times and bandwidths on the device kind cpu.",
    )
    cuda_margin: float = _number(MARGINS[DeviceKind.CUDA], 1, 100, "The same on cuda.")
    headroom: float = _setting(
        0.5, "Share of a device's fast memory that no pod holds which plans leave to later pods."
    )
    measuring_limit_s: float = _number(
        900.0,
        1,
        86_400,
        "A task without a profile is measured for so long, once others wait for the device.",
    )

    keep_free_s: float = _number(
        300.0, 1, 86_400, "A place is kept free so long for a pod of the task that does not come."
    )
    stalled_after_s: float = _number(
        600.0, 1, 86_400, "A task that is admitted for so long without being ready is stalled."
    )

    def __post_init__(self) -> None:
        """Refuse what is out of range or contradicts itself."""
        for setting in fields(self):
            if _RANGE not in setting.metadata:
                continue
            value = getattr(self, setting.name)
            least, most = setting.metadata[_RANGE]
            if not least <= value <= most:  # nan is not
                raise SettingsError(
                    f"{name_of(setting.name)} is {value}; write a number from {least} to {most}"
                )
        if not self.retry_period_s < self.renew_deadline_s < self.lease_duration_s:
            raise SettingsError(
                f"{name_of('retry_period_s')} {self.retry_period_s}, {name_of('renew_deadline_s')} "
                f"{self.renew_deadline_s} and {name_of('lease_duration_s')} "
                f"{self.lease_duration_s} must rise in this order; change one of them"
            )
        for name, words in (
            ("log_format", ("json", "text")),
            ("log_level", ("debug", "info", "warning", "error")),
        ):
            if getattr(self, name) not in words:
                raise SettingsError(
                    f"{name_of(name)} {getattr(self, name)!r} is not known; "
                    f"write one of {', '.join(words)}"
                )
        if not 0 <= self.headroom < 1:
            raise SettingsError(
                f"{name_of('headroom')} is {self.headroom}; write a share from 0 to below 1"
            )


def name_of(setting: str) -> str:
    """The environment variable of a setting."""
    return PREFIX + setting.upper()


def read(environment: Mapping[str, str]) -> Settings:
    """Read the settings; raises SettingsError."""
    known = {name_of(setting.name): setting for setting in fields(Settings)}
    given: dict[str, Any] = {}
    for name, text in environment.items():
        if not name.startswith(PREFIX):
            continue
        if name not in known:
            raise SettingsError(f"{name} is no setting of the operator; remove it")
        given[known[name].name] = _value(known[name], name, text)
    return Settings(**given)


def _value(setting: Field[Any], name: str, text: str) -> object:
    kind = {"float": float, "int": int, "str": str}[str(setting.type)]
    try:
        value: object = kind(text)
    except ValueError as error:
        raise SettingsError(f"{name} is {text!r}; write a number") from error
    return value
