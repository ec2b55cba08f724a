"""The check of the documents refuses what it says that it refuses."""

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.documents import commands, drawings, environment, links, words
from tests.documents.pages import Repository

MAKEFILE = ".PHONY: all\nall: ## everything\n\techo\n"
GOOD = """# A page

## Its part, *marked*

Text with a [link](#its-part-marked), [another](docs/page.md#one), [a folder](docs) and
[the world](https://example.com/none). `make all`, `tierline run FILE... [--duration S]`,
`kubectl tierline why-pending`, `.venv/bin/tierline admit a.yaml --node n.yaml`,
`python -m tierline_agent`, and `agent/things.py`.

```console
$ make all
```
"""

HALF, OTHER = "be", "ane"
"""Of words that stand nowhere as a whole, this page included."""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a repository with correct documents."""
    files = {
        "Makefile": MAKEFILE,
        "README.md": GOOD,
        "docs/page.md": "# One\n\n# One\n\n[up](../README.md) [self](page.md#one-1)\n",
        "docs/reference/environment.md": "| `TIERLINE_FIRST` | x |\n| `TIERLINE_OTHERS_…` | y |\n",
        "nodeagent/tierline_agent/__main__.py": 'import os\n\nos.environ["TIERLINE_FIRST"]\n',
        "nodeagent/agent/things.py": "",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    return tmp_path


def said(root: Path) -> list[str]:
    repository = Repository.read(root)
    checks: tuple[Callable[[Repository], Iterator[str]], ...] = (
        links.dead,
        commands.unknown,
        environment.differences,
        drawings.broken,
        words.old,
    )
    return [sentence for check in checks for sentence in check(repository)]


def test_a_right_repository_has_nothing_to_mend(root: Path) -> None:
    assert said(root) == []


@pytest.mark.parametrize(
    ("planted", "sentence"),
    [
        ("[x](docs/none.md)", "README.md:1: docs/none.md: there is no docs/none.md"),
        ("![x](none.png)", "README.md:1: none.png: there is no none.png"),
        ("[x](#none)", "README.md:1: #none: README.md has no such heading"),
        (
            "[x](docs/page.md#one-2)",
            "README.md:1: docs/page.md#one-2: docs/page.md has no such heading",
        ),
        ("`make none`", "README.md:1: make none: the Makefile has no such target"),
        ("`python -m tests.none`", "README.md:1: python -m tests.none: there is no such module"),
        ("`agent/none.py`", "README.md:1: agent/none.py: there is no such file"),
        ("`tierline fly`", "README.md:1: tierline fly: there is no command fly"),
        (
            "`kubectl tierline top --fly`",
            "README.md:1: tierline top --fly: top has no option --fly",
        ),
        (
            "```\n$ tierline run a.yaml --fly=1\n```",
            "README.md:2: tierline run a.yaml --fly=1: run has no option --fly=1",
        ),
        (
            "```mermaid\nsequenceDiagram\n  a->>b: one; two\n```",
            "README.md:3: a->>b: one; two: ; and # end a statement",
        ),
        (
            f"what lies {HALF}hind, and {HALF}sides",
            f"README.md:1: {HALF}hind: write after, during, in addition to, or again",
        ),
        (
            f"{HALF}gins_{OTHER}w(1)",
            f"README.md:1: {HALF}gins_{OTHER}w: write after, during, in addition to, or again",
        ),
    ],
)
def test_a_planted_fault_is_found(root: Path, planted: str, sentence: str) -> None:
    (root / "README.md").write_text(planted + "\n")
    assert said(root) == [sentence]


def test_a_variable_without_a_row_is_found(root: Path) -> None:
    (root / "nodeagent/more.c").write_text('getenv("TIERLINE_SECOND");\n')
    assert said(root) == [
        "docs/reference/environment.md: TIERLINE_SECOND, which the product names, is not there"
    ]


@pytest.mark.parametrize(
    "read",
    [
        'os.environ["A_FOLDER"]',
        'os.environ.get("A_FOLDER", "")',
        'os.environ.pop("A_FOLDER", None)',
        '"A_FOLDER" in os.environ',
        'os.environ[NAME]\nNAME: Final = "A_FOLDER"',
    ],
)
def test_a_variable_of_others_that_is_read_is_found(root: Path, read: str) -> None:
    (root / "operator").mkdir()
    (root / "operator/reading.py").write_text(f"import os\n\n{read}\n")
    assert said(root) == [
        "docs/reference/environment.md: A_FOLDER, which the product names, is not there"
    ]


@pytest.mark.parametrize(
    ("file", "read"),
    [
        ("cli/reading.py", 'os.environ[f"{PREFIX}_FIRST"]'),
        ("cli/reading.py", "os.environ.get(name)"),
        ("nodeagent/reading.c", "getenv(name);"),
    ],
)
def test_a_variable_by_a_name_that_is_not_written_out_is_refused(
    root: Path, file: str, read: str
) -> None:
    (root / file).parent.mkdir(exist_ok=True)
    (root / file).write_text(f"\n{read}\n")
    assert said(root) == [f"{file}:2: reads a variable whose name is not written out"]


def test_a_row_without_a_variable_is_found(root: Path) -> None:
    (root / "nodeagent/tierline_agent/__main__.py").write_text("")
    assert said(root) == [
        "docs/reference/environment.md: TIERLINE_FIRST: nothing in the product names it"
    ]
