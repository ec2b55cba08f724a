"""Builds are complete or absent, whatever interrupts them."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tierline_cluster import build as building
from tierline_cluster import cache, versions
from tierline_cluster.build import built, programs
from tierline_cluster.errors import ClusterError
from tierline_cluster.versions import Build

HELLO = Build(
    "hello", "v1", (("build", "-trimpath", "-o", "{out}/hello", "."),), links=(("hi", "hello"),)
)
Write = Callable[[str], None]
MODULE = "module example.com/word\n\ngo 1.26\n"
SUMS = """\
example.com/word v1.0.0 h1:oPI9bW8KigMKPKTzzHIfWdnt6oHiBGqZIpfQvV+f+EA=
example.com/word v1.0.0/go.mod h1:rwF6PEy9nGeBajsNsq+mFiEqTl+2a0w2z+Q2jJdj6gc=
"""


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """A folder of sources and a cache of its own; writes the program."""
    folder = tmp_path / "sources" / "hello"
    folder.mkdir(parents=True)
    (folder / "go.mod").write_text("module hello\n\ngo 1.26\n")
    monkeypatch.setattr(versions, "SOURCES", tmp_path / "sources")
    monkeypatch.setattr(building, "SOURCES", tmp_path / "sources")
    monkeypatch.setattr(building, "CACHE", tmp_path / "cache")

    def write(text: str) -> None:
        (folder / "main.go").write_text(text)

    write('package main\n\nfunc main() { println("hello") }\n')
    return write


def test_a_program_is_built_once(source: Write, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ClusterError, match=r"hello v1 is not built .* run: make kubernetes"):
        built(HELLO)
    folder = programs(HELLO)
    said = subprocess.run([folder / "hi"], capture_output=True, text=True, check=True).stderr
    assert said == "hello\n"
    assert "hello v1: built in" in capsys.readouterr().err

    assert programs(HELLO) == built(HELLO) == folder
    assert capsys.readouterr().err == ""


def test_what_no_clone_has_used_for_long_goes_when_something_is_built(source: Write) -> None:
    before = programs(HELLO)
    source('package main\n\nfunc main() { println("changed") }\n')
    after = programs(HELLO)
    assert after != before
    assert before.exists(), "another clone may use it"

    long_ago = time.time() - (cache.UNUSED_DAYS + 1) * 24 * 3600
    os.utime(before, (long_ago, long_ago))
    os.utime(after, (long_ago, long_ago))
    programs(HELLO)  # in use again
    source('package main\n\nfunc main() { println("once more") }\n')
    programs(HELLO)
    assert (before.exists(), after.exists()) == (False, True)


def test_a_build_that_fails_says_why_and_leaves_nothing(source: Write, tmp_path: Path) -> None:
    source("package main\n\nfunc main() { nonsense }\n")
    with pytest.raises(ClusterError, match="undefined: nonsense"):
        programs(HELLO)
    source("package main\n\nfunc main() {}\n")

    assert programs(HELLO).parent == tmp_path / "cache"
    assert not list((tmp_path / "cache").glob("making-*"))


def test_what_a_killed_build_left_is_not_taken_for_a_build(source: Write, tmp_path: Path) -> None:
    partial = tmp_path / "cache" / "making-hello-v1-0"
    partial.mkdir(parents=True)
    (partial / "hello").write_text("half")

    assert (programs(HELLO) / "hello").stat().st_size > 1000
    assert not partial.exists()


class Proxy(ThreadingHTTPServer):
    """A proxy of Go modules that has one, and loses some answers first."""

    def __init__(self, lost: int) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.lost = lost
        archive = io.BytesIO()
        with zipfile.ZipFile(archive, "w") as file:
            file.writestr("example.com/word@v1.0.0/go.mod", MODULE)
            file.writestr("example.com/word@v1.0.0/word.go", 'package word\n\nconst Word = "far"\n')
        self.files = {
            ".info": b'{"Version": "v1.0.0"}',
            ".mod": MODULE.encode(),
            ".zip": archive.getvalue(),
        }


class Answer(BaseHTTPRequestHandler):
    """One request."""

    server: Proxy

    def do_GET(self) -> None:
        found = self.server.files.get(Path(self.path).suffix)
        if self.server.lost > 0:
            self.server.lost -= 1
            self.send_error(503)
        elif found is None:
            self.send_error(404)
        else:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(found)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def test_an_answer_that_the_proxy_of_modules_loses_is_asked_for_again(
    source: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy = Proxy(lost=2)
    threading.Thread(target=proxy.serve_forever, daemon=True).start()
    settings = {
        "GOPROXY": f"http://127.0.0.1:{proxy.server_port}",
        "GOSUMDB": "off",
        "GOFLAGS": "-modcacherw",
        "GOMODCACHE": str(tmp_path / "modules"),
    }
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(building, "_PAUSES_S", (0.0, 0.0))
    folder = tmp_path / "sources" / "hello"
    (folder / "go.mod").write_text("module hello\n\ngo 1.26\n\nrequire example.com/word v1.0.0\n")
    (folder / "go.sum").write_text(SUMS)
    source('package main\n\nimport "example.com/word"\n\nfunc main() { println(word.Word) }\n')
    try:
        hello = programs(HELLO) / "hello"
    finally:
        proxy.shutdown()
        proxy.server_close()
    assert proxy.lost == 0
    assert subprocess.run([hello], capture_output=True, text=True, check=True).stderr == "far\n"


@pytest.mark.slow
def test_a_build_that_is_killed_leaves_no_compiler_and_no_program(
    source: Write, tmp_path: Path
) -> None:
    # A program that imports much takes long enough to be killed at its first sign of life.
    source('package main\n\nimport _ "net/http"\n\nfunc main() {}\n')
    script = (
        # A shell without job control starts what is in its background with SIGINT ignored.
        "import signal\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from pathlib import Path\n"
        "from tierline_cluster import build, versions\n"
        f"versions.SOURCES = build.SOURCES = Path({str(tmp_path / 'sources')!r})\n"
        f"build.CACHE = Path({str(tmp_path / 'cache')!r})\n"
        f"build.programs(versions.{HELLO!r})\n"
    )
    environment = os.environ | {
        "PYTHONPATH": str(versions.REPOSITORY / "cluster"),
        "GOCACHE": str(tmp_path / "go"),
    }
    builder = subprocess.Popen(
        [sys.executable, "-c", script],
        env=environment,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    partial = tmp_path / "cache"
    while not list(partial.glob("making-*")):
        assert builder.poll() is None
    builder.send_signal(signal.SIGINT)
    assert builder.wait(300) != 0

    assert not [p for p in partial.glob("hello-*") if p.is_dir()]
    assert (programs(HELLO) / "hello").exists()
