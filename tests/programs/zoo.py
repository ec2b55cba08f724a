"""Every architecture of transformers, timm and torchvision that can be built small from its name.

Number N is the N-th name of transformers, 10,000 + N of timm, 20,000 + N of torchvision. Weights
are random, nothing is downloaded. A configuration
is made small by what its numbers are called; inputs are tried until plain PyTorch takes one.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from tests.programs.kinds import Say
from torch import nn

JOBS = 5
LIBRARY = 10_000
"""A library has so many numbers."""
TRANSFORMERS, TIMM, TORCHVISION = range(3)
LARGEST = 30 << 20
"""Parameters of a model that is run."""
_LAYERS = 2
_SMALL = {
    **dict.fromkeys(("hidden_size", "d_model", "embed_dim", "n_embd", "dim", "emb_dim"), 64),
    **dict.fromkeys(("decoder_hidden_size", "encoder_hidden_size", "projection_dim"), 64),
    **dict.fromkeys(("embedding_size", "word_embed_proj_dim", "n_embed", "d_embed"), 64),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "d_ff", "n_inner", "ff_dim"), 96),
    **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim", "moe_intermediate_size"), 96),
    **dict.fromkeys(("num_attention_heads", "num_heads", "n_head", "n_heads"), 4),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("num_key_value_heads", "n_kv_heads"), 2),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "num_layers", "n_layers"), _LAYERS),
    **dict.fromkeys(("encoder_layers", "decoder_layers", "num_decoder_layers"), _LAYERS),
    **dict.fromkeys(("num_encoder_layers", "depth"), _LAYERS),
    **dict.fromkeys(("vocab_size",), 600),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), 4),
    **dict.fromkeys(("head_dim", "d_kv", "attention_head_size"), 16),
    **dict.fromkeys(("max_position_embeddings",), 256),
    **dict.fromkeys(("image_size",), 64),
    **dict.fromkeys(("num_queries",), 10),
}


@cache
def names(library: int) -> tuple[str, ...]:
    """Return a library's names, sorted: its architectures' families, or its models."""
    if library == TRANSFORMERS:
        from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES  # noqa: PLC0415

        return tuple(sorted(MODEL_MAPPING_NAMES))
    if library == TIMM:
        import timm  # noqa: PLC0415 - seconds, on demand

        found = (timm.list_models(module=family) for family in sorted(timm.list_modules()))
        return tuple(min(models, key=len) for models in found if models)
    import torchvision  # noqa: PLC0415

    return tuple(sorted(torchvision.models.list_models()))


def numbers(first: int, count: int) -> list[int]:
    """Return so many of the numbers, of all libraries."""
    found = [
        library * LIBRARY + index
        for library in (TRANSFORMERS, TIMM, TORCHVISION)
        for index in range(len(names(library)))
    ]
    return found[first : first + count]


def tags(number: int) -> tuple[str, ...]:
    """Return what is told of a number."""
    library, index = divmod(number, LIBRARY)
    return (("transformers", "timm", "torchvision")[library], names(library)[index])


def unordered(number: int) -> bool:
    """Say that it says things in order."""
    return False


def run(number: int, say: Say, folder: Path) -> None:
    """Make the model, and run it."""
    library, index = divmod(number, LIBRARY)
    make = (_transformers, _timm, _torchvision)[library]
    with torch.device("meta"):
        size = sum(one.numel() for one in make(names(library)[index]).parameters())
    if size > LARGEST:
        raise ValueError(f"{size} parameters are too many here")
    torch.manual_seed(number)
    model = make(names(library)[index]).eval()
    inputs = _that_works(model)
    calls: list[int] = []
    model.register_forward_pre_hook(lambda *_: calls.append(1))
    for job in range(JOBS):
        torch.manual_seed(job % 2)
        with torch.inference_mode():
            say(model(**inputs()))
    say(len(calls))


def _that_works(model: nn.Module) -> Callable[[], dict[str, Any]]:
    """Find inputs, on a copy that is no part of the program."""
    why: Exception = ValueError("it takes no argument that is known here")
    for inputs in _candidates(model):
        try:
            with torch.enable_grad(), torch.random.fork_rng():
                type(model).forward(copy.deepcopy(model), **inputs())
        except Exception as error:
            why = error
        else:
            return inputs
    raise why


def _transformers(name: str) -> nn.Module:
    from transformers import AutoConfig, AutoModel  # noqa: PLC0415 - on demand

    config = AutoConfig.for_model(name)
    shrink(config)
    return AutoModel.from_config(config)


def shrink(config: Any) -> None:
    """Make a configuration small, with those inside it; lists by layer become as short."""
    deep = {value for key, value in vars(config).items() if _SMALL.get(key) == _LAYERS}
    for key, value in list(vars(config).items()):
        small = _SMALL.get(key)
        if hasattr(value, "to_dict"):
            shrink(value)
        elif small and type(value) is int and value > small:
            setattr(config, key, small)
        elif key.endswith("_token_id") and type(value) is int and value >= _SMALL["vocab_size"]:
            setattr(config, key, 1)
        elif isinstance(value, list) and len(value) in deep:
            setattr(config, key, value[-_LAYERS:])
        elif key == "depths":
            setattr(config, key, type(value)(1 for _ in value))


def _timm(name: str) -> nn.Module:
    import timm  # noqa: PLC0415

    return timm.create_model(name, num_classes=10)


def _torchvision(name: str) -> nn.Module:
    import torchvision  # noqa: PLC0415

    backbone = {"weights_backbone": None} if "/" in name or "rcnn" in name else {}
    return torchvision.models.get_model(name, weights=None, **backbone)


def _candidates(model: nn.Module) -> Iterator[Callable[[], dict[str, Any]]]:
    """Inputs that models take, the likely ones first."""
    accepted = inspect.signature(type(model).forward).parameters
    names = [name for name in accepted if name not in {"self", "args", "kwargs"}]
    config = getattr(model, "config", None)
    mels = getattr(config, "num_mel_bins", 80)
    for size in dict.fromkeys((_side(config), 64, 224, 384)):
        for wanted in (*_SETS, names[:1]):
            if wanted[0] in names:
                yield partial(_given, names, wanted, size, mels)


def _side(config: Any) -> int:
    size = getattr(getattr(config, "vision_config", config), "image_size", 64)
    return size if type(size) is int else 64


_SETS = (
    ["input_ids", "decoder_input_ids", "bbox", "pixel_values", "attention_mask"],
    ["input_ids", "decoder_input_ids", "attention_mask", "bbox"],
    ["input_ids", "bbox"],
    ["pixel_values"],
    ["pixel_values", "input_ids"],
    ["input_features", "decoder_input_ids"],
    ["input_features", "attention_mask"],
    ["input_values"],
    ["past_values", "past_time_features", "past_observed_mask"],
    ["past_values"],
)


def _given(names: list[str], wanted: list[str], size: int, mels: int) -> dict[str, Any]:
    every: dict[str, Callable[[], torch.Tensor]] = {
        "input_ids": lambda: torch.randint(3, 200, (1, 12)),
        "decoder_input_ids": lambda: torch.randint(3, 200, (1, 6)),
        "attention_mask": lambda: torch.ones(1, 12, dtype=torch.long),
        "pixel_values": lambda: torch.randn(1, 3, size, size),
        "input_values": lambda: torch.randn(1, 4000),
        "input_features": lambda: torch.randn(1, mels, 3000),
        "bbox": lambda: torch.zeros(1, 12, 4, dtype=torch.long),
        "past_values": lambda: torch.randn(1, 512, 1),
    }
    picture = every["pixel_values"]
    return {name: every.get(name, picture)() for name in wanted if name in names}
