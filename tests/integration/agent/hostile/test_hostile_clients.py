"""What a client of one task does to those of others: nothing.

Each of these once stopped a device, a task or the agent. A client in a process of its own does the
worst of its kind; then a client of another task has jobs as before, and a new client of the hostile
one's task finds everything as if nothing had been.
"""

from __future__ import annotations

import fcntl
import itertools
import multiprocessing
import os
import signal
import socket
import time
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from multiprocessing.synchronize import Event
from pathlib import Path

import pytest
from tests.integration.agent.agent_process import (
    EXTENT_BYTES,
    TIMEOUT_S,
    AgentProcess,
    content,
    plan,
    wait_until,
)
from tests.integration.agent.behaviours.descriptors import lingering_socket
from tests.integration.agent.raw_client import RawClient, RefusedError
from tests.ways_to_write import WAYS_TO_WRITE

from tierline_agent.transport import protocol as p

pytestmark = pytest.mark.slow

FORKED = multiprocessing.get_context("fork")
EXTENTS = 5
NOBODY = 65534
STALLED_S = 5.0
"""An answer that takes so long was held up by the hostile client, however busy the machine is."""
Attack = Callable[[AgentProcess], None]


def tasks(agent: AgentProcess) -> None:
    agent.register("hostile", plan(EXTENTS, resident=(1,), ring=2, workspace=1), domain="alone")
    agent.register("other", plan(2))


def attack(agent: AgentProcess, attack: Attack) -> None:
    """Have it done in a process of its own, to its end."""
    hostile = FORKED.Process(target=attack, args=(agent,))
    hostile.start()
    hostile.join()
    assert hostile.exitcode in (0, -signal.SIGKILL)


def lead_a_group(agent: AgentProcess, attack: Attack, attacked: Event) -> None:
    """Attack with processes that can be ended together; returns when they are."""
    os.setpgid(0, 0)
    attack(agent)
    attacked.set()
    signal.pause()


def others_are_served(agent: AgentProcess) -> None:
    began_s = time.monotonic()
    other = agent.client("other")
    for _ in range(3):
        other.end(other.begin(p.NO_ARENA))
    other.close()
    assert time.monotonic() - began_s < STALLED_S


def nothing_is_left(agent: AgentProcess) -> None:
    wait_until(lambda: not agent.task("hostile")["clients"], "the agent lets go of it")
    wait_until(lambda: agent.lent() == 0, "it knows that it is dead, and its extents are free")
    assert "unexpectedly" not in agent.log.read_text()
    assert "had no job" not in agent.log.read_text()
    with ExitStack() as clients:
        again = agent.client("hostile")
        clients.callback(again.close)
        again.load(content(2, EXTENTS))
        again.ask(p.Free(0), p.Freed)


def test_an_agent_whose_log_nobody_reads_serves_all(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    with suppress(BlockingIOError):
        while True:
            os.write(writing, bytes(1 << 12))
    os.set_blocking(writing, True)
    agent = AgentProcess(tmp_path, errors=writing)
    agent.start()
    tasks(agent)
    others_are_served(agent)
    assert agent.stop() == 0
    os.close(reading)
    os.close(writing)


# -- what it says


def test_a_job_is_counted_as_long_as_it_had_the_device(agent: AgentProcess) -> None:
    tasks(agent)
    hostile, other = agent.client("hostile"), agent.client("other")
    job = hostile.begin(p.NO_ARENA)
    waiting = other.begin(p.NO_ARENA, wait=False)
    time.sleep(0.3)  # what is counted is time
    hostile.ask(p.JobEnd(job, 1, 1 << 63, 1 << 63, 1 << 63), p.Ended)
    assert other.expect(p.Grant).job == waiting
    hostile.ask(p.Stats(), p.Statistics)
    (record,) = agent.call("jobs", since=0)["jobs"]
    had_ns = record["end_ns"] - record["granted_ns"]
    assert had_ns > 0.19e9
    assert record["stall_ns"] <= had_ns
    assert record["workspace_bytes"] <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


# -- memory


def leave_and_live(agent: AgentProcess) -> None:
    """Ten processes borrow what one may, leave it mapped, and live on."""
    for _ in range(10):
        child = os.fork()
        if child == 0:
            with suppress(Exception):
                client = agent.client("hostile")
                with suppress(RefusedError):
                    client.reserve(EXTENTS * EXTENT_BYTES)
                    client.ask(p.Workspace(1, p.WorkspaceFlags(0)), p.WorkspaceLent)
                client.socket.shutdown(socket.SHUT_RDWR)
            os.kill(os.getpid(), signal.SIGSTOP)
        os.waitpid(child, os.WUNTRACED)


def test_memory_that_is_left_mapped_is_missed_by_its_own_task_alone(agent: AgentProcess) -> None:
    tasks(agent)
    attacked = FORKED.Event()
    hostile = FORKED.Process(target=lead_a_group, args=(agent, leave_and_live, attacked))
    hostile.start()
    assert hostile.pid is not None
    try:
        assert attacked.wait(TIMEOUT_S)
        wait_until(lambda: agent.extents()["draining"] == 1, "one has left its extent")
        wait_until(lambda: not agent.task("hostile")["clients"], "all have left")
        agent.client("other").load(content(3, 2))
        with (
            closing(agent.client("hostile")) as again,
            pytest.raises(RefusedError, match="still mapped by processes that gave them up"),
        ):
            again.reserve(EXTENTS * EXTENT_BYTES)
        (notice,) = agent.task("hostile")["notices"]
        assert "still mapped by processes that gave them up" in notice["text"]
    finally:
        os.killpg(hostile.pid, signal.SIGKILL)
        hostile.join()
    nothing_is_left(agent)


# -- descriptors


def send_lingering(client: RawClient, data: bytes) -> None:
    sockets = [lingering_socket() for _ in range(3)]
    socket.send_fds(client.socket, [data], sockets)
    for one in sockets:
        os.close(one)


def with_a_message(agent: AgentProcess) -> None:
    send_lingering(agent.client("hostile"), p.encode(p.Stats(), 9))


def with_a_part_of_a_message(agent: AgentProcess) -> None:
    send_lingering(agent.client("hostile"), p.encode(p.Stats(), 9)[:5])


def with_an_offer(agent: AgentProcess) -> None:
    client = agent.client("hostile")
    client.send(p.Digests(0, 0, (bytes(32),)))
    client.send(p.Attach(0, 0, 3, 3 * EXTENT_BYTES, 0, 0, 0, 0, (0, 1, 2)))
    send_lingering(client, p.encode(p.Fds(0, p.DescriptorKind.RING, 0, 3), 9))


def with_a_workspace(agent: AgentProcess) -> None:
    client = agent.client("hostile")
    client.send(p.WorkspaceReturn(3 * EXTENT_BYTES, 0, 3, p.WorkspaceFlags(0), 0, 0, 0))
    send_lingering(client, p.encode(p.Fds(0, p.DescriptorKind.WORKSPACE, 0, 3), 9))


def after_the_end(agent: AgentProcess) -> None:
    """They lie in a connection that is closed for what came before them."""
    client = agent.client("hostile")
    client.send_bytes(b"\xff" * 64)
    send_lingering(client, b"x")


def where_nobody_is_accepted(agent: AgentProcess) -> None:
    clients = [agent.connect("hostile") for _ in range(12)]
    for client in clients:
        with suppress(OSError):
            send_lingering(client, b"x")


@pytest.mark.parametrize(
    "send",
    [
        with_a_message,
        with_a_part_of_a_message,
        with_an_offer,
        with_a_workspace,
        after_the_end,
        where_nobody_is_accepted,
    ],
)
def test_descriptors_whose_closing_waits_hold_up_nobody(
    shared_agent: AgentProcess, send: Attack
) -> None:
    tasks(shared_agent)

    def leave(agent: AgentProcess) -> None:
        send(agent)
        time.sleep(STALLED_S)  # the peers of its sockets stay for so long
        os._exit(0)

    hostile = FORKED.Process(target=leave, args=(shared_agent,))
    hostile.start()
    while hostile.is_alive():
        others_are_served(shared_agent)
    hostile.join()
    nothing_is_left(shared_agent)


def test_nothing_that_is_lent_can_be_kept_from_the_agent_by_a_lease(
    shared_agent: AgentProcess,
) -> None:
    """The same user may have a lease on a file of its own, and a process that opens it waits."""
    tasks(shared_agent)
    signal.signal(signal.SIGIO, signal.SIG_IGN)
    client = shared_agent.client("hostile")
    lent = client.reserve(EXTENTS * EXTENT_BYTES)
    for descriptor in (*lent.residents, *lent.ring, lent.control):
        for kind in (fcntl.F_WRLCK, fcntl.F_RDLCK):
            with pytest.raises(OSError, match="temporarily unavailable"):
                fcntl.fcntl(descriptor, fcntl.F_SETLEASE, kind)
    client.ask(p.Free(0), p.Freed)
    others_are_served(shared_agent)


# -- messages in one write


def in_a_job(client: RawClient, *messages: p.Message) -> None:
    client.load(content(1, EXTENTS))
    client.begin(0)
    client.send_together(*messages)


@pytest.mark.parametrize(
    "messages",
    [
        (p.Rewind(1, 0, 0, 0), p.Rewind(1, 0, 0, 0)),
        (p.Rewind(1, 0, 0, 0), p.Rewind(1, 0, 0, 0), p.Rewind(1, 0, 0, 0)),
        (p.Rewind(1, 0, 0, 0), p.Yield(1, 0, 0, 0, 0, p.JobFlags(0))),
        (p.Rewind(1, 0, 0, 0), p.JobEnd(1, 0, 0, 0, 0)),
        (p.Rewind(1, 0, 0, 0), p.JobEnd(1, 0, 0, 0, 0), p.JobBegin(2, 0, p.JobFlags(0), 0, 1)),
        (p.Rewind(1, 0, 0, 0), p.Free(0)),
        (p.Rewind(1, 0, 0, 0), p.JobBegin(2, p.NO_ARENA, p.JobFlags(0), 0, 1)),
    ],
    ids=lambda messages: " ".join(type(one).__name__ for one in messages),
)
def test_what_arrives_at_once_is_done_in_turn(
    shared_agent: AgentProcess, messages: tuple[p.Message, ...]
) -> None:
    tasks(shared_agent)

    def send(agent: AgentProcess) -> None:
        client = agent.client("hostile")
        in_a_job(client, *messages)
        time.sleep(0.1)

    attack(shared_agent, send)
    others_are_served(shared_agent)
    nothing_is_left(shared_agent)


# -- ends


def test_a_death_right_after_any_message_leaves_nothing(shared_agent: AgentProcess) -> None:
    tasks(shared_agent)
    steps: list[p.Message] = [
        p.Reserve(0, 1, EXTENTS * EXTENT_BYTES, 0),
        p.Workspace(1, p.WorkspaceFlags.PRESERVE),
        p.Workspace(1, p.WorkspaceFlags(0)),
        p.JobBegin(1, p.NO_ARENA, p.JobFlags(0), 0, 1),
    ]
    for step in steps * 10:

        def die(agent: AgentProcess, step: p.Message = step) -> None:
            agent.client("hostile").send(step)
            os.kill(os.getpid(), signal.SIGKILL)

        attack(shared_agent, die)
    others_are_served(shared_agent)
    nothing_is_left(shared_agent)


@pytest.mark.parametrize("name", ["clients.json", "extents-cpu.json"])
def test_a_file_that_cannot_be_written_costs_nobody_his_work(
    agent: AgentProcess, name: str
) -> None:
    tasks(agent)
    obstacle = agent.run_dir / f"{name}.new"
    obstacle.unlink()
    obstacle.mkdir()
    for number in range(8):  # it cannot be put aside, either
        (agent.run_dir / f"{name}.new.odd{number or ''}" / "full").mkdir(parents=True)

    def come_and_go(agent: AgentProcess) -> None:
        client = agent.client("hostile")
        client.load(content(1, EXTENTS))
        client.ask(p.Free(0), p.Freed)

    for _ in range(12):
        attack(agent, come_and_go)
    others_are_served(agent)
    nothing_is_left(agent)
    wait_until(lambda: "cannot write" in agent.log.read_text(), "it is said")
    obstacle.rmdir()
    left = agent.client("other")
    wait_until(
        lambda: str(left.welcome and left.welcome.reattach_token) in clients(agent.run_dir),
        "it is written down again",
    )
    assert agent.stop() == 0
    assert agent.log.read_text().count("cannot write") == 1, "it is said once"


def clients(run_dir: Path) -> str:
    return (run_dir / "clients.json").read_text()


def test_a_client_that_is_away_is_known_to_each_agent_after_the_next(tmp_path: Path) -> None:
    """Others come and have memory in between."""
    agent = AgentProcess(tmp_path, fast_extents=24, recovery_s=0.1)
    agent.start()
    tasks(agent)
    agent.register("away", plan(EXTENTS, resident=(1,), ring=2), domain="away")
    away = agent.client("away")
    loaded = away.load(content(1, EXTENTS))
    assert away.welcome is not None
    for _ in range(2):
        agent.kill()
        agent.start()
        new = agent.client("hostile")
        new.load(content(2, EXTENTS))
        new.ask(p.Free(0), p.Freed)
        new.close()
    back = agent.client("away", away.welcome.reattach_token)
    back.attach(loaded)
    job = back.begin(0)
    assert loaded.read_in_job() == content(1, EXTENTS)
    back.end(job)
    assert agent.stop() == 0


def test_what_a_client_that_is_away_has_mapped_counts_in_its_plan(tmp_path: Path) -> None:
    """Its task goes without, and nobody else; until it is back."""
    agent = AgentProcess(tmp_path, fast_extents=24, recovery_s=0.1)
    agent.start()
    tasks(agent)
    agent.register("away", plan(EXTENTS, resident=(1,), ring=2), domain="away")
    away = agent.client("away")
    loaded = away.load(content(1, EXTENTS))
    assert away.welcome is not None
    agent.kill()
    agent.start()
    wait_until(lambda: agent.extents()["draining"] == 3, "what it has mapped counts")
    newcomer = agent.client("away")
    with pytest.raises(RefusedError, match="have not come back since the agent started again"):
        newcomer.load(content(2, EXTENTS))
    newcomer.close()
    wait_until(lambda: not agent.task("away")["clients"], "it has left")
    agent.client("hostile").load(content(3, EXTENTS))
    back = agent.client("away", away.welcome.reattach_token)
    back.attach(loaded)
    assert agent.extents()["draining"] == 0
    job = back.begin(0)
    assert loaded.read_in_job() == content(1, EXTENTS)
    back.end(job)
    assert agent.stop() == 0


# -- words


def test_what_a_client_says_forges_no_line_of_the_log(shared_agent: AgentProcess) -> None:
    tasks(shared_agent)
    client = shared_agent.client("hostile")
    forged = "x\n2026-01-01 00:00:00 ERROR tierline_agent: forged\x1b[2J"
    client.send(p.Notice(p.NoticeKind.ORDER_CHANGED, 0, forged))
    client.send(p.Error(p.ErrorCode.IO, forged))
    client.counted()

    def lines() -> list[str]:
        return shared_agent.log.read_text().splitlines()

    wait_until(lambda: sum("forged" in line for line in lines()) == 2, "both are logged")
    assert not any(line.startswith("2026-01-01") or "\x1b" in line for line in lines())


def test_what_a_client_says_is_no_order_to_the_terminal_of_who_looks(
    shared_agent: AgentProcess,
) -> None:
    tasks(shared_agent)
    orders = "\x1b[2J\x9b1A\r\n\u202e[red]"
    client = shared_agent.connect("hostile")
    client.hello(name=orders)
    client.send(p.Notice(p.NoticeKind.ORDER_CHANGED, 0, orders))
    client.counted()
    seen = shared_agent.task("hostile")
    shown = [seen["clients"][0]["name"], seen["notices"][0]["text"]]
    assert shown == [r"\x1b[2J\x9b1A\r\n\u202e[red]"] * 2


# -- jobs that never end


def begins_and_stays(agent: AgentProcess) -> None:
    agent.client("hostile").begin(p.NO_ARENA)
    signal.pause()


def begins_and_stops(agent: AgentProcess) -> None:
    agent.client("hostile").begin(p.NO_ARENA)
    os.kill(os.getpid(), signal.SIGSTOP)


def streams_and_stops(agent: AgentProcess) -> None:
    client = agent.client("hostile")
    client.load(content(1, EXTENTS))
    client.begin(0)
    os.kill(os.getpid(), signal.SIGSTOP)


def acknowledges(agent: AgentProcess) -> None:
    """One that heeds its revocation lives on."""
    client = agent.client("hostile")
    job = client.begin(p.NO_ARENA)
    assert client.expect(p.Revoke).job == job
    client.send(p.Ack(job))
    assert client.ask(p.Stats(), p.Statistics).jobs == 1


@pytest.mark.parametrize(
    ("run", "is_killed"),
    [
        (begins_and_stays, True),
        (begins_and_stops, True),
        (streams_and_stops, True),
        (acknowledges, False),
    ],
)
def test_a_job_that_never_ends_is_ended_when_others_wait(
    tmp_path: Path, run: Attack, is_killed: bool
) -> None:
    grace_s = 0.5 if is_killed else TIMEOUT_S  # one that heeds it may stand still before it does
    agent = AgentProcess(tmp_path, job_limit_s=0.5, revoke_grace_s=grace_s)
    agent.start()
    tasks(agent)
    hostile = FORKED.Process(target=run, args=(agent,))
    hostile.start()
    wait_until(lambda: agent.task("hostile")["notices"], "it is said to be stuck")
    assert hostile.is_alive(), "nobody waits"
    other = agent.client("other")
    other.end(other.begin(p.NO_ARENA))
    hostile.join()
    assert hostile.exitcode == (-signal.SIGKILL if is_killed else 0)
    done = agent.call("interventions")["interventions"]
    assert [one["reason"] for one in done] == ["JobRevoked", *["JobTooLong"] * is_killed]
    assert agent.task("hostile")["notices"][0]["kind"] == "stuck"
    assert agent.stop() == 0


# -- what is lent for reading


def can_write(descriptor: int) -> bool:
    """Whether this process can change what it was lent for reading, in any way that we know."""
    opened = [descriptor]
    for mode in (os.O_RDWR, os.O_WRONLY | os.O_APPEND):
        with suppress(OSError):
            opened.append(os.open(f"/proc/self/fd/{descriptor}", mode))
    for one, way in itertools.product(opened, WAYS_TO_WRITE):
        with suppress(OSError):
            way(one)
            return True
    return False


@pytest.mark.parametrize("user", [os.geteuid(), NOBODY])
def test_nobody_can_write_to_what_stays_in_fast_memory(
    shared_agent: AgentProcess, user: int
) -> None:
    """Also one that is the agent's own user, as root of a pod is; another one to no ring slot."""
    tasks(shared_agent)
    client = shared_agent.client("hostile")
    lent = client.load(content(1, EXTENTS))
    assert lent.residents
    assert lent.ring
    tried = lent.residents + (lent.ring if user != os.geteuid() else [])

    def tries(_agent: AgentProcess) -> None:
        if os.geteuid() == 0 and user != 0:  # without root there is no other user here
            os.setgroups([])
            os.setgid(user)
            os.setuid(user)
        os._exit(any(map(can_write, tried)))

    attack(shared_agent, tries)
    job = client.begin(0)
    assert lent.read_in_job() == content(1, EXTENTS)
    client.end(job)
    client.ask(p.Free(0), p.Freed)
