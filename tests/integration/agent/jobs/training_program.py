"""A loop that trains, and knows nothing of Tierline: `training_program.py FILE STEPS`.

In-place operators, statistics of batches, dropout, a checkpointed part, accumulated gradients, and
validation after each step. It writes a line for each step, with a digest of all weights and
buffers, into FILE.
"""

import hashlib
import sys
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint


class Net(nn.Module):
    """Small, and of many kinds of layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True)
        )
        self.again = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.GELU())
        self.last = nn.Sequential(nn.Flatten(), nn.Dropout(0.2), nn.Linear(8 * 64, 10))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Logits."""
        seen = checkpoint(self.again, self.first(images), use_reentrant=False)
        logits: torch.Tensor = self.last(seen)
        return logits


def digest(model: nn.Module) -> str:
    """Of weights and buffers."""
    state = (one.detach().numpy().tobytes() for one in model.state_dict().values())
    return hashlib.sha256(b"".join(state)).hexdigest()


def main() -> None:
    """Train."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    with Path(sys.argv[1]).open("w") as told:
        for _ in range(int(sys.argv[2])):
            for _ in range(2):
                labels = torch.randint(0, 10, (4,))
                functional.cross_entropy(model(torch.randn(4, 3, 8, 8)), labels).backward()
            optimizer.step()
            optimizer.zero_grad()
            model.eval()
            with torch.no_grad():
                model(torch.ones(1, 3, 8, 8))
            model.train()
            print(digest(model), file=told, flush=True)


if __name__ == "__main__":
    main()
