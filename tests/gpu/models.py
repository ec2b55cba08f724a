"""The models of the GPU tests: real architectures, random weights, the same in every process."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch

_VOCABULARY = 32000


@functools.cache
def kind() -> str:
    """`cuda`; `cpu` where there is none, to try a script. An import alone asks no driver."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def synchronize() -> None:
    """Wait for the GPU, if there is one."""
    if kind() == "cuda":
        torch.cuda.synchronize()


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

    with torch.device(kind()):
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
    return _transformer(lambda: ViTModel(config, add_pooling_layer=False), torch.float16, _pictures)


def llama_7b() -> Shape:
    """A Llama-shaped decoder of 7 billion parameters, 1 x 512 tokens, bf16: 12.6 GiB."""
    return _llama(hidden=4096, intermediate=11008, layers=32, heads=32, tokens=512)


def llama_small() -> Shape:
    """The same decoder with 8 narrower layers, 1 x 128 tokens: what a test needs of it, 1 GiB."""
    return _llama(hidden=2048, intermediate=5504, layers=8, heads=16, tokens=128)


def llama_tiny() -> Shape:
    """One that also runs on a CPU, 35 MiB: to try a script."""
    return _llama(hidden=256, intermediate=688, layers=2, heads=4, tokens=16)


def llama_3b() -> Shape:
    """One of 3.3 billion parameters, 1 x 512 tokens, bf16: 6.2 GiB."""
    return _llama(hidden=3072, intermediate=8192, layers=28, heads=24, tokens=512)


def resnet50() -> Shape:
    """ResNet-50, batch 8, fp16: 45 MiB."""
    from transformers import ResNetConfig, ResNetModel  # noqa: PLC0415

    return _transformer(lambda: ResNetModel(ResNetConfig()), torch.float16, _pictures)


def efficientnet_b7() -> Shape:
    """EfficientNet-B7, batch 8 of 600 x 600, fp16: 122 MiB in 55 blocks."""
    from transformers import EfficientNetConfig, EfficientNetModel  # noqa: PLC0415

    return _transformer(
        lambda: EfficientNetModel(EfficientNetConfig()), torch.float16, lambda: _pictures(600)
    )


def convnext_large() -> Shape:
    """ConvNeXt-L, batch 8, fp16: 374 MiB."""
    from transformers import ConvNextConfig, ConvNextModel  # noqa: PLC0415

    config = ConvNextConfig(depths=[3, 3, 27, 3], hidden_sizes=[192, 384, 768, 1536])
    return _transformer(lambda: ConvNextModel(config), torch.float16, _pictures)


def swin_large() -> Shape:
    """Swin-L, batch 8, fp16: 373 MiB."""
    from transformers import SwinConfig, SwinModel  # noqa: PLC0415

    config = SwinConfig(embed_dim=192, depths=[2, 2, 18, 2], num_heads=[6, 12, 24, 48])
    return _transformer(
        lambda: SwinModel(config, add_pooling_layer=False), torch.float16, _pictures
    )


def vit_large() -> Shape:
    """ViT-L/16, batch 8, fp16: 579 MiB in 24 blocks."""
    from transformers import ViTConfig, ViTModel  # noqa: PLC0415

    config = ViTConfig(
        hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096
    )
    return _transformer(lambda: ViTModel(config, add_pooling_layer=False), torch.float16, _pictures)


def bert_large() -> Shape:
    """BERT-large, 8 x 384 tokens, fp16: 637 MiB in 24 blocks."""
    from transformers import BertConfig, BertModel  # noqa: PLC0415

    config = BertConfig(
        hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096
    )
    return _transformer(
        lambda: BertModel(config, add_pooling_layer=False),
        torch.float16,
        lambda: _words(config.vocab_size, 8, 384),
    )


def t5_large_encoder() -> Shape:
    """The encoder of T5-large, 8 x 256 tokens, bf16: 639 MiB in 24 blocks."""
    from transformers import T5Config, T5EncoderModel  # noqa: PLC0415

    config = T5Config(d_model=1024, d_kv=64, d_ff=4096, num_layers=24, num_heads=16)
    return _transformer(
        lambda: T5EncoderModel(config), torch.bfloat16, lambda: _words(config.vocab_size, 8, 256)
    )


def gpt2_xl() -> Shape:
    """GPT-2 XL, 1 x 512 tokens, fp16: 2.9 GiB in 48 blocks."""
    from transformers import GPT2Config, GPT2Model  # noqa: PLC0415

    config = GPT2Config(n_embd=1600, n_layer=48, n_head=25, use_cache=False)
    return _transformer(
        lambda: GPT2Model(config), torch.float16, lambda: _words(config.vocab_size, 1, 512)
    )


def whisper_large_encoder() -> Shape:
    """The encoder of Whisper large-v3, 30 s of speech, fp16: 1.2 GiB in 32 blocks."""
    from transformers import WhisperConfig  # noqa: PLC0415
    from transformers.models.whisper.modeling_whisper import WhisperEncoder  # noqa: PLC0415

    config = WhisperConfig(
        d_model=1280,
        encoder_layers=32,
        encoder_attention_heads=20,
        encoder_ffn_dim=5120,
        num_mel_bins=128,
    )
    return _transformer(
        lambda: WhisperEncoder(config),
        torch.float16,
        lambda: torch.rand(1, 128, 3000, dtype=torch.float16),
    )


def _pictures(size: int = 224) -> torch.Tensor:
    return torch.rand(8, 3, size, size, dtype=torch.float16)


def _words(vocabulary: int, sentences: int, tokens: int) -> torch.Tensor:
    return torch.randint(0, vocabulary, (sentences, tokens))


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
        with torch.device(kind()):
            return Shape(make().eval().requires_grad_(False), (inputs(),))
    finally:
        torch.set_default_dtype(before)


MODELS: dict[str, Callable[[], Shape]] = {
    "resnet152": resnet152,
    "vit-giant": vit_giant,
    "llama-7b": llama_7b,
    "llama-small": llama_small,
    "llama-tiny": llama_tiny,
    "llama-3b": llama_3b,
    "resnet50": resnet50,
    "efficientnet-b7": efficientnet_b7,
    "convnext-large": convnext_large,
    "swin-large": swin_large,
    "vit-large": vit_large,
    "bert-large": bert_large,
    "t5-large-encoder": t5_large_encoder,
    "gpt2-xl": gpt2_xl,
    "whisper-large-encoder": whisper_large_encoder,
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
