"""Jobs that raise: the program catches, says what it saw, and goes on."""

from __future__ import annotations

from tests.programs.text import Piece, Text

_ERRORS = (
    *("ValueError('bad request')", "KeyError(7)", "StopIteration(3)", "KeyboardInterrupt()"),
    *("SystemExit(4)", "GeneratorExit()", "RuntimeError('stopped')", "Own(1, 2)"),
)


def _caught(text: Text, call: str) -> None:
    """Put the call into a function that says what it raised."""
    text.add("top", "class Own(Exception):\n    def __init__(self, a, b): super().__init__(a, b)")
    text.add(
        "top",
        """
        def caught(call):
            try:
                return call()
            except BaseException as error:
                say(type(error).__name__, str(error).split("\\n")[0][:80])
                say(type(error.__cause__).__name__, type(error.__context__).__name__)
        """,
    )
    text.call = f"caught(lambda: {call})"


def _when(text: Text) -> str:
    return text.random.choice(["self.job % 3 == 1", f"self.job == {text.some_job()}", "True"])


def forward_raises(text: Text) -> None:
    place, error = text.random.choice(["before", "after"]), text.random.choice(_ERRORS)
    text.add("ready", "model.job = 0")
    text.add("asked", "model.job = i")
    text.add(place, f"if {_when(text)}: raise {error}")
    _caught(text, text.call)


def hook_stops(text: Text) -> None:
    """A hook keeps what it wanted and raises, so that the rest is not computed."""
    text.add("ready", "model.job, wanted = 0, []")
    text.add("asked", "model.job = i")
    text.add(
        "ready",
        f"""
        def stop(module, args, output, self=model):
            wanted.append(output)
            if {_when(text)}: raise Own(1, 2)
        list(model.modules())[-1].register_forward_hook(stop)
        """,
    )
    text.add("told", "say(wanted)\nwanted.clear()")
    _caught(text, text.call)


def wrong_shape(text: Text) -> None:
    text.add("asked", "if i % 3 == 1: x = x[:, :-1]")
    _caught(text, text.call)


def wrong_type(text: Text) -> None:
    text.add("asked", "if i % 3 == 1: x = x.to(torch.complex64)")
    _caught(text, text.call)


def missing_argument(text: Text) -> None:
    _caught(text, f"({text.call} if i % 3 else model())")


def surplus_argument(text: Text) -> None:
    _caught(text, f"({text.call} if i % 3 else model(x, 1, 2, 3, 4, none=5))")


def error_is_kept(text: Text) -> None:
    """The error, and so the frames of forward, live on."""
    text.add("top", "KEPT = []")
    text.add("ready", "model.job = 0")
    text.add("asked", "model.job = i")
    text.add("after", "if self.job % 3 == 1:\n    KEPT.append(ValueError(3))\n    raise KEPT[-1]")
    text.add("told", "say(len(KEPT), [type(k.__traceback__).__name__ for k in KEPT])")
    _caught(text, text.call)


def part_is_missing(text: Text) -> None:
    """An attribute is gone for one job."""
    text.add("asked", "body = model.body\nif i % 3 == 1: del model.body")
    text.add("told", "if i % 3 == 1: model.body = body")
    _caught(text, text.call)


def own_recovery(text: Text) -> None:
    """Forward itself catches what its part raised, and answers otherwise."""
    text.add("init", "self.spare = nn.Linear(WIDTH, WIDTH)")
    text.add(
        "after",
        """
        try:
            self.spare(y[:, :-1])
        except RuntimeError:
            y = self.spare(y.float())
        """,
    )


FAILURES: tuple[Piece, ...] = (
    *(forward_raises, forward_raises, hook_stops, wrong_shape, wrong_type, missing_argument),
    *(surplus_argument, error_is_kept, part_is_missing, own_recovery),
)
