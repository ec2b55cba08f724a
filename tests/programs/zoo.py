"""Every architecture of transformers, timm and torchvision that can be built small from its name.

Number N is the N-th name of `names()`. Weights are random, nothing is downloaded. A configuration
is made small by what its numbers are called; inputs are tried until plain PyTorch takes one.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import nn

JOBS = 5
_SMALL = {
    **dict.fromkeys(("hidden_size", "d_model", "embed_dim", "n_embd", "dim", "emb_dim"), 64),
    **dict.fromkeys(("decoder_hidden_size", "encoder_hidden_size", "projection_dim"), 64),
    **dict.fromkeys(("embedding_size", "word_embed_proj_dim", "n_embed", "d_embed"), 64),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "d_ff", "n_inner", "ff_dim"), 96),
    **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim", "moe_intermediate_size"), 96),
    **dict.fromkeys(("num_attention_heads", "num_heads", "n_head", "n_heads"), 4),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("num_key_value_heads", "n_kv_heads"), 2),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "num_layers", "n_layers"), 2),
    **dict.fromkeys(("encoder_layers", "decoder_layers", "num_decoder_layers"), 2),
    **dict.fromkeys(("num_encoder_layers", "depth"), 2),
    **dict.fromkeys(("vocab_size",), 600),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), 4),
    **dict.fromkeys(("head_dim", "d_kv", "attention_head_size"), 16),
    **dict.fromkeys(("max_position_embeddings",), 256),
    **dict.fromkeys(("image_size",), 64),
    **dict.fromkeys(("num_queries",), 10),
}


@cache
def names() -> tuple[str, ...]:
    """Return all names, of all three libraries."""
    import timm  # noqa: PLC0415 - seconds each, for who asks
    import torchvision  # noqa: PLC0415
    from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES  # noqa: PLC0415

    families = {name.split(".")[0]: name for name in reversed(timm.list_modules())}
    smallest = [
        min(found, key=len) for family in sorted(families) if (found := timm.list_models(module=family))
    ]
    return (
        *(f"transformers/{name}" for name in sorted(MODEL_MAPPING_NAMES)),
        *(f"timm/{name}" for name in smallest),
        *(f"torchvision/{name}" for name in sorted(torchvision.models.list_models())),
    )


def tags(number: int) -> tuple[str, ...]:
    """Return what is told of a number."""
    return (names()[number],)


def run(number: int, say: Callable[..., None], folder: Path) -> None:
    """Make the model, and run it."""
    library, name = names()[number].split("/", 1)
    torch.manual_seed(number)
    make = {"transformers": _transformers, "timm": _timm, "torchvision": _torchvision}[library]
    model = make(name).eval()
    inputs = next(_that_work(model), None)
    if inputs is None:
        raise ValueError("no input that it takes")
    calls = []
    model.register_forward_pre_hook(lambda module, arguments: calls.append(1))
    for job in range(JOBS):
        torch.manual_seed(job % 2)
        with torch.inference_mode():
            say(model(**inputs(job % 2)))
    say(len(calls))


def _that_work(model: nn.Module) -> Iterator[Callable[[int], dict[str, Any]]]:
    """Try inputs on a part of the program's own making: a call of `forward` alone."""
    for inputs in _candidates(model):
        try:
            with torch.inference_mode():
                type(model).forward(model, **inputs(0))
        except Exception:  # noqa: S112 - whatever it is, it does not take this input
            continue
        yield inputs
