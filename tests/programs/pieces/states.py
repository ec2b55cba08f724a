"""State that a forward changes: a forward that ran twice for one call would show in each."""

from __future__ import annotations

from tests.programs.text import Piece, Text


def global_counter(text: Text) -> None:
    text.add("top", "COUNT = 0")
    text.add("before", "global COUNT\nCOUNT += 1\nx = x * (1 + COUNT % 7)")


def global_list(text: Text) -> None:
    text.add("top", "SEEN = []")
    text.add("after", "SEEN.append(float(y.float().mean()))")
    text.add("told", "say(len(SEEN), SEEN[-1:])")


def class_attribute(text: Text) -> None:
    text.add("before", "type(self).calls = getattr(type(self), 'calls', 0) + 1")
    text.add("told", "say(Net.calls)")


def iterator(text: Text) -> None:
    text.add("top", "FRAMES = (given(k, WIDTH) * (1 + k % 5) for k in itertools.count())")
    text.add("before", "x = x + next(FRAMES)")


def sent_generator(text: Text) -> None:
    text.add(
        "top",
        """
        def running_mean():
            total, mean = 0.0, 0.0
            for n in itertools.count(1):
                total += yield mean
                mean = total / n
        MEAN = running_mean()
        next(MEAN)
        """,
    )
    text.add("after", "y = y + MEAN.send(float(y.float().mean()))")


def audit_file(text: Text) -> None:
    text.add(
        "before", "with open(folder / 'audit', 'a') as file:\n    file.write(f'{x.shape[0]}\\n')"
    )
    text.add("told", "say((folder / 'audit').read_text().count('\\n'))")


def read_position(text: Text) -> None:
    text.add(
        "top",
        "(folder / 'frames').write_bytes(bytes(range(250)) * 40)\n"
        "FILE = open(folder / 'frames', 'rb')",
    )
    text.add("before", "x = x + FILE.read(1)[0]")
    text.add("told", "say(FILE.tell())")
    text.add("always", "FILE.close()")


def own_queue(text: Text) -> None:
    text.add("top", "FRAMES = queue.Queue()")
    text.add("before", "x = x * FRAMES.get(timeout=5)")
    text.add("asked", "FRAMES.put(1 + i % 3)")
    text.add("end", "say(FRAMES.qsize())")


def deque(text: Text) -> None:
    text.add("top", "from collections import deque\nLAST = deque(maxlen=3)")
    text.add("after", "LAST.append(y.clone())\ny = torch.stack(tuple(LAST)).mean(0)")


def cached_function(text: Text) -> None:
    text.add(
        "top",
        """
        import functools
        @functools.lru_cache(maxsize=2)
        def scale(k):
            return 1.0 + k
        """,
    )
    text.add("before", "x = x * scale(round(float(x.float().abs().sum())) % 3)")
    text.add("told", "say(scale.cache_info())")


def closure(text: Text) -> None:
    text.add(
        "ready",
        """
        def counter():
            n = 0
            def count():
                nonlocal n
                n += 1
                return n
            return count
        model.count = counter()
        """,
    )
    text.add("before", "x = x + self.count() * 0.1")


def slotted_cache(text: Text) -> None:
    text.add(
        "top",
        """
        class Cache:
            __slots__ = ("k", "n")
            def __init__(self):
                self.k, self.n = torch.zeros(12, WIDTH), 0
        """,
    )
    text.parameters.append("cache=None")
    text.add("ready", "cache = Cache()")
    text.arguments.append("cache=cache")
    text.add(
        "after",
        """
        cache.k[cache.n : cache.n + 4] = y
        cache.n = (cache.n + 4) % 12
        y = torch.softmax(y.float() @ cache.k.T, -1) @ cache.k
        """,
    )


def memory_through_data(text: Text) -> None:
    text.add("init", "self.memory = nn.Parameter(torch.zeros(8, WIDTH), requires_grad=False)")
    text.add("after", "self.memory.data[1:5] += 0.1 * y\ny = y + self.memory[2]")


def memory_in_place(text: Text) -> None:
    text.add("init", "self.memory = nn.Parameter(torch.zeros(WIDTH), requires_grad=False)")
    text.add("after", "self.memory.mul_(0.9).add_(0.1 * y.mean(0))\ny = y - self.memory")


def weight_changes_itself(text: Text) -> None:
    """Every forward scales one of the weights that it has read."""
    text.add(
        "after",
        "for one in itertools.islice(self.parameters(), 1):\n"
        "    with torch.no_grad():\n        one.mul_(1.01)",
    )


def running_buffer(text: Text) -> None:
    text.add("init", "self.register_buffer('mean', torch.zeros(WIDTH))")
    form = text.random.choice(
        [
            "self.mean = self.mean * 0.9 + y.mean(0).detach() * 0.1",
            "self.mean.lerp_(y.mean(0), 0.1)",
        ]
    )
    text.add("after", f"{form}\ny = y - self.mean")


def lazy_buffer(text: Text) -> None:
    text.add(
        "before",
        "if 'table' not in dict(self.named_buffers()):\n"
        "    self.register_buffer('table', torch.arange(WIDTH) / WIDTH)\nx = x + self.table",
    )


def cache_by_shape(text: Text) -> None:
    text.add("init", "self.cache, self.made = {}, 0")
    text.add(
        "before",
        """
        if x.shape[0] not in self.cache:
            self.made += 1
            self.cache[x.shape[0]] = torch.linspace(0, 1, x.shape[0]).unsqueeze(1)
        x = x + self.cache[x.shape[0]]
        """,
    )
    text.add("end", "say(model.made)")


def hidden_state(text: Text) -> None:
    text.add("init", "self.cell, self.h = nn.GRUCell(WIDTH, WIDTH), None")
    text.add("after", "self.h = self.cell(y.float(), self.h)\ny = self.h")


def random_numbers(text: Text) -> None:
    draw = text.random.choice(
        [
            "torch.rand(())",
            "numpy.random.random()",
            "random.random()",
            "torch.rand((), generator=SOURCE)",
            "F.dropout(torch.ones(4), training=True).sum()",
        ]
    )
    text.add("top", "import random\nSOURCE = torch.Generator().manual_seed(3)")
    text.add("ready", "random.seed(3)\nnumpy.random.seed(3)\ntorch.manual_seed(3)")
    text.add("after", f"y = y + {draw}")
    text.add("told", "say(torch.rand(2), random.random(), numpy.random.random())")


def weak_keys(text: Text) -> None:
    text.add("top", "import weakref\nKNOWN = weakref.WeakKeyDictionary()")
    text.add("before", "KNOWN[self] = KNOWN.get(self, 0) + 1\nx = x + KNOWN[self]")


def context_variable(text: Text) -> None:
    text.add("top", "import contextvars\nDEPTH = contextvars.ContextVar('depth', default=0)")
    text.add("before", "DEPTH.set(DEPTH.get() + 1)\nx = x + DEPTH.get()")


def thread_local(text: Text) -> None:
    text.add("top", "LOCAL = threading.local()")
    text.add("before", "LOCAL.n = getattr(LOCAL, 'n', 0) + 1\nx = x + LOCAL.n")


def environment(text: Text) -> None:
    text.add("top", "os.environ['PROGRAM_CALLS'] = '0'")
    text.add("before", "os.environ['PROGRAM_CALLS'] = str(int(os.environ['PROGRAM_CALLS']) + 1)")
    text.add("told", "say(os.environ['PROGRAM_CALLS'])")


def printed(text: Text) -> None:
    text.add("before", "print('request', tuple(x.shape), flush=True)")


def logged(text: Text) -> None:
    text.add(
        "top",
        """
        import logging
        class Kept(logging.Handler):
            def emit(self, record):
                say(record.getMessage())
        LOG = logging.getLogger("program")
        LOG.handlers[:] = [Kept()]
        """,
    )
    text.add("before", "LOG.warning('request %d', x.shape[0])")


def warned(text: Text) -> None:
    text.add("top", "import warnings")
    text.add("asked", "warned = warnings.catch_warnings(record=True)\nheard = warned.__enter__()")
    text.add("asked", "warnings.simplefilter('always')")
    text.add("before", "warnings.warn('small batch')")
    text.add("told", "warned.__exit__(None, None, None)\nsay([str(w.message) for w in heard])")


def default_argument(text: Text) -> None:
    text.parameters.append("seen=[]")
    text.add("before", "seen.append(1)\nx = x + len(seen)")


def function_attribute(text: Text) -> None:
    text.add("top", "def normed(t):\n    normed.n += 1\n    return t + normed.n\nnormed.n = 0")
    text.add("before", "x = normed(x)")


def database(text: Text) -> None:
    text.add(
        "top",
        "import sqlite3\nDB = sqlite3.connect(':memory:', check_same_thread=False)\n"
        "DB.execute('create table seen (n real)')",
    )
    text.add("after", "DB.execute('insert into seen values (?)', (float(y.float().sum()),))")
    text.add("told", "say(DB.execute('select count(*) from seen').fetchone())")
    text.add("always", "DB.close()")


def own_socket(text: Text) -> None:
    text.add("top", "import socket\nLEFT, RIGHT = socket.socketpair()\nLEFT.settimeout(5)")
    text.add("asked", "RIGHT.sendall(bytes([1 + i]))")
    text.add("before", "x = x + LEFT.recv(1)[0]")
    text.add("always", "LEFT.close()\nRIGHT.close()")


def hooks_count(text: Text) -> None:
    """In the order of the calls; those of threads that run at the same time have none."""
    text.add("top", "HOOKED = []")
    text.add(
        "top",
        """
        def hooked(name):
            return lambda m, a, o: HOOKED.append((name, threading.get_ident()))
        """,
    )
    text.add(
        "ready",
        """
        for name, part in model.named_modules():
            if not isinstance(part, torch.jit.ScriptModule):
                part.register_forward_hook(hooked(name))
        """,
    )
    text.add(
        "told",
        """
        own = [name for name, thread in HOOKED if thread == HOOKED[-1][1]]
        say(own, sorted(name for name, thread in HOOKED if thread != HOOKED[-1][1]))
        HOOKED.clear()
        """,
    )


def hook_changes_output(text: Text) -> None:
    text.add("ready", "TIMES = itertools.count(1)")
    text.add(
        "ready",
        "model.register_forward_hook(lambda m, a, o: (o, next(TIMES)), "
        f"prepend={text.chance(0.5)})",
    )


def hook_changes_input(text: Text) -> None:
    text.add("ready", "TIMES = itertools.count(1)")
    text.add(
        "ready",
        "model.register_forward_pre_hook(\n"
        "    lambda m, a, k: ((a[0] * (next(TIMES) % 4), *a[1:]), k), with_kwargs=True)",
    )


def hook_once(text: Text) -> None:
    text.add(
        "ready",
        """
        def first_only(module, args, output):
            say("first", output)
            HANDLE.remove()
        HANDLE = model.body.register_forward_hook(first_only)
        """,
    )


def global_hook(text: Text) -> None:
    text.add(
        "ready",
        """
        HEARD = []
        EVERYWHERE = nn.modules.module.register_module_forward_hook(
            lambda m, a, o: HEARD.append(type(m).__name__))
        """,
    )
    text.add("told", "say(HEARD)\nHEARD.clear()")
    text.add("always", "EVERYWHERE.remove()")


def forward_replaced(text: Text) -> None:
    """As accelerate does: an instance's forward is wrapped."""
    text.add(
        "ready",
        """
        calls, old = itertools.count(1), model.forward
        def forward(*args, **kwargs):
            say("wrapped", next(calls))
            return old(*args, **kwargs)
        model.forward = forward
        """,
    )


def layers_wrapped(text: Text) -> None:
    """As an offloading library does: each layer's weights are put in place for its forward."""
    text.add(
        "ready",
        """
        def wrap(part):
            kept, old = part.weight.data, part.forward
            def forward(*args):
                part.weight.data = kept.clone()
                try:
                    return old(*args)
                finally:
                    part.weight.data = kept
            part.forward = forward
        for part in model.modules():
            if type(part) is nn.Linear and not isinstance(part, nn.LazyLinear):
                wrap(part)
        """,
    )


def mode_toggles(text: Text) -> None:
    text.add("before", "self.train(not self.training)\nx = x + self.training")


def objects_die(text: Text) -> None:
    """What a forward makes and drops is gone when it returns."""
    text.add(
        "top",
        """
        import weakref
        class Scratch:
            def __init__(self):
                self.t = torch.ones(9)
            def __del__(self):
                GONE.append(1)
        GONE = []
        """,
    )
    text.add("before", "scratch = Scratch()\nx = x + scratch.t.sum()")
    text.add("told", "say(len(GONE))")


def output_dies(text: Text) -> None:
    """Nobody keeps an answer that the program has dropped."""
    text.add("top", "import weakref")
    text.add("told", "kept = weakref.ref(y) if isinstance(y, torch.Tensor) else None\ny = None")
    text.add("told", "say(kept is None or kept() is None)")


def counted_operators(text: Text) -> None:
    text.add(
        "top",
        """
        from torch.utils._python_dispatch import TorchDispatchMode
        class Operators(TorchDispatchMode):
            def __init__(self):
                super().__init__()
                self.names = []
            def __torch_dispatch__(self, func, types, args=(), kwargs=None):
                self.names.append(str(func))
                return func(*args, **(kwargs or {}))
        """,
    )
    text.call = f"(lambda: [{text.call}, {text.call}][0])()" if text.chance(0.2) else text.call
    text.add("asked", "operators = Operators()")
    text.mode = f"{text.mode}, operators"
    text.add("told", "say(operators.names)")


def counted_functions(text: Text) -> None:
    text.add(
        "top",
        """
        from torch.overrides import TorchFunctionMode
        class Functions(TorchFunctionMode):
            def __init__(self):
                super().__init__()
                self.n = 0
            def __torch_function__(self, func, types, args=(), kwargs=None):
                self.n += 1
                return func(*args, **(kwargs or {}))
        """,
    )
    text.add("asked", "functions = Functions()")
    text.mode = f"{text.mode}, functions"
    text.add("told", "say(functions.n)")


def input_in_place(text: Text) -> None:
    """Forward changes its own input, and the caller sees it."""
    text.add("before", "x.add_(1)")
    text.add("told", "say(x)")


def input_is_kept(text: Text) -> None:
    text.add("init", "self.kept = []")
    text.add("before", "self.kept.append(x)\nx = x + len(self.kept)\ndel self.kept[:-3]")


def identity_of_things(text: Text) -> None:
    """Weights and outputs stay the same objects; an output is the object that forward made."""
    text.add("after", "self.last = y")
    text.add("ready", "known = [id(p) for p in model.parameters()]")
    text.add("told", "say(y is getattr(model, 'last', None))")
    if not text.chance(0.3):
        text.add("told", "say(i < 1 or [id(p) for p in model.parameters()][:2] == known[:2])")


def versions(text: Text) -> None:
    """Each write is counted once by PyTorch."""
    text.add(
        "told",
        "say([p._version for p in model.parameters()\n"
        "     if not p.is_inference() and type(p) is nn.Parameter])",
    )


def gradient_mode(text: Text) -> None:
    text.add("before", "say(torch.is_grad_enabled(), torch.is_inference_mode_enabled())")
    text.add("before", "say(torch.get_num_threads(), threading.active_count() < 40)")


STATES: tuple[Piece, ...] = (
    *(global_counter, global_list, class_attribute, iterator, sent_generator, audit_file),
    *(read_position, own_queue, deque, cached_function, closure, slotted_cache),
    *(memory_through_data, memory_in_place, weight_changes_itself, running_buffer, lazy_buffer),
    *(cache_by_shape, hidden_state, random_numbers, weak_keys, context_variable, thread_local),
    *(environment, printed, logged, warned, default_argument, function_attribute, database),
    *(own_socket, hooks_count, hook_changes_output, hook_changes_input, hook_once, global_hook),
    *(forward_replaced, layers_wrapped, mode_toggles, objects_die, output_dies),
    *(counted_operators, counted_functions, input_in_place, input_is_kept, identity_of_things),
    *(versions, gradient_mode),
)
