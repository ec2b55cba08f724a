"""A call that the job in progress waits for joins it; others wait for the lock."""

from __future__ import annotations

import _thread
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from tierline_torch.belonging import JobLock

_LONG_S = 20.0


def never() -> bool:
    return False


def within(lock: JobLock, patient: bool, waits: Callable[[], bool] = never) -> tuple[bool, float]:
    """What another thread is told, and after how long."""
    begin_s = time.monotonic()
    taken = lock.take(waits, patient=patient)
    if taken:
        lock.give_back()
    return taken, time.monotonic() - begin_s


def _in_a_pool(call: Callable[[], object]) -> object:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call).result()


def _in_a_raw_thread(call: Callable[[], object]) -> object:
    answers: queue.Queue[object] = queue.Queue()
    _thread.start_new_thread(lambda: answers.put(call()), ())
    return answers.get(timeout=_LONG_S)


def _in_nested_pools(call: Callable[[], object]) -> object:
    return _in_a_pool(lambda: _in_a_raw_thread(call))


def _polling(call: Callable[[], object]) -> object:
    answers: list[object] = []
    thread = threading.Thread(target=lambda: answers.append(call()))
    thread.start()
    while not answers:
        thread.join(timeout=0.005)
    return answers[0]


@pytest.mark.parametrize("run", [_in_a_pool, _in_a_raw_thread, _in_nested_pools, _polling])
@pytest.mark.parametrize("patient", [False, True])
def test_a_job_does_not_wait_for_itself(
    run: Callable[[Callable[[], object]], object], patient: bool
) -> None:
    lock = JobLock()
    assert lock.take(never, patient=False)
    answer = run(lambda: within(lock, patient))
    lock.give_back()
    assert isinstance(answer, tuple)
    taken, waited_s = answer
    assert not taken
    assert waited_s >= (1.0 if patient else 0.15)


def _computes(until: threading.Event) -> None:
    while not until.is_set():
        sum(range(1000))


def _waits_for_the_agent(until: threading.Event) -> None:
    until.wait(0.5)


@pytest.mark.parametrize(
    ("work", "waits"),
    [(_computes, False), (_waits_for_the_agent, True)],
    ids=["computes", "waits_for_the_agent"],
)
def test_another_job_waits_for_its_turn(
    work: Callable[[threading.Event], None], waits: bool
) -> None:
    lock, over = JobLock(), threading.Event()
    assert lock.take(never, patient=False)
    answers: list[tuple[bool, float]] = []
    other = threading.Thread(
        target=lambda: answers.append(within(lock, patient=False, waits=lambda: waits))
    )
    other.start()
    threading.Timer(0.5, over.set).start()
    work(over)
    lock.give_back()
    other.join(_LONG_S)
    assert [taken for taken, _ in answers] == [True]


def test_a_thread_that_ended_within_its_job_holds_nobody_up() -> None:
    lock = JobLock()
    holder = threading.Thread(target=lambda: lock.take(never, patient=False))
    holder.start()
    holder.join()
    assert within(lock, patient=True)[0] is False
