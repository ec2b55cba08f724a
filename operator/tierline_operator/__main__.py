"""`python -m tierline_operator`: the operator in the foreground."""

from __future__ import annotations

import os
import sys
from dataclasses import MISSING, Field, fields
from typing import Any

import click
import kopf

from tierline_operator import main, settings
from tierline_operator.settings import Settings


def _help(setting: Field[Any]) -> str:
    """The meaning of a setting, and its default."""
    meaning: str = setting.metadata[settings.MEANING]
    return meaning if setting.default is MISSING else f"{meaning}  [default: {setting.default}]"


_OPTIONS: list[click.Parameter] = [
    click.Option(
        [f"--{setting.name.replace('_', '-')}"],
        envvar=settings.name_of(setting.name),
        show_envvar=True,
        help=_help(setting),
        metavar=str(setting.type).upper(),
    )
    for setting in fields(Settings)
]
"""One option a setting; the environment says the same under TIERLINE_OPERATOR_…."""


@click.command(params=_OPTIONS, context_settings={"help_option_names": ["-h", "--help"]})
def run(**given: str | None) -> None:
    """Run the Tierline operator: admit MemTasks, place their pods, allocate their claims.

    It connects as its pod's service account, or by KUBECONFIG. Any number of replicas may run; one
    leads.
    """
    for name, value in given.items():
        if value is not None:
            os.environ[settings.name_of(name)] = value
    try:
        chosen = settings.read(os.environ)
    except settings.SettingsError as error:
        click.echo(f"tierline-operator: {error}", err=True)
        sys.exit(2)
    health = f"http://0.0.0.0:{chosen.health_port}/healthz" if chosen.health_port else None
    kopf.run(
        registry=main.REGISTRY,
        memo=kopf.Memo(),
        standalone=True,
        clusterwide=True,
        liveness_endpoint=health,
    )


if __name__ == "__main__":
    run()
