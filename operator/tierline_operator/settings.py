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

from tierline_api.device import DeviceKind
from tierline_api.margins import MARGINS

PREFIX: Final = "TIERLINE_OPERATOR_"
MEANING: Final = "meaning"
"""Under this name the metadata of a field of Settings says what it is."""
T = TypeVar("T")


class SettingsError(ValueError):
    """A setting is unknown or has no sensible value; the sentence names it and the fix."""


def _identity() -> str:
    return f"{socket.gethostname()}-{os.getpid()}"


def _setting(default: T, meaning: str) -> T:
    """A setting that says what it is, in `--help` too."""
    made: T = field(default=default, metadata={MEANING: meaning})
    return made


@dataclass(frozen=True)
class Settings:
    """What an administrator may set."""

    namespace: str = _setting("tierline-system", "Where the leader's Lease lives.")
    lease: str = _setting("tierline-operator", "The name of that Lease.")
    identity: str = field(
        default_factory=_identity,
        metadata={MEANING: "Who this replica is, in the Lease; else host name and process."},
    )
    lease_duration_s: float = _setting(
        15.0, "After so long without a renewal another replica may lead."
    )
    renew_deadline_s: float = _setting(
        10.0, "After so long without a renewal a leader stops acting; below the Lease's duration."
    )
    retry_period_s: float = _setting(2.0, "Between two tries to renew or to take the Lease.")
    writes_at_once: int = _setting(32, "API writes under way at once.")
    metrics_port: int = _setting(9402, "Port of the Prometheus metrics; 0 for none.")
    health_port: int = _setting(8080, "Port of /healthz for the kubelet; 0 for none.")
    log_format: str = _setting("json", "json: one object a line; text: for people.")
    log_level: str = _setting("info", "debug, info, warning or error.")
    cpu_margin: float = _setting(
        MARGINS[DeviceKind.CPU],
        "Safety factor of compute times and bandwidths on the device kind cpu.",
    )
    cuda_margin: float = _setting(MARGINS[DeviceKind.CUDA], "The same on cuda.")
    headroom: float = _setting(
        0.5, "Share of a device's fast memory that no pod holds which plans leave to later pods."
    )
    measuring_limit_s: float = _setting(
        900.0,
        "A task without a profile is measured for so long, once others wait for the device.",
    )

    def __post_init__(self) -> None:
        """Refuse what contradicts itself."""
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
        for name in ("cpu_margin", "cuda_margin"):
            if not getattr(self, name) >= 1:
                raise SettingsError(f"{name_of(name)} is below 1; write at least 1")
        if not 0 <= self.headroom < 1:
            raise SettingsError(
                f"{name_of('headroom')} is {self.headroom}; write a share from 0 to below 1"
            )
        for name in ("retry_period_s", "writes_at_once", "measuring_limit_s"):
            if not getattr(self, name) > 0:
                raise SettingsError(f"{name_of(name)} is not above 0; write a positive number")


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
