"""Whatever lies where the agent left its state: it starts, says what it found, and serves.

Also without a free inode or block, which is what a full disk is.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.integration.agent.agent_process import AgentProcess, plan

pytestmark = pytest.mark.slow


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[AgentProcess]:
    """An agent that waits for those from before for a short time."""
    process = AgentProcess(tmp_path, recovery_s=1)
    process.start()
    yield process
    process.stop()


def sparse(path: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 40)


def folder(path: Path) -> None:
    path.mkdir()
    (path / "inside").touch()


def to_a_folder(path: Path) -> None:
    """Somebody else's, in which nothing is the agent's to move."""
    theirs = path.with_name(f"{path.name}.theirs")
    theirs.mkdir(exist_ok=True)
    (theirs / "1.1.1.1").touch()
    path.symlink_to(theirs)


def deep(path: Path) -> None:
    path.write_text("[" * 100_000)


KINDS: dict[str, Callable[[Path], None]] = {
    "a pipe": os.mkfifo,
    "a folder": folder,
    "a link": lambda path: path.symlink_to("/dev/zero"),
    "a file of 1099511627776 bytes": sparse,
    "holds no JSON": deep,
}
IN_RUN_DIR = ("agent.lock", "clients.json", "extents-cpu.json", "lives.json", "lease-cpu")
IN_STATE_DIR = ("tasks.json", "links.json")


@pytest.mark.parametrize("kind", KINDS)
def test_it_starts_whatever_its_state_files_are(agent: AgentProcess, kind: str) -> None:
    agent.register("vision", plan(4))
    agent.kill()
    state = agent.folder / "state"
    paths = [agent.run_dir / name for name in IN_RUN_DIR] + [state / name for name in IN_STATE_DIR]
    for path in paths:
        path.unlink(missing_ok=True)
        KINDS[kind](path)
    agent.start()
    log = agent.log.read_text()
    is_json = kind == "holds no JSON"
    for path in paths:
        if not is_json or path.suffix == ".json":
            assert kind in next(line for line in log.splitlines() if f" {path} is " in line)
            assert os.path.lexists(f"{path}.odd")
    assert agent.register("vision", plan(4))["ok"]
    program = agent.program("vision", 1, 4)
    agent.kill()
    agent.start()
    assert program.do("job") == program.expected


@pytest.mark.parametrize("kind", ["a pipe", "a folder", "a link", "a link to a folder"])
def test_it_starts_whatever_its_folders_and_sockets_are(agent: AgentProcess, kind: str) -> None:
    make = KINDS.get(kind, KINDS["a link"])
    agent.register("vision", plan(4))
    agent.kill()
    leases, tasks = agent.run_dir / "leases-cpu", agent.run_dir / "tasks"
    for name in ("x", "1.2", f"{1 << 64}.1.1.1", "1.1.1.1"):
        make(leases / name)
    socket = tasks / "vision" / "tierline.sock"
    for path in (agent.run_dir / "admin.sock", socket):
        path.unlink(missing_ok=True)
        make(path)
    agent.start()
    program = agent.program("vision", 1, 4)
    agent.kill()
    for path in (socket, *tasks.glob("vision/*.odd*")):
        path.rename(agent.folder / path.name)
    (tasks / "vision").rmdir()
    tasks.rmdir()
    leases.rename(agent.folder / "before")
    for path in (tasks, leases):
        if kind != "a folder":
            {**KINDS, "a link to a folder": to_a_folder}[kind](path)
    agent.start()
    assert program.do("job") == program.expected
    theirs = [*agent.run_dir.glob("*.theirs")]
    assert len(theirs) == (2 if kind == "a link to a folder" else 0)
    assert all([path.name for path in one.iterdir()] == ["1.1.1.1"] for one in theirs)


@pytest.mark.parametrize("content", [b"", b"\0" * 4000, None], ids=["empty", "zeroes", "a half"])
def test_a_book_of_clients_that_cannot_be_read_costs_nobody_its_work(
    agent: AgentProcess, content: bytes | None
) -> None:
    agent.register("vision", plan(6, resident=(0, 3)))
    program = agent.program("vision", 1, 6)
    agent.kill()
    book = agent.run_dir / "clients.json"
    held = book.read_bytes().rstrip()
    book.write_bytes(held[: len(held) // 2] if content is None else content)
    agent.start()
    assert program.do("job") == program.expected
    agent.kill()
    agent.start()
    assert program.do("job") == program.expected


FULL = """
import os, sys
from itertools import count
for number in count():
    try:
        os.close(os.open(f"{sys.argv[1]}/fills-{number}", os.O_CREAT | os.O_WRONLY))
    except OSError:
        break
"""


def alone(tmp_path: Path, program: str) -> None:
    """Run it in a mount namespace of its own, where nobody else sees the small file system."""
    begin = """
import subprocess, sys
from pathlib import Path
from tests.integration.agent.agent_process import AgentProcess, plan
folder = Path(sys.argv[1])
(folder / "run").mkdir()
small = ["-t", "tmpfs", "-o", "size=1m,nr_inodes=200"]
subprocess.run(["mount", *small, "run", folder / "run"], check=True)
agent = AgentProcess(folder, recovery_s=1)
agent.start()
agent.register("vision", plan(4))
"""
    command = ["unshare", "-m", "--propagation", "private", sys.executable, "-c", begin + program]
    subprocess.run([*command, str(tmp_path)], check=True, cwd=Path(__file__).parents[4])


def test_it_starts_without_a_free_inode(tmp_path: Path) -> None:
    program = f"""
task = agent.program("vision", 1, 4)
agent.kill()
subprocess.run([sys.executable, "-c", {FULL!r}, folder / "run"], check=True)
agent.start()
assert task.do("job") == task.expected
agent.stop()
"""
    alone(tmp_path, program)


def test_who_begins_on_a_full_disk_comes_back_all_the_same(tmp_path: Path) -> None:
    """Others fill it after the agent has started: what the next one must know has its place."""
    program = """
filling = subprocess.run(["dd", "if=/dev/zero", f"of={folder}/run/fills"], capture_output=True)
assert b"No space left" in filling.stderr
task = agent.program("vision", 1, 4)
for _ in range(3):
    assert task.do("job") == task.expected
    agent.kill()
    agent.start()
assert task.do("job") == task.expected
agent.stop()
"""
    alone(tmp_path, program)
