"""Reads YAML text that nobody vouches for into plain values, as the API server would see them.

PyYAML only delivers events; the values are built here, without recursion, so that depth, size and
what aliases expand to are bounded before anything grows (a billion laughs costs as much as the
bound). Plain scalars mean what they mean to kubectl: a timestamp stays text, ``12:30`` is no
number, ``yes`` is a truth value. A key that is given twice is a mistake, not a silent choice.
Nothing here knows what a document is about.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn

import yaml

MAX_DEPTH: Final = 64
"""Deepest nesting that is read."""
MAX_VALUES: Final = 300_000
"""Most values of one text, with every alias counted as what it stands for."""
MAX_DIGITS: Final = 40
"""Longest number that is read."""

_TOO_DEEP: Final = f"is nested more than {MAX_DEPTH} deep; flatten it"
_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TAG: Final = "tag:yaml.org,2002:"
_TAGS: Final = frozenset({"!", *(_TAG + t for t in ("str", "int", "float", "bool", "null"))})
_NULLS: Final = frozenset({"", "~", "null", "Null", "NULL"})
_TRUTHS: Final = {
    spelling: truth
    for words, truth in (("true yes on", True), ("false no off", False))
    for word in words.split()
    for spelling in (word, word.capitalize(), word.upper())
}
_INTEGER: Final = re.compile(r"[-+]?(?:0|[1-9][0-9]*|0x[0-9a-fA-F]+|0b[01]+|0o?[0-7]+)", re.ASCII)
_FLOAT: Final = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?", re.ASCII)
_NO_NUMBER: Final = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")


class DocumentError(ValueError):
    """A text that is no YAML, or more than is read; the message says what to change."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(f"line {line}: {message}")


@dataclass(frozen=True)
class Document:
    """One document of a text: its position (from 1), first line (from 1) and value."""

    position: int
    line: int
    value: Any


@dataclass
class _Open:
    """A list or mapping that is still being read."""

    value: list[Any] | dict[str, Any]
    anchor: str | None
    values_before: int
    key: str | None = None
    merged: list[dict[str, Any]] = field(default_factory=list)


def read_documents(text: str) -> Iterator[Document]:
    """Yield the documents of `text` that are not empty; raises DocumentError."""
    try:
        yield from _Reader().read(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = error.problem or error.context or "cannot be read"
        if "nesting depth" in problem:  # libyaml's own limit, where it is the lower one
            raise DocumentError(mark.line + 1 if mark else 1, _TOO_DEEP) from error
        fix = "indent with spaces" if _has_tab(text, mark) else "correct the YAML there"
        raise DocumentError(mark.line + 1 if mark else 1, f"{problem}; {fix}") from error
    except yaml.YAMLError as error:
        raise DocumentError(1, "holds a character that YAML does not allow; remove it") from error


def _has_tab(text: str, mark: yaml.Mark | None) -> bool:
    """Say whether the line of `mark` has a tab, which YAML does not take as indentation."""
    lines = text.splitlines()
    return mark is not None and mark.line < len(lines) and "\t" in lines[mark.line]


class _Reader:
    def __init__(self) -> None:
        self._values = 0
        self._stack: list[_Open] = []
        self._anchors: dict[str, tuple[Any, int]] = {}
        self._pending: set[str] = set()
        self._line = 1

    def read(self, text: str) -> Iterator[Document]:
        position, first_line, root = 0, 1, None
        for event in yaml.parse(text, Loader=_LOADER):
            self._line = event.start_mark.line + 1 if event.start_mark else self._line
            if isinstance(event, yaml.DocumentStartEvent):
                position, first_line, root = position + 1, self._line, None
                self._anchors.clear()
            elif isinstance(event, yaml.DocumentEndEvent):
                if root is not None:
                    yield Document(position, first_line, root)
            elif isinstance(event, yaml.NodeEvent | yaml.CollectionEndEvent):
                done, value = self._take(event)
                if done and self._stack:
                    self._put(value)
                elif done:
                    root = value

    def _take(self, event: yaml.Event) -> tuple[bool, Any]:
        """Return whether `event` completes a value, and the value."""
        self._count(1)
        if isinstance(event, yaml.AliasEvent):
            return True, self._alias(str(event.anchor))
        if isinstance(event, yaml.ScalarEvent):
            return True, self._anchored(event.anchor, self._scalar(event), 1)
        if isinstance(event, yaml.CollectionStartEvent):
            self._begin(event)
            return False, None
        return True, self._end()

    def _alias(self, anchor: str) -> Any:
        """Return what the anchor stands for, and count all of it once more."""
        if anchor in self._pending or anchor not in self._anchors:
            self._fail(f"the alias *{anchor[:64]} stands for itself or for nothing; write it out")
        value, size = self._anchors[anchor]
        self._count(size)
        return value

    def _begin(self, event: yaml.CollectionStartEvent) -> None:
        """Open a list or mapping."""
        if len(self._stack) >= MAX_DEPTH:
            self._fail(_TOO_DEEP)
        if event.anchor:
            self._pending.add(event.anchor)
        is_mapping = isinstance(event, yaml.MappingStartEvent)
        self._stack.append(_Open({} if is_mapping else [], event.anchor, self._values))

    def _end(self) -> Any:
        """Close the innermost list or mapping and return it."""
        done = self._stack.pop()
        if isinstance(done.value, dict):
            for merged in done.merged:
                for key, value in merged.items():
                    done.value.setdefault(key, value)
        self._pending.discard(done.anchor or "")
        return self._anchored(done.anchor, done.value, self._values - done.values_before)

    def _put(self, value: Any) -> None:
        """Add `value` to the innermost list or mapping."""
        into = self._stack[-1]
        if isinstance(into.value, list):
            into.value.append(value)
        elif into.key is None:
            if not isinstance(value, str):
                self._fail("a key is no text; write a text as key, in quotes if need be")
            into.key = value
            if value in into.value:
                self._fail(f"the key {value[:64]!r} is given twice; remove one")
        elif into.key == "<<":
            parts = value if isinstance(value, list) else [value]
            if not all(isinstance(part, dict) for part in parts):
                self._fail("<< merges mappings only; write a mapping or an alias of one")
            into.merged += parts
            into.key = None
        else:
            into.value[into.key] = value
            into.key = None

    def _anchored(self, anchor: str | None, value: Any, size: int) -> Any:
        if anchor:
            self._anchors[anchor] = (value, size)
        return value

    def _scalar(self, event: yaml.ScalarEvent) -> Any:
        into = self._stack[-1] if self._stack else None
        text = str(event.value)
        if into is not None and isinstance(into.value, dict) and into.key is None:
            return text
        tag = event.tag
        if tag is not None and tag not in _TAGS:
            self._fail(f"the tag {tag[:64]} is not read; remove it")
        if tag in {"!", f"{_TAG}str"} or (tag is None and not event.implicit[0]):
            return text
        return self._plain(text)

    def _plain(self, text: str) -> Any:
        """Return what a plain scalar means."""
        if text in _NULLS:
            return None
        if text in _TRUTHS:
            return _TRUTHS[text]
        if _NO_NUMBER.fullmatch(text):
            self._fail(f"{text} is no number that JSON has; write a finite number or quote it")
        is_integer = _INTEGER.fullmatch(text) is not None
        if not is_integer and not _FLOAT.fullmatch(text):
            return text
        if len(text) > MAX_DIGITS:
            self._fail(f"a number has more than {MAX_DIGITS} digits; shorten or quote it")
        if not is_integer:
            return float(text)
        legacy = re.fullmatch(r"[-+]?0[0-7]+", text) is not None
        return int(text, 8 if legacy else 0)

    def _count(self, values: int) -> None:
        self._values += values
        if self._values > MAX_VALUES:
            self._fail(f"holds more than {MAX_VALUES} values, aliases expanded; split it up")

    def _fail(self, message: str) -> NoReturn:
        raise DocumentError(self._line, message)
