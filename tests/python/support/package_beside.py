"""Runs a function with fsdp_cpp and with PyTorch's FSDP2 on the same ranks, and compares what it returns.

def behaviour(fsdp, rank, size): ...     # fsdp: the package fsdp_cpp, or torch.distributed.fsdp
assert_same_as_fsdp2(2, behaviour)
"""

import torch
from torch import nn

from package_ranks import run_ranks


def assert_same_as_fsdp2(size, function, *args):
    """Asserts that the function returns the same with both, to the bit, on each of `size` ranks. Returns ours."""
    results = run_ranks(size, with_both, function, *args)
    for rank, (ours, theirs) in enumerate(results):
        assert_same(ours, theirs, f"rank {rank}")
    return [ours for ours, _ in results]


def with_both(rank, size, function, *args):
    import fsdp_cpp
    import torch.distributed.fsdp as fsdp2

    return function(fsdp_cpp, rank, size, *args), function(fsdp2, rank, size, *args)


def assert_same(ours, theirs, where=""):
    """Asserts that two nested values are equal: tensors to the bit, with their dtypes."""
    if isinstance(theirs, dict):
        assert isinstance(ours, dict) and list(ours) == list(theirs), f"{where}: {list(ours)} != {list(theirs)}"
        for key, value in theirs.items():
            assert_same(ours[key], value, f"{where}[{key!r}]")
    elif isinstance(theirs, (list, tuple)):
        assert len(ours) == len(theirs), f"{where}: lengths {len(ours)} and {len(theirs)}"
        for index, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            assert_same(one, other, f"{where}[{index}]")
    elif isinstance(theirs, torch.Tensor):
        assert isinstance(ours, torch.Tensor), f"{where}: {type(ours)}"
        assert ours.dtype == theirs.dtype and ours.shape == theirs.shape, f"{where}: {ours.dtype} {theirs.dtype}"
        if not torch.equal(ours, theirs):
            difference = (ours.double() - theirs.double()).abs().max()
            raise AssertionError(f"{where}: differs by up to {difference}")
    else:
        assert ours == theirs, f"{where}: {ours!r} != {theirs!r}"


def assert_close(ours, theirs, where=""):
    """Like :func:`assert_same`, for tensors of which both sides add up sums in different orders."""
    if isinstance(theirs, torch.Tensor):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6, msg=lambda text: f"{where}: {text}")
    elif isinstance(theirs, (list, tuple)):
        assert len(ours) == len(theirs), where
        for i, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            assert_close(one, other, f"{where}[{i}]")
    else:
        assert_same(ours, theirs, where)


# -- models --


class Block(nn.Module):
    """A residual block with odd sizes."""

    def __init__(self, dim=13, hidden=29, bias=True):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.up = nn.Linear(dim, hidden, bias=bias)
        self.down = nn.Linear(hidden, dim, bias=bias)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Model(nn.Module):
    """Token embedding, blocks, and a head, whose weight may be the embedding's."""

    def __init__(self, blocks=2, tied=False, dim=13, tokens=17):
        super().__init__()
        self.embedding = nn.Embedding(tokens, dim)
        self.blocks = nn.ModuleList(Block(dim) for _ in range(blocks))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, tokens, bias=False)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, tokens):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def make_model(seed=3, **options):
    torch.manual_seed(seed)
    return Model(**options)


def make_batch(step, rank, tokens=17):
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randint(0, tokens, (3, 5), generator=generator)


def shard_model(fsdp, model, **options):
    """Shards the blocks, then the model."""
    for block in model.blocks:
        fsdp.fully_shard(block, **options)
    return fsdp.fully_shard(model, **options)


def loss_of(model, tokens):
    return nn.functional.cross_entropy(model(tokens).flatten(0, 1).float(), tokens.flatten())


# -- results --


def full(tensor):
    """A copy of all of a tensor that may be a DTensor."""
    return (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).detach().clone()


def parameters_of(model):
    return {name: full(parameter) for name, parameter in model.named_parameters()}


def gradients_of(model):
    return {
        name: None if parameter.grad is None else full(parameter.grad) for name, parameter in model.named_parameters()
    }


def train(model, steps, rank, optimizer, loss=loss_of):
    """Trains on this rank's batches. Returns losses, the last gradients, and parameters."""
    losses, gradients = [], {}
    for step in range(steps):
        value = loss(model, make_batch(step, rank))
        value.backward()
        gradients = gradients_of(model)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(value.item())
    return losses, gradients, parameters_of(model)


def error_of(action):
    """The type of the exception that an action raises, and its text; None if there is none."""
    try:
        action()
    except Exception as error:
        return type(error).__name__, str(error)
    return None
