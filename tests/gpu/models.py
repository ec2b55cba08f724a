"""The models of the GPU tests: real architectures, random weights, the same in every process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

_VOCABULARY = 32000
_DEVICE = "cuda" if torch.cuda.is_available() else "cpu"  # the CPU: to try a script


@dataclass(frozen=True)
class Shape:
    """A model on the current GPU, and an input for it."""

    model: torch.nn.Module
    inputs: tuple[torch.Tensor, ...]

    @property
    def weight_bytes(self) -> int:
        """Bytes of all parameters, shared ones counted once."""
        return sum(one.nbytes for one in self.model.parameters())


def resnet152() -> Shape:
    """ResNet-152, batch 8, fp16: 115 MiB in 312 small layers."""
    import torchvision  # noqa: PLC0415  # models are loaded one at a time

    with torch.device(_DEVICE):
        model = torchvision.models.resnet152().eval().half()
        return Shape(model, (torch.rand(8, 3, 224, 224, dtype=torch.float16),))


def vit_giant() -> Shape:
    """ViT-giant/14, batch 8, fp16: 1.9 GiB in 40 blocks."""
    from transformers import ViTConfig, ViTModel  # noqa: PLC0415

    config = ViTConfig(
        hidden_size=1408,
        num_hidden_layers=40,
        num_attention_heads=16,
        intermediate_size=6144,
        image_size=224,
        patch_size=14,
    )
    return _transformer(
        lambda: ViTModel(config, add_pooling_layer=False),
        torch.float16,
        lambda: torch.rand(8, 3, 224, 224, dtype=torch.float16),
    )


def llama_7b() -> Shape:
    """A Llama-shaped decoder of 7 billion parameters, 1 x 512 tokens, bf16: 12.6 GiB."""
    return _llama(hidden=4096, intermediate=11008, layers=32, heads=32, tokens=512)


def llama_small() -> Shape:
    """The same decoder with 8 narrower layers, 1 x 128 tokens: what a test needs of it, 1 GiB."""
    return _llama(hidden=2048, intermediate=5504, layers=8, heads=16, tokens=128)


def llama_tiny() -> Shape:
    """One that also runs on a CPU, 35 MiB: to try a script."""
    return _llama(hidden=256, intermediate=688, layers=2, heads=4, tokens=16)


def _llama(*, hidden: int, intermediate: int, layers: int, heads: int, tokens: int) -> Shape:
    from transformers import LlamaConfig, LlamaForCausalLM  # noqa: PLC0415

    config = LlamaConfig(
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        vocab_size=_VOCABULARY,
        use_cache=False,
    )
    return _transformer(
        lambda: LlamaForCausalLM(config),
        torch.bfloat16,
        lambda: torch.randint(0, _VOCABULARY, (1, tokens)),
    )


def _transformer(
    make: Callable[[], torch.nn.Module], dtype: torch.dtype, inputs: Callable[[], torch.Tensor]
) -> Shape:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(_DEVICE):
            return Shape(make().eval().requires_grad_(False), (inputs(),))
    finally:
        torch.set_default_dtype(before)


MODELS: dict[str, Callable[[], Shape]] = {
    "resnet152": resnet152,
    "vit-giant": vit_giant,
    "llama-7b": llama_7b,
    "llama-small": llama_small,
    "llama-tiny": llama_tiny,
}


def make(name: str) -> Shape:
    """The model of this name, its weights those of seed 0, its kernels deterministic."""
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
    return MODELS[name]()


def first_tensor(output: object) -> torch.Tensor:
    """The tensor that a forward is compared by."""
    if isinstance(output, torch.Tensor):
        return output
    for name in ("logits", "last_hidden_state"):
        value = getattr(output, name, None)
        if isinstance(value, torch.Tensor):
            return value
    raise TypeError(f"no tensor in an output of type {type(output).__name__}")
