"""Tensors of other kinds, at every place where a program may have one.

A kind is how it is made of a dense tensor `t` of shape (4, n), and how numbers are read from it.
"""

from __future__ import annotations

from tests.programs.text import Piece, Text

_TOP = """
class Named(torch.Tensor):
    pass
class Strict(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func not in (torch.Tensor.as_subclass,):
            raise TypeError("not allowed on Strict")
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))
def masked(t):
    from torch.masked import masked_tensor
    return masked_tensor(t, t > 0)
"""
KINDS = {
    "strided_nested": ("torch.nested.nested_tensor([t[:1], t[1:4]])", "torch.cat(o.unbind())"),
    "jagged_nested": (
        "torch.nested.nested_tensor([t[:1], t[1:4]], layout=torch.jagged)",
        "torch.cat(o.unbind())",
    ),
    "sparse": ("t.relu().to_sparse()", "o.to_dense()"),
    "sparse_uncoalesced": (
        "torch.sparse_coo_tensor(torch.tensor([[0, 0, 1]]), t[0, :3], (4,))",
        "o.to_dense()",
    ),
    "compressed_rows": ("t.relu().to_sparse_csr()", "o.to_dense()"),
    "compressed_columns": ("t.relu().to_sparse_csc()", "o.to_dense()"),
    "compressed_blocks": ("t.to_sparse_bsr((2, 2))", "o.to_dense()"),
    "meta": ("torch.empty_like(t, device='meta')", "torch.ones(o.shape)"),
    "quantised": ("torch.quantize_per_tensor(t.float(), 0.1, 3, torch.quint8)", "o.dequantize()"),
    "quantised_rows": (
        "torch.quantize_per_channel(t.float(), torch.ones(4), torch.zeros(4), 0, torch.qint8)",
        "o.dequantize()",
    ),
    "mkldnn": ("t.float().to_mkldnn()", "o.to_dense()"),
    "masked": ("masked(t)", "o.get_data()"),
    "named_subclass": ("t.as_subclass(Named)", "o.as_subclass(torch.Tensor)"),
    "strict_subclass": ("t.clone().as_subclass(Strict)", "o.as_subclass(torch.Tensor)"),
    "transposed": ("t.clone().T", "o"),
    "expanded": ("t[:1].expand(4, -1)", "o"),
    "overlapping": ("t.contiguous().as_strided((3, 5), (2, 1), 1)", "o"),
    "conjugated": (
        "torch.complex(t.float(), t.float()).conj()",
        "torch.view_as_real(o.resolve_conj())",
    ),
    "negated": ("torch.complex(t.float(), t.float()).conj().imag", "o"),
    "empty": ("t[:0]", "o.sum() + torch.ones(1)"),
    "scalar": ("t.sum()", "o"),
    "boolean": ("t > 0", "o.float()"),
    "with_graph": ("(t.float() * torch.ones((), requires_grad=True))", "o.detach()"),
    "in_inference": ("t.clone()", "o"),
    "zeros": ("torch._efficientzerotensor(t.shape)", "o + 0"),
    "double": ("t.double()", "o"),
    "eight_bit": ("t.to(torch.float8_e4m3fn)", "o.float()"),
    "undefined_storage": ("torch.func.functionalize(lambda v: v + 1)(t)", "o"),
    "typed_bits": ("t.float().view(torch.int32)", "o.view(torch.float32)"),
}
_PLACES = (
    *("argument", "keyword", "inside_a_list", "inside_an_object", "operator"),
    *("buffer", "attribute", "parameter", "output", "output_object", "global_value", "closure"),
)


def _make(kind: str, of: str) -> str:
    return f"(lambda t: {KINDS[kind][0]})({of})"


def _read(kind: str, of: str) -> str:
    return f"(lambda o: {KINDS[kind][1]})({of})"


def odd_tensor(text: Text) -> None:
    """One kind at one place."""
    kind, place = text.random.choice(sorted(KINDS)), text.random.choice(_PLACES)
    text.tags.append(f"{kind}@{place}")
    text.add("top", _TOP)
    _put(text, kind, place)
    if text.chance(0.3):
        text.mode = "torch.no_grad()"


def _mixed_in(text: Text, read: str) -> None:
    text.add("before", f"x = x + {read}.float().mean() * 0.1")


def _put(text: Text, kind: str, place: str) -> None:
    make, held = _make(kind, "given(i, 4, WIDTH)"), _make(kind, "given(0, 4, WIDTH)")
    if place in {"argument", "keyword", "inside_a_list", "inside_an_object"}:
        text.parameters.append("odd")
        form = {
            "argument": ("{}", "odd"),
            "keyword": ("odd={}", "odd"),
            "inside_a_list": ("[1, ({},)]", "odd[1][0]"),
            "inside_an_object": ("Box({})", "odd.value"),
        }[place]
        text.add("top", "class Box:\n    def __init__(self, value): self.value = value")
        text.arguments.append(form[0].format(make))
        _mixed_in(text, _read(kind, form[1]))
    elif place == "operator":
        text.add("after", f"y = y + {_read(kind, _make(kind, 'y'))}.float().mean()")
    elif place == "buffer":
        text.add("init", f"self.register_buffer('odd', {held})")
        _mixed_in(text, _read(kind, "self.odd"))
    elif place == "attribute":
        text.add("init", f"self.odd = {held}")
        _mixed_in(text, _read(kind, "self.odd"))
    elif place == "parameter":
        text.add("init", f"self.odd = nn.Parameter({held}, requires_grad=False)")
        _mixed_in(text, _read(kind, "self.odd"))
    elif place == "global_value":
        text.add("top", f"ODD = {held}")
        _mixed_in(text, _read(kind, "ODD"))
    elif place == "closure":
        text.add("ready", f"model.read = (lambda odd: lambda: {_read(kind, 'odd')})({held})")
        _mixed_in(text, "self.read()")
    else:
        text.add(
            "top", "class Result:\n    def __init__(self, **fields): vars(self).update(fields)"
        )
        odd = _make(kind, "y")
        text.output = {
            "output": f"(y, {odd})",
            "output_object": f"Result(first=y, odd={odd})",
        }[place]


TENSORS: tuple[Piece, ...] = (odd_tensor,)
