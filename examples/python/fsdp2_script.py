"""A script for PyTorch's FSDP2, converted: README.md in this folder has the difference.

torchrun --nproc-per-node 2 examples/python/fsdp2_script.py
"""

import torch
import torch.distributed as dist
from fsdp_cpp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, set_model_state_dict
from torch.distributed.device_mesh import init_device_mesh

LAYER = {"d_model": 32, "nhead": 4, "dim_feedforward": 64, "dropout": 0.0, "batch_first": True}


def make_model():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Embedding(50, 32), *(nn.TransformerEncoderLayer(**LAYER) for _ in range(3)), nn.Linear(32, 50)
    )


def shard(model):
    options = {
        "mesh": init_device_mesh("cpu", (dist.get_world_size(),)),
        "mp_policy": MixedPrecisionPolicy(param_dtype=torch.float32, reduce_dtype=torch.float32),
    }
    for layer in model[1:-1]:
        fully_shard(layer, reshard_after_forward=True, **options)
    return fully_shard(model, **options)


def train(model, steps):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(steps):
        for part in range(2):  # accumulates over two batches, and reduces once
            model.set_requires_gradient_sync(part == 1)
            ids = (torch.arange(8)[:, None] + torch.arange(12) + 7 * (2 * step + part) + dist.get_rank()) % 50
            loss = nn.functional.cross_entropy(model(ids).flatten(0, 1), (ids.flatten() + 1) % 50)
            (loss / 2).backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return loss.detach(), norm.full_tensor()


def main():
    dist.init_process_group("gloo")
    model = shard(make_model())
    assert isinstance(model, FSDPModule)
    loss, norm = train(model, steps=8)
    dist.all_reduce(loss)

    # The check of this example: a second model that gets the first one's state dict computes the same.
    whole = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    other = shard(make_model())
    set_model_state_dict(other, whole, options=StateDictOptions(full_state_dict=True))
    ids = torch.arange(12)[None]
    assert torch.equal(model(ids), other(ids))
    assert loss < 4 * dist.get_world_size(), loss
    if dist.get_rank() == 0:
        print(f"loss {loss.item():.4f}, gradient norm {norm.item():.4f} after 8 steps")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
