"""A loop that trains, as people write them: PyTorch, and nothing of Tierline."""

import sys

import torch

torch.manual_seed(7)
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
print("python", "{}.{}".format(*sys.version_info), flush=True)
step = 0
while True:
    torch.manual_seed(step)
    loss = model(torch.rand(16, 64)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    step += 1
    if step % 100 == 0:
        print("step", step, loss.item(), flush=True)
