"""How a program comes to its requests."""

from __future__ import annotations

from tests.programs.text import Text

IN_ORDER = {
    "counted": "for i in range(JOBS): request(i)",
    "one_job": "request(0)",
    "endless": """
        class Enough(Exception): pass
        def frames():
            yield from range(JOBS)
            raise Enough
        source = frames()
        try:
            while True: request(next(source))
        except Enough:
            pass
        """,
    "mapped": "list(map(request, range(JOBS)))",
    "by_generator": """
        def answers():
            for i in range(JOBS): yield request(i)
        for answer in answers(): del answer
        """,
    "served_by_a_thread": """
        inbox, outbox = queue.Queue(), queue.Queue()
        def serve():
            while (i := inbox.get()) is not None:
                try:
                    outbox.put(request(i))
                except BaseException as error:
                    outbox.put(error)
        server = threading.Thread(target=serve)
        server.start()
        try:
            for i in range(JOBS):
                inbox.put(i)
                answer = outbox.get(timeout=100)
                if isinstance(answer, BaseException): raise answer
        finally:
            inbox.put(None)
            server.join(100)
        """,
    "served_by_http": """
        from http.server import BaseHTTPRequestHandler, HTTPServer
        from urllib.request import build_opener, ProxyHandler
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                try:
                    request(int(self.path[1:]))
                except BaseException as error:
                    say(type(error).__name__, str(error)[:80])
                self.send_response(204)
                self.end_headers()
            def log_message(self, *args): pass
        server = HTTPServer(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        ask = build_opener(ProxyHandler({}))
        for i in range(JOBS):
            ask.open(f"http://127.0.0.1:{server.server_port}/{i}", timeout=100).close()
        server.shutdown()
        thread.join()
        server.server_close()
        """,
    "asynchronous": """
        import asyncio
        async def serve():
            loop = asyncio.get_running_loop()
            for i in range(JOBS): await loop.run_in_executor(None, request, i)
        asyncio.run(serve())
        """,
    "in_coroutines": """
        import asyncio
        async def serve(i): return request(i)
        async def all_of_them():
            for i in range(JOBS): await serve(i)
        asyncio.run(all_of_them())
        """,
    "new_model_now_and_then": """
        for i in range(JOBS):
            if i == JOBS // 2:
                model = Net().eval()
                gc.collect()
            request(i)
        """,
    "two_models": """
        first, second = model, Net().eval()
        for i in range(JOBS):
            for model in (first, second): request(i)
        """,
    "models_come_and_go": """
        for i in range(JOBS):
            request(i)
            if i % 3 == 2: model = copy.deepcopy(model)
        """,
    "part_alone_first": """
        with torch.inference_mode():
            for i in range(4): say(model.body(given(i, 4, WIDTH)))
        for i in range(JOBS): request(i)
        with torch.inference_mode(): say(model.body(given(1, 4, WIDTH)))
        """,
    "part_and_whole": """
        for i in range(JOBS):
            with torch.inference_mode(): say(model.body(given(i, 4, WIDTH)))
            request(i)
        """,
    "two_readers_of_one_body": """
        class Reader(nn.Module):
            def __init__(self, body):
                super().__init__()
                self.mine, self.body = nn.Linear(WIDTH, WIDTH), body
            def forward(self, x): return self.body(torch.tanh(self.mine(x)))
        reader = Reader(model.body).eval()
        for i in range(JOBS):
            request(i)
            with torch.inference_mode(): say(reader(given(i, 4, WIDTH)))
        """,
    "as_a_part_of_a_later_model": """
        for i in range(JOBS): request(i)
        class Whole(nn.Module):
            def __init__(self):
                super().__init__()
                self.inner, self.out = model, nn.Linear(WIDTH, WIDTH)
            def forward(self, x): return self.out(self.inner.body(x))
        whole = Whole().eval()
        with torch.inference_mode():
            for i in range(JOBS): say(whole(given(i, 4, WIDTH)))
        request(0)
        """,
}
AT_ONCE = {
    "pool_of_requests": """
        from concurrent.futures import ThreadPoolExecutor
        with ThreadPoolExecutor(4) as pool: list(pool.map(request, range(2 * JOBS)))
        """,
    "threads_of_requests": """
        def serve(k):
            for i in range(JOBS): request(k * JOBS + i)
        threads = [threading.Thread(target=serve, args=(k,)) for k in range(3)]
        for t in threads: t.start()
        for t in threads: t.join(200)
        """,
    "asynchronous_requests": """
        import asyncio
        async def serve():
            await asyncio.gather(*[asyncio.to_thread(request, i) for i in range(2 * JOBS)])
        asyncio.run(serve())
        """,
}
"""Requests at the same time: what was said is compared without its order."""


def choose(text: Text) -> str:
    """Return the loop."""
    loops = AT_ONCE if text.unordered else IN_ORDER
    weights = [4 if name == "counted" else 1 for name in sorted(loops)]
    (name,) = text.random.choices(sorted(loops), weights)
    text.tags.append(name)
    return loops[name]
