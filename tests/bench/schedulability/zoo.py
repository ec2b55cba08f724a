"""Real architectures to profile on `cpu`: usual sizes, random weights, nothing downloaded.

    python -m tests.bench.schedulability.zoo measure     writes docs/benchmarks/shapes-cpu.json

Each is a program of its own, observed by the product's profiler (`tierline profile` does the
same): that gives layers, bytes and each layer's share of a job. How long a job takes is the least
processor time of JOBS more on one thread, which other work does not stretch as it does a clock.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers as tf
from tests.bench.machine import describe

import tierline
from tierline_api.manifests.files import load_manifests
from tierline_cli.local import profiling
from tierline_cli.local.place import Place

JOBS = 6
TOKENS = 128
MEASURED = "layers' shares by the profiler; least processor time of a job on one thread"
RESULT = Path("docs/benchmarks/shapes-cpu.json")


def picture(size: int = 224) -> dict[str, Any]:
    return {"pixel_values": torch.zeros(1, 3, size, size)}


def sentence() -> dict[str, Any]:
    return {"input_ids": torch.arange(1, TOKENS + 1)[None]}


def vit(hidden: int, heads: int) -> Any:
    config = tf.ViTConfig(
        hidden_size=hidden, num_attention_heads=heads, intermediate_size=4 * hidden
    )
    return tf.ViTModel(config)


MODELS: dict[str, tuple[Callable[[], Any], Callable[[], dict[str, Any]]]] = {
    "resnet-50": (lambda: tf.ResNetModel(tf.ResNetConfig()), picture),
    "resnet-152": (lambda: tf.ResNetModel(tf.ResNetConfig(depths=[3, 8, 36, 3])), picture),
    "mobilenet-v2": (lambda: tf.MobileNetV2Model(tf.MobileNetV2Config()), picture),
    "convnext-tiny": (lambda: tf.ConvNextModel(tf.ConvNextConfig()), picture),
    "swin-tiny": (lambda: tf.SwinModel(tf.SwinConfig()), picture),
    "segformer-b0": (lambda: tf.SegformerModel(tf.SegformerConfig()), picture),
    "vit-small": (lambda: vit(384, 6), picture),
    "vit-base": (lambda: vit(768, 12), picture),
    "bert-base": (lambda: tf.BertModel(tf.BertConfig()), sentence),
    "distilbert": (lambda: tf.DistilBertModel(tf.DistilBertConfig()), sentence),
    "gpt2": (lambda: tf.GPT2Model(tf.GPT2Config(use_cache=False)), sentence),
    "t5-small-encoder": (lambda: tf.T5EncoderModel(tf.T5Config()), sentence),
}


def program(name: str) -> None:
    """What a user's program is: a model and a periodic loop."""
    torch.set_num_threads(1)
    torch.manual_seed(7)
    model, inputs = MODELS[name][0]().eval(), MODELS[name][1]()
    with torch.inference_mode():
        for _ in tierline.periodic(1.0):
            model(**inputs)


def measure() -> None:
    """Profile all models one after the other, and write their shapes after each."""
    shapes: dict[str, Any] = {}
    for name in MODELS:
        folder = Path(tempfile.mkdtemp(prefix="tierline-zoo-"))
        try:
            path = folder / "task.yaml"
            path.write_text(manifest(name))
            task = load_manifests([path]).tasks[0]
            seen = profiling.observe(task, Place("cpu", 0), folder, JOBS, lambda _: None)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        job_s = undisturbed_s(name)
        share = job_s / sum(layer.compute_s for layer in seen.layers)
        shapes[name] = {
            "compute_s": job_s,
            "weight_bytes": seen.weights_bytes,
            "workspace_bytes": seen.workspace_bytes,
            "layers": [
                [one.bytes, round(one.compute_s * share, 7), one.pinned] for one in seen.layers
            ],
        }
        print(
            f"{name}: {seen.weights_bytes / 2**20:.0f} MiB, {len(seen.layers)} layers", flush=True
        )
        about = {
            **describe(),
            "measured": "layers' shares by the profiler, least processor time of a job, one thread",
        }
        RESULT.write_text(json.dumps({**about, "shapes": shapes}) + "\n")


def undisturbed_s(name: str) -> float:
    """Seconds of processor time that a job takes on one thread, at least."""
    torch.set_num_threads(1)
    model, inputs = MODELS[name][0]().eval(), MODELS[name][1]()
    took_s = []
    with torch.inference_mode():
        for _ in range(JOBS):
            begun = time.process_time()
            model(**inputs)
            took_s.append(time.process_time() - begun)
    return min(took_s)


def manifest(name: str) -> str:
    """A MemTask with this module as its program."""
    return f"""\
apiVersion: tierline.io/v1alpha1
kind: MemTask
metadata: {{name: {name}, namespace: zoo}}
spec:
  realtime: {{period: 1s}}
  memory: {{budget: 4Gi}}
  swap: {{tiers: [dram]}}
  device: {{kind: cpu}}
  template:
    metadata: {{labels: {{app: {name}}}}}
    spec:
      containers:
        - name: {name}
          image: zoo
          command: [python, -m, tests.bench.schedulability.zoo, {name}]
"""


if __name__ == "__main__":
    if sys.argv[1:] == ["measure"]:
        measure()
    else:
        program(sys.argv[1])
