"""A server that answers HTTP requests: `python -m tierline_examples.server`.

FastAPI calls the endpoint in threads of its own; the model's forward is the job. Tierline needs
nothing of it but the model.
"""

from __future__ import annotations

import argparse

import torch
import uvicorn
from fastapi import FastAPI, HTTPException
from torch import nn

_SEED = 7
_WIDTH = 1024
_BLOCKS = 4


def model() -> nn.Sequential:
    """128 MiB of weights; (batch, 1024) to (batch, 1024)."""
    torch.manual_seed(_SEED)
    blocks = [
        (nn.Linear(_WIDTH, 4 * _WIDTH), nn.GELU(), nn.Linear(4 * _WIDTH, _WIDTH))
        for _ in range(_BLOCKS)
    ]
    return nn.Sequential(*(layer for block in blocks for layer in block)).eval()


def application() -> FastAPI:
    """One endpoint, `/score?seed=N`."""
    served = model()
    app = FastAPI()

    @app.get("/score")
    def score(seed: int) -> dict[str, float]:
        """The mean of the model's output for numbers drawn from `seed`."""
        if not 0 <= seed < 1 << 63:
            raise HTTPException(422, "seed is a whole number from 0 to 2^63 - 1")
        given = torch.randn(8, _WIDTH, generator=torch.Generator().manual_seed(seed))
        with torch.inference_mode():
            return {"score": served(given).double().mean().item()}

    return app


def main() -> None:
    """Serve until a signal ends it."""
    parser = argparse.ArgumentParser(prog="tierline_examples.server", description=__doc__)
    parser.add_argument("--port", type=int, default=8000, help="default 8000")
    options = parser.parse_args()
    torch.set_num_threads(1)  # the other processors are the agent's, which copies meanwhile
    uvicorn.run(application(), port=options.port, log_level="warning")


if __name__ == "__main__":
    main()
