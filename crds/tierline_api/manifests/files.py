"""Loads manifests: the files that `kubectl apply` takes, read without a cluster.

Every mistake is a ManifestError of one sentence that names the file, the document, the field and
the fix; nothing else is raised for what a file contains. Files are hostile: their size, depth and
number are bounded. Besides Tierline's kinds, a Namespace may stand in a file (kubectl needs it;
here it says nothing), and a List is read as its items.
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from tierline_api.manifests.documents import DocumentError, read_documents
from tierline_api.manifests.mistakes import Mistake, first_mistake, suggestion
from tierline_api.objects.memnode import MemNode
from tierline_api.objects.memprofile import MemProfile
from tierline_api.objects.memtask import MemTask
from tierline_api.schema.base import API_VERSION
from tierline_api.schema.quantities import shown

MAX_FILE_BYTES: Final = 8 * 2**20
"""Largest file that is read; the API server's own limit for one object is 1.5 MiB."""
MAX_FILES: Final = 1000
"""Most files that are read at once."""
STDIN: Final = "-"
"""The path that means standard input."""

_KINDS: Final[dict[str, type[MemTask | MemProfile | MemNode]]] = {
    "MemTask": MemTask,
    "MemProfile": MemProfile,
    "MemNode": MemNode,
}
_SUFFIXES: Final = frozenset({".yaml", ".yml", ".json"})


class ManifestError(Exception):
    """A mistake in a manifest, in one sentence; `source`, `document`, `field` say where."""

    def __init__(self, source: str, document: str, mistake: Mistake) -> None:
        self.source, self.document, self.field = source, document, mistake.field
        where = [part for part in (source, document, mistake.field) if part]
        super().__init__(": ".join([*where, mistake.problem]))


@dataclass(frozen=True)
class Manifests:
    """What the files hold, in the order in which they hold it."""

    tasks: tuple[MemTask, ...] = ()
    profiles: tuple[MemProfile, ...] = ()
    nodes: tuple[MemNode, ...] = ()

    def profile_of(self, task: MemTask) -> MemProfile | None:
        """Return the profile that `task` names, or that has its own name, if it is here."""
        wanted = (task.metadata.namespace, task.spec.profile or task.name)
        return next(
            (p for p in self.profiles if (p.metadata.namespace, p.metadata.name) == wanted), None
        )


def load_manifests(paths: Sequence[str | Path]) -> Manifests:
    """Read files, folders (their .yaml, .yml and .json files) and ``-`` for standard input.

    Raises ManifestError, also when a path cannot be read or holds nothing.
    """
    tasks: list[MemTask] = []
    profiles: list[MemProfile] = []
    nodes: list[MemNode] = []
    seen: dict[tuple[str, str, str], str] = {}
    for source, data in _contents(paths):
        for document, value in _objects(source, data):
            model = _read(source, document, value)
            namespace = "" if isinstance(model, MemNode) else model.metadata.namespace
            key = (model.kind, namespace, model.metadata.name)
            if key in seen:
                problem = f"is already in {seen[key]}; rename or remove one of the two"
                raise ManifestError(source, document, Mistake("metadata.name", problem))
            seen[key] = source
            if isinstance(model, MemTask):
                tasks.append(model)
            elif isinstance(model, MemProfile):
                profiles.append(model)
            else:
                nodes.append(model)
    return Manifests(tuple(tasks), tuple(profiles), tuple(nodes))


def _contents(paths: Sequence[str | Path]) -> Iterator[tuple[str, bytes]]:
    """Yield each file's name and bytes."""
    files: list[Path] = []
    for path in map(Path, paths):
        if path.is_dir():
            found = sorted(p for p in path.iterdir() if p.suffix in _SUFFIXES and p.is_file())
            if not found:
                raise _unread(str(path), "holds no .yaml, .yml or .json file; name another folder")
            files += found
        else:
            files.append(path)
    if len(files) > MAX_FILES:
        raise _unread(str(files[0].parent), f"more than {MAX_FILES} files; name fewer")
    for path in files:
        name = "standard input" if str(path) == STDIN else str(path)
        try:
            if str(path) == STDIN:
                data = sys.stdin.buffer.read(MAX_FILE_BYTES + 1)
            else:
                with path.open("rb") as file:
                    data = file.read(MAX_FILE_BYTES + 1)
        except FileNotFoundError as error:
            raise _unread(name, "there is no such file; check the path") from error
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            problem = f"cannot be read ({reason}); check the path and its mode"
            raise _unread(name, problem) from error
        if len(data) > MAX_FILE_BYTES:
            raise _unread(name, f"is larger than {MAX_FILE_BYTES // 2**20} MiB; split it up")
        yield name, data


def _unread(source: str, problem: str) -> ManifestError:
    printable = source if source.isprintable() and source else shown(source)
    return ManifestError(printable, "", Mistake("", problem))


def _objects(source: str, data: bytes) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield what each document is called, and its value; lists are opened."""
    empty = True
    try:
        for document in read_documents(data.decode("utf-8-sig")):
            empty = False
            for item in _items(document.value):
                name = _called(document.position, item)
                if not isinstance(item, dict):
                    problem = f"{shown(item)} is no object; write apiVersion, kind, metadata, spec"
                    raise ManifestError(source, name, Mistake("", problem))
                if (item.get("apiVersion"), item.get("kind")) != ("v1", "Namespace"):
                    yield name, item
    except UnicodeDecodeError as error:
        raise _unread(source, "is not UTF-8 text; save it as UTF-8") from error
    except DocumentError as error:
        raise _unread(source, str(error)) from error
    if empty:
        raise _unread(source, "is empty; write a MemTask into it")


def _items(value: Any) -> list[Any]:
    """Return the items of a List, as `kubectl get -o yaml` writes one, or the value alone."""
    if isinstance(value, dict) and str(value.get("kind"))[-4:] == "List":
        items = value.get("items")
        if isinstance(items, list):
            return items
    return [value]


def _called(position: int, value: Any) -> str:
    """Return what to call a document in a message: kind and name if it has them."""
    metadata = value.get("metadata") if isinstance(value, dict) else None
    if not isinstance(metadata, dict):
        return f"document {position}"
    words = [value.get("kind"), metadata.get("namespace", "default"), metadata.get("name")]
    if not all(isinstance(word, str) and word.isprintable() for word in words):
        return f"document {position}"
    kind, namespace, name = (word[:63] for word in words)
    return f"{kind} {name}" if kind == "MemNode" else f"{kind} {namespace}/{name}"


def _read(source: str, document: str, value: dict[str, Any]) -> MemTask | MemProfile | MemNode:
    """Return the model of `value`."""
    kind, version = value.get("kind"), value.get("apiVersion")
    if kind is None or version is None:
        field = "kind" if kind is None else "apiVersion"
        fix = f"one of {', '.join(_KINDS)}" if kind is None else API_VERSION
        raise ManifestError(source, document, Mistake(field, f"is missing; write {fix}"))
    if not isinstance(kind, str) or kind not in _KINDS:
        fix = suggestion(kind if isinstance(kind, str) else "", _KINDS)
        problem = f"{shown(kind)} is no kind of Tierline; {fix}"
        raise ManifestError(source, document, Mistake("kind", problem))
    if version != API_VERSION:
        problem = f"{shown(version)} is not the API of a {kind}; write {API_VERSION}"
        raise ManifestError(source, document, Mistake("apiVersion", problem))
    try:
        read = _KINDS[kind].from_api(value)
    except ValidationError as error:
        raise ManifestError(source, document, first_mistake(_KINDS[kind], error)) from error
    if isinstance(read, MemTask) and read.spec.template and not read.spec.template.programs:
        problem = "no container has a command; write the program, such as [python, -m, my_task]"
        field = "spec.template.spec.containers[0].command"
        raise ManifestError(source, document, Mistake(field, problem))
    return read
