"""Three perception models, each a periodic task: `python -m tierline_examples.perception resnet`.

The models are Hugging Face's architectures in their usual sizes, with random weights from a fixed
seed (nothing is downloaded): ResNet-101, ViT-base, BERT-base. What a program of one's own needs is
the loop at the end; the rest is ordinary PyTorch. Without Tierline, `--jobs 8` runs it eight times.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from transformers import (
    BertConfig,
    BertModel,
    PreTrainedModel,
    ResNetConfig,
    ResNetForImageClassification,
    ViTConfig,
    ViTForImageClassification,
)

import tierline
from tierline_examples.inputs import pictures, sentences

_SEED = 7
_INPUTS = 4


def resnet() -> tuple[PreTrainedModel, list[dict[str, Any]]]:
    """ResNet-101, 44.5 million weights, one picture a job."""
    config = ResNetConfig(depths=[3, 4, 23, 3], layer_type="bottleneck")
    config.num_labels = 1000
    return ResNetForImageClassification(config), _pictures()


def _pictures() -> list[dict[str, Any]]:
    return [{"pixel_values": picture} for picture in pictures(_INPUTS, 224)]


def vit() -> tuple[PreTrainedModel, list[dict[str, Any]]]:
    """ViT-base, 86.6 million weights, one picture a job."""
    config = ViTConfig()
    config.num_labels = 1000
    return ViTForImageClassification(config), _pictures()


def bert() -> tuple[PreTrainedModel, list[dict[str, Any]]]:
    """BERT-base, 109.5 million weights, one sentence a job."""
    return BertModel(BertConfig()), [dict(sentence) for sentence in sentences(_INPUTS)]


_MODELS = {"resnet": resnet, "vit": vit, "bert": bert}


def main() -> None:
    """Run one of the models, periodically."""
    parser = argparse.ArgumentParser(prog="tierline_examples.perception", description=__doc__)
    parser.add_argument("model", choices=sorted(_MODELS))
    parser.add_argument("--jobs", type=int, help="end after so many jobs, and print each result")
    parser.add_argument(
        "--period", type=float, default=1.0, help="seconds, without Tierline (default 1)"
    )
    options = parser.parse_args()

    torch.set_num_threads(1)  # the other core is the agent's, which copies meanwhile
    torch.manual_seed(_SEED)
    model, inputs = _MODELS[options.model]()
    model.eval()
    with torch.inference_mode():
        for release in tierline.periodic(options.period, jobs=options.jobs):
            output = model(**inputs[release.index % len(inputs)])
            if options.jobs is not None:
                print(f"job {release.index}: {float(output[0].double().sum()):+.6f}")


if __name__ == "__main__":
    main()
