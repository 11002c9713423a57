"""A plain loop of training: two calls of fully_shard, and the rest as in one process.

torchrun --nproc-per-node 2 examples/python/first.py
"""

import torch
from fsdp_cpp import fully_shard
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 1))
for layer in (model[0], model[2]):
    fully_shard(layer)
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
inputs = torch.randn(128, 64)
for step in range(30):
    loss = (model(inputs)[:, 0] - inputs.sum(1)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if step == 0:
        first_loss = loss.item()

# The check of this example: it has learned, and this rank holds its part of each parameter only.
held, whole = sum(p.to_local().numel() for p in model.parameters()), sum(p.numel() for p in model.parameters())
ranks = torch.distributed.get_world_size()
assert loss.item() < first_loss / 5, (first_loss, loss.item())
assert abs(held - whole / ranks) < 300, (held, whole)
if torch.distributed.get_rank() == 0:
    print(f"loss {first_loss:.3f} -> {loss.item():.3f}; rank 0 of {ranks} holds {held} of {whole} parameters")
torch.distributed.destroy_process_group()
