"""Checks that the two views of a sharded parameter agree: module.weight (whole) and module.parameters() (this rank's
rows)."""

import torch
from torch import nn


def sharded_linear(rows, columns, backend="gloo", **options):
    """A model whose only parameter has this shape, gathered once and kept gathered, so that a write that passes the
    engine by leaves an old copy behind. Returns the model, the whole parameter and the sharded one."""
    from fsdp_cpp import EngineOptions, fully_shard

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(columns, rows, bias=False))
    fully_shard(model, reshard_after_forward=False, engine_options=EngineOptions(backend=backend), **options)
    return model, model[0].weight, next(model.parameters())


def own_rows(full, sharded):
    """This rank's rows of a tensor that every rank has whole."""
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(full, sharded.device_mesh, sharded.placements, src_data_rank=None)._local_tensor


def drift(holder, name, whole, sharded):
    """What the two views of a parameter disagree in, other than values; empty if they agree."""
    from fsdp_cpp import ShardedParameter

    native = torch.Tensor.requires_grad.__get__(sharded)
    local, leaf = sharded._local_tensor, sharded.leaf
    checks = {
        "listed": holder._parameters.raw(name) is sharded and dict(holder.named_parameters())[name] is sharded,
        "attribute": getattr(holder, name) is whole and holder._parameters[name] is whole and sharded.whole is whole,
        "class": type(sharded) is ShardedParameter
        and isinstance(sharded, nn.Parameter)
        and type(whole) is nn.Parameter,
        "dtype": sharded.dtype == whole.dtype == leaf.dtype == local.dtype,
        "device": sharded.device == whole.device == leaf.device == local.device,
        "shape": sharded.shape == whole.shape and sharded.stride() == whole.stride(),
        "local shape": local.shape[1:] == whole.shape[1:] and local.numel() == leaf.numel(),
        "memory": torch._C._is_alias_of(local, leaf) and local.data_ptr() == leaf.data_ptr(),
        "requires_grad": sharded.requires_grad == whole.requires_grad == native,
        "leaf": sharded.is_leaf and whole.is_leaf,
    }
    return [what for what, agrees in checks.items() if not agrees]


def same(left, right):
    return torch.allclose(left, right, rtol=1e-5, atol=1e-6, equal_nan=True)


def assert_values(whole, sharded, expected):
    """Both views have these values. Collective."""
    local = sharded._local_tensor.detach()
    assert same(local, own_rows(expected, sharded)), (local, own_rows(expected, sharded))
    assert same(whole.detach(), expected), (whole.detach(), expected)
