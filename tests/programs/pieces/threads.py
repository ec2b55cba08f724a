"""Threads: a job's own, those that were there before it, and requests at the same time."""

from __future__ import annotations

from tests.programs.text import Piece, Text

_MEMBERS = """
self.members = {}(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()).eval() for _ in range(3))
"""
_ONE = """
def one(member, h):
    with torch.inference_mode():
        return member(h)
"""
_JOINED = "y = y + torch.stack(list(parts)).mean(0)"


def _members(text: Text) -> None:
    """Parts that a thread runs: submodules, or in a plain list, so that each looks like a root."""
    text.add("init", _MEMBERS.format(text.random.choice(["list", "nn.ModuleList"])))
    text.add("top", _ONE)
    text.add("after", "h = y.detach().float()")


def pool_of_the_model(text: Text) -> None:
    _members(text)
    text.add("top", "from concurrent.futures import ThreadPoolExecutor")
    text.add("init", "self.pool = ThreadPoolExecutor(3)")
    text.add("after", f"parts = self.pool.map(lambda m: one(m, h), self.members)\n{_JOINED}")
    text.add("always", "model.pool.shutdown()")


def pool_of_the_job(text: Text) -> None:
    _members(text)
    text.add("top", "from concurrent.futures import ThreadPoolExecutor")
    text.add(
        "after",
        f"""
        with ThreadPoolExecutor(2) as pool:
            parts = pool.map(lambda m: one(m, h), self.members)
        {_JOINED}
        """,
    )


def pools_in_pools(text: Text) -> None:
    _members(text)
    text.add("top", "from concurrent.futures import ThreadPoolExecutor")
    text.add("top", "OUTER, INNER = ThreadPoolExecutor(2), ThreadPoolExecutor(2)")
    text.add(
        "after",
        f"""
        def outer(m):
            return INNER.submit(one, m, h).result(60)
        parts = [f.result(60) for f in [OUTER.submit(outer, m) for m in self.members]]
        {_JOINED}
        """,
    )
    text.add("always", "OUTER.shutdown()\nINNER.shutdown()")


def pool_of_multiprocessing(text: Text) -> None:
    _members(text)
    text.add("top", "from multiprocessing.pool import ThreadPool\nPOOL = ThreadPool(2)")
    text.add("after", f"parts = POOL.map(lambda m: one(m, h), self.members)\n{_JOINED}")
    text.add("always", "POOL.terminate()\nPOOL.join()")


def raw_threads(text: Text) -> None:
    _members(text)
    start = text.random.choice(
        [
            "threads = [threading.Thread(target=work, args=(k,)) for k in range(3)]\n"
            "for t in threads: t.start()\nfor t in threads: t.join(60)",
            "threads = [threading.Timer(0, work, (k,)) for k in range(3)]\n"
            "for t in threads: t.start()\nfor t in threads: t.join(60)",
            "import _thread\nfor k in range(3): _thread.start_new_thread(work, (k,))",
        ]
    )
    text.add(
        "after",
        """
        found, done = {}, threading.Semaphore(0)
        def work(k):
            try:
                found[k] = one(self.members[k], h)
            finally:
                done.release()
        """,
    )
    text.add("after", start)
    text.add(
        "after",
        f"""
        got = [done.acquire(timeout=60) for k in range(3)]
        parts = [found[k] for k in range(3)]
        {_JOINED}
        """,
    )


def worker_with_queue(text: Text) -> None:
    """A thread that was there before the job, told by a queue."""
    _members(text)
    text.add("top", "TODO, DONE = queue.Queue(), queue.Queue()")
    text.add(
        "ready",
        """
        def work():
            while (task := TODO.get()) is not None:
                try:
                    DONE.put(one(*task))
                except Exception as error:
                    DONE.put(error)
        WORKER = threading.Thread(target=work)
        WORKER.start()
        """,
    )
    text.add(
        "after",
        f"""
        for member in self.members: TODO.put((member, h))
        parts = [DONE.get(timeout=60) for _ in self.members]
        {_JOINED}
        """,
    )
    text.add("always", "TODO.put(None)\nWORKER.join()")


def asynchronous(text: Text) -> None:
    _members(text)
    text.add("top", "import asyncio")
    text.add(
        "after",
        f"""
        async def all_of_them():
            return await asyncio.gather(*[asyncio.to_thread(one, m, h) for m in self.members])
        parts = asyncio.run(all_of_them())
        {_JOINED}
        """,
    )


def forked_in_torch(text: Text) -> None:
    _members(text)
    text.add("after", "waits = [torch.jit.fork(one, m, h) for m in self.members]")
    text.add("after", f"parts = [torch.jit.wait(w) for w in waits]\n{_JOINED}")


def whole_job_in_a_thread(text: Text) -> None:
    """Each request is served by a new thread, which the program waits for."""
    text.add("top", "from concurrent.futures import ThreadPoolExecutor")
    text.add(
        "top",
        """
        def in_thread(call):
            with ThreadPoolExecutor(1) as pool:
                return pool.submit(call).result(60)
        """,
    )
    mode = text.mode.split(",")[0]
    text.add("top", f"def in_mode(call):\n    with {mode}:\n        return call()")
    text.call = f"in_thread(lambda: in_mode(lambda: {text.call}))"


def thread_outlives_its_job(text: Text) -> None:
    """A job starts a thread that runs a model when the job has ended."""
    _members(text)
    text.add("init", "self.late = []")
    text.add(
        "after",
        """
        go, found = threading.Event(), []
        def work():
            go.wait(10)
            found.append(one(self.members[0], h))
        self.late.append((threading.Thread(target=work), go, found))
        self.late[-1][0].start()
        """,
    )
    text.add(
        "told",
        """
        for thread, go, found in model.late:
            go.set()
            thread.join(60)
            say(found)
        model.late.clear()
        """,
    )


def another_model_meanwhile(text: Text) -> None:
    """A thread runs another model again and again while jobs run."""
    text.add(
        "ready",
        """
        other, stop, seen = nn.Linear(WIDTH, WIDTH).eval(), threading.Event(), set()
        from hashlib import sha1
        def meanwhile():
            with torch.inference_mode():
                while not stop.wait(0.002):
                    seen.add(sha1(other(given(0, 4, WIDTH)).numpy().tobytes()).hexdigest())
        background = threading.Thread(target=meanwhile)
        background.start()
        """,
    )
    text.add("end", "say(len(seen) < 2)")
    text.add("always", "stop.set()\nbackground.join()")


def replicas(text: Text) -> None:
    """Copies of a part run in threads, as data-parallel programs do."""
    text.add("init", "self.head = nn.Linear(WIDTH, WIDTH)")
    text.add("top", "from torch.nn.parallel.parallel_apply import parallel_apply")
    text.add(
        "after",
        """
        copies = [self.head, copy.deepcopy(self.head)]
        found = [None, None]
        def work(k):
            with torch.inference_mode(): found[k] = copies[k](y.detach().float()[k::2])
        threads = [threading.Thread(target=work, args=(k,)) for k in range(2)]
        for t in threads: t.start()
        for t in threads: t.join(60)
        y = torch.cat(found)
        """,
    )


THREADS: tuple[Piece, ...] = (
    *(pool_of_the_model, pool_of_the_job, pools_in_pools, pool_of_multiprocessing, raw_threads),
    *(worker_with_queue, asynchronous, forked_in_torch, whole_job_in_a_thread),
    *(thread_outlives_its_job, another_model_meanwhile, replicas),
)
