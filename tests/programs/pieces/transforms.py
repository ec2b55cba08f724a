"""Tracing, function transforms, profilers, other modes: around a call or after the model served."""

from __future__ import annotations

from tests.programs.text import Piece, Text

_AFTER = {
    "grad": "say(torch.func.grad(lambda v: model.body(v).float().sum())(z))",
    "whole_grad": "say(torch.func.grad(lambda v: model(v).float().sum())(z))",
    "jvp": "say(torch.func.jvp(model.body, (z,), (torch.ones_like(z),)))",
    "vjp": "out, back = torch.func.vjp(model.body, z)\nsay(out, back(torch.ones_like(out)))",
    "jacrev": "say(torch.func.jacrev(model.body)(z[:1, :]).sum())",
    "vmap": "say(torch.func.vmap(lambda v: model.body(v[None])[0])(z))",
    "functional_call": "p = {k: v.detach() * 1.1 for k, v in model.named_parameters()}\n"
    "say(torch.func.functional_call(model, p, (z,)))",
    "functional_grad": "p = {k: v.detach() for k, v in model.body.named_parameters()}\n"
    "say(torch.func.grad(lambda p: torch.func.functional_call(model.body, p, (z,)).float().sum())"
    "(p))",
    "stacked": "p, b = torch.func.stack_module_state([model.body, copy.deepcopy(model.body)])\n"
    "run = lambda p, b: torch.func.functional_call(model.body, (p, b), (z,))\n"
    "say(torch.func.vmap(run)(p, b))",
    "trace": "t = torch.jit.trace(model.body, z)\nsay(t(z), sum(1 for _ in t.graph.nodes()))",
    "trace_saved": "t = torch.jit.trace(model, z, check_trace=False)\nfile = io.BytesIO()\n"
    "torch.jit.save(t, file)\nfile.seek(0)\nsay(torch.jit.load(file)(z))",
    "frozen": "t = torch.jit.freeze(torch.jit.trace(model.body, z))\nsay(t(z))",
    "script": "t = torch.jit.script(model.body)\nsay(t(z))",
    "fx": "t = torch.fx.symbolic_trace(model.body)\nsay(t(z), len(t.graph.nodes))",
    "make_fx": "from torch.fx.experimental.proxy_tensor import make_fx\n"
    "t = make_fx(model.body)(z)\nsay(t(z), len(t.graph.nodes))",
    "export": "t = torch.export.export(model.body, (z,))\nsay(t.module()(z), len(t.graph.nodes))",
    "compile": "t = torch.compile(model.body, backend='eager')\nsay(t(z), t(z))",
    "fake": "from torch._subclasses.fake_tensor import FakeTensorMode\n"
    "with FakeTensorMode(allow_non_fake_inputs=True) as m:\n"
    "    say(model.body(m.from_tensor(z)).shape)",
    "meta_copy": "say(copy.deepcopy(model.body).to('meta')(z.to('meta')).shape)",
    "checkpoint": "from torch.utils.checkpoint import checkpoint\n"
    "v = z.clone().requires_grad_()\ncheckpoint(model.body, v, use_reentrant=False).sum()"
    ".backward()\nsay(v.grad)",
    "saliency": "v = z.clone().requires_grad_()\nmodel.body(v).float().sum().backward()\n"
    "say(v.grad)",
    "double_backward": "v = z.clone().requires_grad_()\n"
    "g, = torch.autograd.grad(model.body(v).float().square().sum(), v, create_graph=True)\n"
    "say(torch.autograd.grad(g.sum(), v))",
    "copied": "say(copy.deepcopy(model)(z))",
    "autocast": "with torch.autocast('cpu', torch.bfloat16): say(model(z))",
    "no_grad": "with torch.no_grad(): say(model(z))",
    "with_grad": "say(model(z))",
    "inference": "with torch.inference_mode(): say(model(z))",
    "parts": "with torch.inference_mode(): say([c(z) for c in model.body.children()][:1])",
    "body": "with torch.inference_mode(): say(model.body(z))",
    "forward": "with torch.inference_mode(): say(model.forward(z))",
    "class_forward": "with torch.inference_mode(): say(type(model).forward(model, z))",
    "empty_batch": "with torch.inference_mode(): say(model(z[:0]))",
    "other_batch": "with torch.inference_mode(): say(model(z[:2]), model(torch.cat([z, z])))",
    "hooked_gradients": "v = z.clone().requires_grad_()\nwith torch.autograd.graph."
    "saved_tensors_hooks(lambda t: t + 0, lambda t: t):\n    model.body(v).float().sum()."
    "backward()\nsay(v.grad)",
    "dual": "import torch.autograd.forward_ad as fwd\nwith fwd.dual_level():\n"
    "    say(fwd.unpack_dual(model.body(fwd.make_dual(z, torch.ones_like(z)))).tangent)",
    "subtask": "with torch.inference_mode():\n    a = model(z)\n    say(model(a) if isinstance(a, "
    "torch.Tensor) and a.shape == z.shape else a)",
}
_AROUND = {
    "profile": (
        "torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen",
        "say(sorted((e.key, e.count) for e in seen.key_averages() if 'aten::' in e.key))",
    ),
    "flops": ("FlopCounterMode(display=False) as seen", "say(seen.get_total_flops())"),
    "autocast": ("torch.autocast('cpu', torch.bfloat16)", ""),
    "anomaly": ("torch.autograd.set_detect_anomaly(True)", ""),
    "grad_enabled": ("torch.enable_grad()", ""),
    "kernel": ("torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH)", ""),
    "device": ("torch.device('cpu')", ""),
    "stack": ("contextlib.ExitStack()", ""),
    "deterministic": ("deterministic()", ""),
    "default_dtype": ("default_dtype()", ""),
    "job_block": ("__import__('tierline').job()", ""),
    "record_function": ("torch.profiler.record_function('request')", ""),
}
_TOP = """
from torch.utils.flop_counter import FlopCounterMode
@contextlib.contextmanager
def deterministic():
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)
@contextlib.contextmanager
def default_dtype():
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)
"""
_SLOW = ("export", "compile", "fake", "stacked")


def after_a_job(text: Text) -> None:
    """A call of another kind when the model has served so many jobs."""
    name = text.random.choice(sorted(_AFTER))
    if name in _SLOW and text.chance(0.6):
        name = "grad"
    text.tags.append(name)
    job = text.some_job()
    lines = "\n        ".join(["z = given(7, 4, WIDTH)", *_AFTER[name].splitlines()])
    text.add(
        "told",
        f"""
if i == {job}:
    try:
        {lines}
    except Exception as error:
        say(type(error).__name__, str(error).strip().split("\\n")[0][:60])
""",
    )


def around_the_call(text: Text) -> None:
    name = text.random.choice(sorted(_AROUND))
    text.tags.append(name)
    mode, end = _AROUND[name]
    text.add("top", _TOP)
    text.mode = f"{text.mode}, {mode}" if name != "grad_enabled" else "torch.no_grad(), " + mode
    if end:
        text.add("told", end)


def whole_loop_without_gradients(text: Text) -> None:
    """Not by a mode but since no weight asks for gradients."""
    text.add("ready", "model.requires_grad_(False)")
    text.mode = "contextlib.nullcontext()"


def input_with_gradient(text: Text) -> None:
    text.add("asked", "x = x.requires_grad_()")
    text.mode = "torch.enable_grad()"
    text.add("told", "if isinstance(y, torch.Tensor): say(torch.autograd.grad(y.sum(), x))")


TRANSFORMS: tuple[Piece, ...] = (
    *(after_a_job, after_a_job, after_a_job, around_the_call),
    *(whole_loop_without_gradients, input_with_gradient),
)
