"""Ranks of FSDP2 over Gloo that write checkpoints for test_dcp.py, or go on from one.

dcp_writer.py FOLDER: trains two steps on three ranks; writes FOLDER/nested and FOLDER/flat (model and AdamW),
FOLDER/odd (tensors of many dtypes and placements), the same values in *.pt, and next.pt: the model after a third step.
dcp_writer.py FOLDER resume CHECKPOINT: two ranks load CHECKPOINT and take that step; writes FOLDER/resumed.pt.
"""

import copy
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as multiprocessing
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

WHOLE = StateDictOptions(full_state_dict=True)


class Net(torch.nn.Module):
    """Odd sizes: some ranks hold nothing of some parameters."""

    def __init__(self):
        super().__init__()
        self.odd = torch.nn.Linear(3, 7)
        self.norm = torch.nn.BatchNorm1d(7)
        self.last = torch.nn.Linear(7, 2, bias=False)

    def forward(self, x):
        return self.last(torch.tanh(self.norm(self.odd(x))))


def make_run(seed):
    torch.manual_seed(seed)
    model = Net()
    for module in [model.odd, model.last, model]:
        fully_shard(module)
    groups = [
        {"params": list(model.odd.parameters()), "lr": 0.1},
        {"params": model.last.parameters(), "weight_decay": 0.0},
        {"params": model.norm.parameters()},
    ]
    return model, torch.optim.AdamW(groups, lr=0.01)


def step(model, optimizer, number):
    """The same batch on all ranks."""
    optimizer.zero_grad()
    model(torch.cos(torch.arange(15.0) + number).view(5, 3)).square().mean().backward()
    optimizer.step()


def whole(value):
    return value.full_tensor() if isinstance(value, DTensor) else value


def odd_tensors(mesh):
    """By name: what is written, whole and as it lies on this rank."""
    values = {
        f"of.{dtype}".replace("torch.", ""): torch.arange(10).to(dtype).view(5, 2)
        for dtype in [
            torch.float64,
            torch.float32,
            torch.bfloat16,
            torch.float16,
            torch.int64,
            torch.int32,
            torch.int16,
            torch.int8,
            torch.uint8,
            torch.bool,
        ]
    }
    values |= {
        "scalar": torch.tensor(2.5),
        "none": torch.zeros(0, 3),
        "one": torch.ones(1, 4),
        "columns": torch.rand(4, 5),
        "copies": torch.rand(3, 2),
        "plain": torch.rand(6),
        "transposed": torch.rand(4, 3).t(),
    }
    placements = {"columns": Shard(1), "copies": Replicate()}
    plain = ["scalar", "plain", "transposed"]
    placed = {
        name: value
        if name in plain
        else distribute_tensor(value, mesh, [placements.get(name, Shard(0))], src_data_rank=None)
        for name, value in values.items()
    }
    return values, placed


def write(folder):
    is_first = dist.get_rank() == 0
    model, optimizer = make_run(seed=1)
    for number in range(2):
        step(model, optimizer, number)
    for layout in ["nested", "flat"]:
        flat = layout == "flat"
        model_state = get_model_state_dict(model)
        optimizer_state = get_optimizer_state_dict(
            model, optimizer, options=StateDictOptions(flatten_optimizer_state_dict=flat)
        )
        state = {"model": model_state, "optim": optimizer_state, "step": 2}
        dcp.save(state, checkpoint_id=folder / layout)
        plain = torch.utils._pytree.tree_map(whole, copy.deepcopy(state))
        if is_first:
            torch.save(plain, folder / f"{layout}.pt")
    torch.manual_seed(5)
    values, placed = odd_tensors(init_device_mesh("cpu", (dist.get_world_size(),)))
    dcp.save(placed, checkpoint_id=folder / "odd")
    step(model, optimizer, 2)
    after = get_model_state_dict(model, options=WHOLE)
    if is_first:
        torch.save(values, folder / "odd.pt")
        torch.save(after, folder / "next.pt")


def resume(folder, checkpoint):
    model, optimizer = make_run(seed=2)
    state = {"model": get_model_state_dict(model), "optim": get_optimizer_state_dict(model, optimizer)}
    dcp.load(state, checkpoint_id=checkpoint)
    set_model_state_dict(model, state["model"])
    set_optimizer_state_dict(model, optimizer, state["optim"])
    step(model, optimizer, 2)
    after = get_model_state_dict(model, options=WHOLE)
    if dist.get_rank() == 0:
        torch.save(after, folder / "resumed.pt")


def run_rank(rank, size, arguments):
    torch.set_num_threads(1)
    folder = Path(arguments[0])
    store = dist.FileStore(str(folder / f"store-{size}"), size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    resume(folder, arguments[2]) if "resume" in arguments else write(folder)
    dist.destroy_process_group()


if __name__ == "__main__":
    ranks = 2 if "resume" in sys.argv else 3
    multiprocessing.start_processes(run_rank, args=(ranks, sys.argv[1:]), nprocs=ranks, start_method="fork")
