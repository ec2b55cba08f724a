"""`ours`: what runs there is apart from the program, which loses nothing and waits for nothing."""

from __future__ import annotations

import ctypes
import gc
import signal
import sys
import threading
from collections.abc import Iterator
from functools import partial

import pytest

from tierline_client.elsewhere import _function
from tierline_client.interpreter import interpreter
from tierline_torch.ours import ours

ROUNDS = 400
ENOUGH_S = 60.0
"""No claim: a thread that still runs then waits for ever."""


class LateError(Exception):
    """As a watchdog of the program's sends it to the thread that is too slow."""


class _Watchdog:
    """Sends one exception to a thread in each of its rounds, a little later each time.

    The two wait for each other in turns of the interpreter: Python's locks and threads are not made
    for exceptions between any two instructions.
    """

    def __init__(self) -> None:
        self.asked = self.sent = self.caught = 0
        self.values: set[int] = set()

    def watched(self) -> None:
        me = ctypes.c_ulong(threading.get_ident())
        threading.Thread(target=self._send, args=(me,), daemon=True).start()
        for number in range(ROUNDS):
            try:
                self.asked = number + 1
                self.values.add(ours(lambda: 42))
                self._until_sent(number)
                for _ in range(10):
                    pass
            except LateError:
                self.caught += 1
            self._until_sent(number)

    def _until_sent(self, number: int) -> None:
        while self.sent <= number:
            pass

    def _send(self, to: ctypes.c_ulong) -> None:
        for number in range(ROUNDS):
            while self.asked <= number:
                pass
            for _ in range(number % 97 * 100):
                pass
            ctypes.pythonapi.PyThreadState_SetAsyncExc(to, ctypes.py_object(LateError))
            self.sent = number + 1


@pytest.fixture
def turns() -> Iterator[None]:
    """Threads take turns as often as they can, so that an exception arrives at any place."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def test_each_exception_that_a_watchdog_sends_arrives_where_it_was_sent(turns: None) -> None:
    watchdog = _Watchdog()
    thread = threading.Thread(target=watchdog.watched, daemon=True)
    thread.start()
    thread.join(ENOUGH_S)
    assert not thread.is_alive(), f"round {watchdog.asked} waits for ever"
    assert (watchdog.caught, watchdog.values) == (ROUNDS, {42})


class _Pooled:
    """In a cycle, so that only the collector ends it; takes a lock of the program's then."""

    lock = threading.RLock()
    ended_by: set[int] = set()  # noqa: RUF012 - of all of them

    def __init__(self) -> None:
        self.itself = self

    def __del__(self) -> None:
        self.ended_by.add(threading.get_ident())
        with self.lock:
            pass


@pytest.fixture
def collector() -> Iterator[None]:
    yield
    gc.enable()


def _allocate() -> list[list[int]]:
    return [[number] for number in range(5_000)]  # some collections' worth


def _holding() -> None:
    for _ in range(50):
        with _Pooled.lock:
            for _ in range(300):
                _Pooled()
            ours(_allocate)
    gc.collect()


def test_finalizers_of_the_program_run_in_its_own_threads(collector: None) -> None:
    _Pooled.ended_by.clear()
    thread = threading.Thread(target=_holding, daemon=True)
    thread.start()
    thread.join(ENOUGH_S)
    assert not thread.is_alive(), "a finalizer waits for the lock that its own thread holds"
    assert _Pooled.ended_by <= {thread.ident, threading.get_ident()}


@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_is_afterwards_as_it_was(collector: None, *, enabled: bool) -> None:
    (gc.enable if enabled else gc.disable)()
    assert not ours(gc.isenabled)
    assert gc.isenabled() is enabled
    with pytest.raises(ZeroDivisionError):
        ours(lambda: 1 // 0)
    assert gc.isenabled() is enabled


def test_a_handler_that_raises_ends_the_wait_and_the_work_goes_on() -> None:
    begun, go_on, ended = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        go_on.wait()
        ended.set()

    def raises(*_: object) -> None:
        raise LateError

    def interrupt() -> None:
        begun.wait()
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR2)

    before = signal.signal(signal.SIGUSR2, raises)
    try:
        threading.Thread(target=interrupt).start()
        with pytest.raises(LateError):
            ours(work)
    finally:
        signal.signal(signal.SIGUSR2, before)
    go_on.set()
    ended.wait()
    assert ours(lambda: 1) == 1


def test_a_thread_needs_nothing_of_the_call_that_started_it() -> None:
    """Two threads whose first jobs begin together each make the table of Python's functions.

    One of the two tables is dropped as soon as its call has returned.
    """
    _, whole = interpreter()
    table = type(whole.contents).from_buffer_copy(whole.contents)
    function = _function().func
    over, done = threading.Lock(), threading.Lock()
    over.acquire()
    done.acquire()
    values: list[int] = []
    often = sys.getswitchinterval()
    sys.setswitchinterval(ENOUGH_S)  # the new thread begins when this one waits
    try:
        turn, work = threading.Lock().acquire, partial(values.append, 42)
        assert function(ctypes.pointer(table), turn, work, over.release, done.release) == 0
        ctypes.memset(ctypes.addressof(table), 1, ctypes.sizeof(table))
    finally:
        sys.setswitchinterval(often)
    assert done.acquire(timeout=ENOUGH_S)
    assert values == [42]
