"""A pod template: all of it is kept, and the little that Tierline reads of it is typed.

The API server validates the rest when the Deployment is made, so unlike elsewhere unknown fields
pass through untouched.
"""

from typing import Annotated, Any

from pydantic import AfterValidator, ConfigDict, Field, StringConstraints, field_validator

from tierline_api.objects.pod import Pod
from tierline_api.schema.base import ApiModel


def _for_a_process(word: str) -> str:
    if "\0" in word:
        raise ValueError(
            "it has a character of the number 0, which nothing can be started with; take it out"
        )
    return word


_Word = Annotated[str, StringConstraints(max_length=65_536), AfterValidator(_for_a_process)]


class _Open(ApiModel):
    """A Kubernetes object of which only some fields are known here."""

    model_config = ConfigDict(extra="allow")

    def to_api(self) -> dict[str, Any]:
        """Return what was read, and no defaults."""
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True)


class EnvVar(_Open):
    """An environment variable of a container."""

    name: Annotated[
        str, StringConstraints(min_length=1, max_length=256), AfterValidator(_for_a_process)
    ]
    """Its name, without an equals sign."""
    value: _Word | None = None
    """Its value; absent when `valueFrom` takes it from the cluster."""

    @field_validator("name")
    @classmethod
    def _can_be_set(cls, name: str) -> str:
        if "=" in name:
            raise ValueError(f"{name!r} has an equals sign, which no name can have; take it out")
        return name


class Container(_Open):
    """A container; one with a command may be the task's program."""

    name: Annotated[str, StringConstraints(min_length=1, max_length=63)]
    """Its name, unique in the pod."""
    image: _Word | None = None
    """Its image; not used when the task runs without a cluster."""
    command: Annotated[tuple[_Word, ...], Field(max_length=4096)] = ()
    """The program and its first arguments."""
    args: Annotated[tuple[_Word, ...], Field(max_length=4096)] = ()
    """More arguments."""
    env: Annotated[tuple[EnvVar, ...], Field(max_length=1024)] = ()
    """Environment variables of the program."""
    env_from: Annotated[tuple[dict[str, Any], ...], Field(max_length=1024)] = ()
    """ConfigMaps and Secrets of the cluster whose entries become variables."""
    working_dir: _Word | None = None
    """The folder in which the program starts."""

    @field_validator("command")
    @classmethod
    def _names_a_program(cls, command: tuple[str, ...]) -> tuple[str, ...]:
        if command and not command[0]:
            raise ValueError("its first word is empty; write the program, such as python")
        return command


class PodSpec(_Open):
    """The spec of a pod template."""

    containers: Annotated[tuple[Container, ...], Field(min_length=1, max_length=64)]
    """The containers of the pod."""


class PodTemplate(_Open):
    """A PodTemplateSpec."""

    metadata: dict[str, Any] | None = None
    """Labels and annotations of the pods."""
    spec: PodSpec
    """The spec of the pods."""

    @property
    def programs(self) -> tuple[Container, ...]:
        """The containers with a command that are meant: all, or those that the annotation names."""
        pod = Pod(self.model_dump(mode="json", by_alias=True, exclude_unset=True))
        meant = pod.meant_names
        return tuple(c for c in self.spec.containers if c.command and c.name in meant)
