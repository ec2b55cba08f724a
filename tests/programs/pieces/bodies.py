"""Models: each makes `self.body` of a request's width, with outputs of the request's shape."""

from __future__ import annotations

from random import Random

from tests.programs.text import Piece, Text


def layers(text: Text) -> None:
    count = text.random.randint(1, 6)
    act = text.random.choice(["nn.Tanh", "nn.GELU", "nn.Sigmoid", "nn.SiLU"])
    text.add(
        "init",
        f"""
        self.body = nn.Sequential(*[
            nn.Sequential(nn.Linear(WIDTH, WIDTH), {act}()) for _ in range({count})
        ])
        """,
    )


def wide_layers(text: Text) -> None:
    text.add(
        "init",
        "self.body = nn.Sequential(*[nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), "
        "nn.Linear(4 * WIDTH, WIDTH)) for _ in range(2)])",
    )


def norms(text: Text) -> None:
    norm = text.random.choice(["nn.LayerNorm(WIDTH)", "nn.RMSNorm(WIDTH)", "nn.BatchNorm1d(WIDTH)"])
    text.add(
        "init",
        f"self.body = nn.Sequential(nn.Linear(WIDTH, WIDTH), {norm}, nn.PReLU(), "
        f"nn.Linear(WIDTH, WIDTH), {norm})",
    )


def convolutions(text: Text) -> None:
    form = text.random.choice(["", ".to(memory_format=torch.channels_last)"])
    text.add(
        "init",
        f"""
        self.body = nn.Sequential(
            nn.Unflatten(1, (WIDTH // 16, 4, 4)), nn.Conv2d(WIDTH // 16, 24, 3, padding=1),
            nn.BatchNorm2d(24), nn.ReLU(), nn.Conv2d(24, WIDTH // 16, 1), nn.Flatten(),
        ){form}
        """,
    )


def recurrent(text: Text) -> None:
    kind = text.random.choice(["GRU", "LSTM", "RNN"])
    text.add(
        "top",
        f"""
        class Recurrent(nn.Module):
            def __init__(self):
                super().__init__()
                self.cells = nn.{kind}(WIDTH, WIDTH, num_layers=2, batch_first=True)
            def forward(self, x):
                return self.cells(x.unsqueeze(1).expand(-1, 3, -1))[0][:, -1]
        """,
    )
    text.add("init", "self.body = Recurrent()")


def attention(text: Text) -> None:
    text.add(
        "top",
        """
        class Attention(nn.Module):
            def __init__(self):
                super().__init__()
                self.mix, self.out = nn.MultiheadAttention(WIDTH, 4), nn.Linear(WIDTH, WIDTH)
            def forward(self, x):
                return self.out(self.mix(x, x, x, need_weights=False)[0])
        """,
    )
    text.add("init", "self.body = Attention()")


def padded_encoder(text: Text) -> None:
    """In eval mode PyTorch goes through nested tensors."""
    first = text.random.choice(["True", "False"])
    text.add(
        "top",
        f"""
        class Padded(nn.Module):
            def __init__(self):
                super().__init__()
                layer = nn.TransformerEncoderLayer(
                    WIDTH, 4, WIDTH, batch_first=True, norm_first={first})
                self.layers = nn.TransformerEncoder(layer, 2)
            def forward(self, x):
                mask = torch.zeros(x.shape[0], 4, dtype=torch.bool)
                mask[0, 3:] = True
                x = x.unsqueeze(1).expand(-1, 4, -1)
                return self.layers(x, src_key_padding_mask=mask)[:, 0]
        """,
    )
    text.add("init", "self.body = Padded()")


def decoder_of_words(text: Text) -> None:
    """An embedding that is the output's projection as well."""
    text.add(
        "top",
        """
        class Words(nn.Module):
            def __init__(self):
                super().__init__()
                self.words, self.mid = nn.Embedding(300, WIDTH), nn.Linear(WIDTH, WIDTH)
            def forward(self, x):
                ids = (x.float() * 40).long().abs() % 300
                h = torch.tanh(self.mid(self.words(ids).mean(1)))
                return x + (h @ self.words.weight.T).sum(-1, keepdim=True)
        """,
    )
    text.add("init", "self.body = Words()")


def experts(text: Text) -> None:
    """Which layers run depends on the request."""
    text.add(
        "top",
        """
        class Experts(nn.Module):
            def __init__(self):
                super().__init__()
                self.gate = nn.Linear(WIDTH, 4)
                self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
            def forward(self, x):
                chosen = self.gate(x).sum(0).argsort()[:2]
                return sum(self.experts[int(k)](x) for k in chosen)
        """,
    )
    text.add("init", "self.body = Experts()")


def tree(text: Text) -> None:
    text.add(
        "top",
        """
        class Tree(nn.Module):
            def __init__(self):
                super().__init__()
                self.leaf, self.join = nn.Linear(WIDTH, WIDTH), nn.Linear(2 * WIDTH, WIDTH)
            def forward(self, x, depth=2):
                if not depth:
                    return torch.tanh(self.leaf(x))
                left, right = self(x, depth - 1), self(x * 0.5, depth - 1)
                return self.join(torch.cat([left, right], -1))
        """,
    )
    text.add("init", "self.body = Tree()")


def one_after_another(text: Text) -> None:
    """The order of the layers changes from job to job."""
    text.add(
        "top",
        """
        ORDERS = itertools.cycle([(0, 1, 2), (2, 1, 0), (1,), (0, 0, 2)])
        class Orders(nn.Module):
            def __init__(self):
                super().__init__()
                self.parts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))
            def forward(self, x):
                for k in next(ORDERS):
                    x = torch.tanh(self.parts[k](x))
                return x
        """,
    )
    text.add("init", "self.body = Orders()")
    text.unordered = False


def normed_weights(text: Text) -> None:
    kind = text.random.choice(["weight_norm", "spectral_norm", "orthogonal"])
    text.add(
        "init",
        f"self.body = nn.Sequential(nn.utils.parametrizations.{kind}(nn.Linear(WIDTH, WIDTH)), "
        "nn.Tanh(), nn.Linear(WIDTH, WIDTH))",
    )


def bare_parameters(text: Text) -> None:
    text.add(
        "top",
        """
        class Bare(nn.Module):
            def __init__(self):
                super().__init__()
                self.stack = nn.Parameter(torch.randn(3, WIDTH, WIDTH) / WIDTH)
                self.rows = nn.ParameterList(torch.randn(WIDTH) for _ in range(3))
            def forward(self, x):
                for matrix, row in zip(self.stack, self.rows):
                    x = torch.einsum("bd,de->be", x, matrix) + row
                return x
        """,
    )
    text.add("init", "self.body = Bare()")


def tied(text: Text) -> None:
    text.add(
        "top",
        """
        class Tied(nn.Module):
            def __init__(self):
                super().__init__()
                self.a, self.b, self.c = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
                self.b.weight = self.a.weight
                self.c.bias = self.a.bias
            def forward(self, x):
                return self.c(torch.tanh(self.b(torch.tanh(self.a(x)))))
        """,
    )
    text.add("init", "self.body = Tied()")


def buffers_alone(text: Text) -> None:
    """Eight-bit weights in buffers: no parameter at all. Large ones are weights to Tierline.

    Its choices are its own, so that the programs of the other pieces stay what they are.
    """
    choices = Random(f"{text.random.getstate()}")  # noqa: S311  # no secret
    rows = choices.choice(["WIDTH", "2**20 // WIDTH + 1"])
    always = choices.choice(["", "", "self.q[-1] = 3", "self.q = self.q.clone()"])
    text.add(
        "top",
        f"""
        class Eight(nn.Module):
            def __init__(self):
                super().__init__()
                self.register_buffer("q", torch.randint(-99, 99, ({rows}, WIDTH)).to(torch.int8))
                self.register_buffer("s", torch.rand(WIDTH, 1) / WIDTH / 50)
            def forward(self, x):
                {always}
                return F.linear(x, self.q[:WIDTH].to(x.dtype) * self.s)
        """,
    )
    text.add("init", "self.body = nn.Sequential(Eight(), nn.Tanh(), Eight())")


def wrapped_weights(text: Text) -> None:
    """A tensor subclass that wraps eight-bit numbers and scales, as a parameter."""
    text.add(
        "top",
        """
        from torch.utils._pytree import tree_map
        class Int8(torch.Tensor):
            @staticmethod
            def __new__(cls, q, s):
                return torch.Tensor._make_wrapper_subclass(cls, q.shape, dtype=s.dtype)
            def __init__(self, q, s):
                self.q, self.s = q, s
            def __tensor_flatten__(self):
                return ["q", "s"], None
            @classmethod
            def __tensor_unflatten__(cls, inner, meta, size, stride):
                return cls(inner["q"], inner["s"])
            @classmethod
            def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
                if func is torch.ops.aten.detach.default:
                    return cls(args[0].q, args[0].s)
                plain = lambda t: t.q.to(t.s.dtype) * t.s if isinstance(t, Int8) else t
                return func(*tree_map(plain, args), **tree_map(plain, kwargs or {}))
        def eight(linear):
            s = linear.weight.detach().abs().amax(1, keepdim=True) / 127
            q = (linear.weight.detach() / s).round().to(torch.int8)
            linear.weight = nn.Parameter(Int8(q, s), requires_grad=False)
            return linear
        """,
    )
    text.add(
        "init",
        "self.body = nn.Sequential(eight(nn.Linear(WIDTH, WIDTH)), nn.GELU(), "
        "nn.Linear(WIDTH, WIDTH))",
    )


def in_a_plain_list(text: Text) -> None:
    """Its parts are no submodules."""
    text.add(
        "top",
        """
        class Hidden(nn.Module):
            def __init__(self):
                super().__init__()
                self.head = nn.Linear(WIDTH, WIDTH)
                self.members = [nn.Linear(WIDTH, WIDTH).eval() for _ in range(3)]
            def forward(self, x):
                h = torch.tanh(self.head(x))
                return torch.stack([member(h) for member in self.members]).mean(0)
        """,
    )
    text.add("init", "self.body = Hidden()")


def lazy(text: Text) -> None:
    text.add(
        "init",
        "self.body = nn.Sequential(nn.LazyLinear(2 * WIDTH), nn.GELU(), nn.LazyLinear(WIDTH))",
    )


def low_precision(text: Text) -> None:
    dtype = text.random.choice(["torch.bfloat16", "torch.float64", "torch.float16"])
    text.add("init", "self.body = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU())")
    text.add("before", f"x = x.to({dtype})")
    text.add("after", "y = y.float()")
    text.add("ready", f"model.to({dtype})")


def low_rank(text: Text) -> None:
    text.add(
        "top",
        """
        class LowRank(nn.Linear):
            def __init__(self, *sizes):
                super().__init__(*sizes)
                self.down = nn.Parameter(torch.randn(4, self.in_features) / 9)
                self.up = nn.Parameter(torch.randn(self.out_features, 4) / 9)
            def forward(self, x):
                return super().forward(x) + x @ self.down.T @ self.up.T
        """,
    )
    text.add("init", "self.body = nn.Sequential(LowRank(WIDTH, WIDTH), LowRank(WIDTH, WIDTH))")


def in_training(text: Text) -> None:
    """Batch statistics are written in each forward, dropout draws random numbers."""
    text.add(
        "init",
        "self.body = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), "
        "nn.Dropout(0.2), nn.Linear(WIDTH, WIDTH))",
    )
    text.add("ready", "model.train()")


def scripted_part(text: Text) -> None:
    text.add(
        "init",
        "self.body = torch.jit.script(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), "
        "nn.Linear(WIDTH, WIDTH)))",
    )


def traced_part(text: Text) -> None:
    text.add(
        "init",
        """
        part = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH)).eval()
        self.body = torch.jit.trace(part, torch.ones(4, WIDTH))
        """,
    )


def bags(text: Text) -> None:
    text.add(
        "top",
        """
        class Bags(nn.Module):
            def __init__(self):
                super().__init__()
                self.bag = nn.EmbeddingBag(200, WIDTH, mode="sum")
                self.pair = nn.Bilinear(WIDTH, WIDTH, WIDTH)
            def forward(self, x):
                ids = (x.float()[:, :6] * 30).long().abs() % 200
                return self.pair(x, self.bag(ids))
        """,
    )
    text.add("init", "self.body = Bags()")


def spectrum(text: Text) -> None:
    """Complex weights."""
    text.add(
        "top",
        """
        class Spectrum(nn.Module):
            def __init__(self):
                super().__init__()
                self.w = nn.Parameter(torch.randn(WIDTH // 2 + 1, dtype=torch.cfloat))
                self.out = nn.Linear(WIDTH, WIDTH)
            def forward(self, x):
                return self.out(torch.fft.irfft(torch.fft.rfft(x) * self.w.conj(), n=WIDTH))
        """,
    )
    text.add("init", "self.body = Spectrum()")


def made_in_inference_mode(text: Text) -> None:
    text.add(
        "init",
        """
        with torch.inference_mode():
            self.body = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))
        """,
    )


BODIES: tuple[Piece, ...] = (
    *(layers, layers, layers, wide_layers, norms, convolutions, recurrent, attention),
    *(padded_encoder, decoder_of_words, experts, tree, one_after_another, normed_weights),
    *(bare_parameters, tied, buffers_alone, wrapped_weights, in_a_plain_list, lazy),
    *(low_precision, low_rank, in_training, scripted_part, traced_part, bags, spectrum),
    made_in_inference_mode,
)
ORDERED: frozenset[Piece] = frozenset({one_after_another, in_training, lazy, normed_weights})
"""Bodies with an output that depends on the order of requests."""
