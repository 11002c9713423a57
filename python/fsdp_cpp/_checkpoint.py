"""save and load: checkpoints of a training run that are written by the library."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from fsdp_cpp._checkpoint_optimizer import OptimizerParts
from fsdp_cpp._groups import device_of, group_of
from fsdp_cpp._mirror import build_state_mirror
from fsdp_cpp._module import FSDPModule, state_of
from fsdp_cpp._sharded_parameter import ShardedParameter
from fsdp_cpp._tensor_parallel import split_spec
from fsdp_cpp._tree import is_root

_classes = torch.classes.fsdp_cpp

Optimizers = torch.optim.Optimizer | Iterable[torch.optim.Optimizer] | None


@dataclass(frozen=True)
class LoadedCheckpoint:
    """What :func:`load` returns."""

    #: The value that was passed to :func:`save` as ``extra``. Of a folder that another program wrote, such as
    #: ``fsdp train``: its record.
    extra: Any
    #: Whether the states of this rank's random generators were restored: as many ranks saved as now load.
    random_state: bool
    #: With ``strict=False``: what was not loaded, one item on each line; empty if everything was.
    report: str


def save(folder: str | os.PathLike[str], model: nn.Module, optimizer: Optimizers = None, *, extra: Any = None) -> None:
    """Saves a training run as one checkpoint of the library's own format (docs/checkpoints.md).

    When all ranks have returned, the folder is on the disk under its name, complete; an existing checkpoint is
    replaced in one step. Whatever happens before, an existing one stays as it was: an error on any rank is raised on
    all of them, and ranks that are killed leave at most a folder ``.NAME.tmp-…`` beside it, which may be removed. All
    data have checksums. Any number of ranks can load the folder, and the command ``fsdp`` can inspect and convert it.

    Saved are parameters, persistent buffers, the state and options of the optimizers, and the states of torch's random
    generators of each rank (not those of Python and NumPy). Gradients are not.

    Args:
        folder: the folder to write. All ranks must see the same file system.
        model: the module that fully_shard was called on last, the whole model.
        optimizer: an optimizer on ``model.parameters()`` or some of them, or several. Its state must consist of numbers
            and of tensors of the parameters' shapes, as that of all elementwise optimizers of torch.optim does.
        extra: anything that JSON has: the step, ``scheduler.state_dict()``, the position in the data. Rank 0's is
            saved.

    Raises:
        ValueError: ``model`` is not a model that was sharded as a whole.
        NotImplementedError: the state of the optimizer has another form; FullyShardedDataParallel.
        TypeError: ``extra`` has no JSON form.
        RuntimeError: a rank could not write, with its number, the file and the reason; a parameter has no values yet.

    Collective: all ranks call it, at the same point.
    """
    checkpoint, parts = _describe(model, optimizer)
    for parameter in model.parameters():
        if type(parameter) is ShardedParameter and parameter.is_meta:
            raise RuntimeError(f"fsdp_cpp: parameter '{parameter.fqn}' has no values yet: it is on the device meta")
    for name, state in _random_state(model).items():
        checkpoint.set_of_rank(name, state)
    record = {"extra": extra, "fsdp_cpp": parts.record()}
    checkpoint.save(os.fspath(folder), json.dumps(record, allow_nan=False))


def load(
    folder: str | os.PathLike[str], model: nn.Module, optimizer: Optimizers = None, *, strict: bool = True
) -> LoadedCheckpoint:
    """Loads a checkpoint of :func:`save`, of ``fsdp train`` or of ``fsdp convert`` into a sharded model.

    Each rank reads and checks the parts that it holds; the number of ranks, the units and the cut may differ from those
    that saved. Training continues as it would have without the interruption. Everything is checked before anything is
    changed. After an error while data are read, the values of model and optimizer are undefined.

    Args:
        folder: the checkpoint.
        model: the module that fully_shard was called on last. It may be on the device meta still.
        optimizer: the optimizers, in the order in which they were saved. None: their state is not loaded.
        strict: whether names, shapes and dtypes must be the same on both sides. If not, what does not fit is left as
            it is, and reported.

    Returns:
        ``extra`` of :func:`save`, whether random generators were restored, and with ``strict=False`` the report.

    Raises:
        ValueError, NotImplementedError: as :func:`save`.
        RuntimeError: the folder is no checkpoint, a file is missing or damaged (the message names it), or parameters or
            the optimizer do not fit (it lists all of them).

    Collective: all ranks call it, at the same point.
    """
    checkpoint, parts = _describe(model, optimizer)
    checkpoint.load(os.fspath(folder), strict)
    _note_writes(model)
    user = json.loads(checkpoint.user())
    is_own = isinstance(user, dict) and "fsdp_cpp" in user
    parts.take_back(checkpoint, user["fsdp_cpp"] if is_own else {})
    restored = _set_random_state(model, checkpoint.of_rank())
    return LoadedCheckpoint(user["extra"] if is_own else user, restored, checkpoint.report().strip("\n"))


def _describe(model: nn.Module, optimizer: Optimizers) -> tuple[torch.ScriptObject, OptimizerParts]:
    """A checkpoint of the library's, with the optimizer's state, and the parts that this state was taken from."""
    _check(model)
    parts = OptimizerParts(_listed(optimizer))
    state = state_of(model)
    checkpoint = _classes.Checkpoint(state.sharded, build_state_mirror(model), _world(model))
    parts.hand_over(checkpoint)
    return checkpoint, parts


def _listed(optimizer: Optimizers) -> list[torch.optim.Optimizer]:
    if optimizer is None:
        return []
    return [optimizer] if isinstance(optimizer, torch.optim.Optimizer) else list(optimizer)


def _check(model: nn.Module) -> None:
    if any(getattr(type(module), "is_fsdp_cpp_wrapper", False) for module in model.modules()):
        raise NotImplementedError(
            "fsdp_cpp: save and load take models of fully_shard; those of FullyShardedDataParallel are saved by their "
            "state dicts"
        )
    if not isinstance(model, FSDPModule) or state_of(model).sharded is None or not is_root(model):
        raise ValueError(
            f"fsdp_cpp: save and load take the whole model, on which fully_shard was called last; {type(model)} is not "
            "one, or has no parameters"
        )
    _check_parts(model)


def _check_parts(model: nn.Module) -> None:
    for name, parameter in model.named_parameters():
        if type(parameter) is ShardedParameter and split_spec(parameter.whole) is not None:
            raise NotImplementedError(
                f"fsdp_cpp: save and load: parameter '{name}' is split by tensor parallelism; use "
                "torch.distributed.checkpoint"
            )


def _mesh(model: nn.Module) -> Any:
    return next(one for one in model.parameters() if type(one) is ShardedParameter)._spec.mesh


def _world(model: nn.Module) -> torch.ScriptObject:
    """The communicator over all ranks of the model's mesh."""
    mesh, backend = _mesh(model), state_of(model).arguments.engine_options.backend
    if mesh.ndim > 1:
        is_all = mesh.size() == dist.get_world_size()
        mesh = init_device_mesh(mesh.device_type, (mesh.size(),)) if is_all else mesh._flatten()
    return group_of(mesh, 0, backend)


def _note_writes(model: nn.Module) -> None:
    """Counts the library's writes to shards, for gathered copies and for parameters that were on meta."""
    leaves = [parameter.leaf for parameter in model.parameters() if type(parameter) is ShardedParameter]
    torch.autograd.graph.increment_version(leaves)


def _random_state(model: nn.Module) -> dict[str, torch.Tensor]:
    """The states of torch's generators, under the names that ``fsdp train`` gives them."""
    states = {"random_state.cpu": torch.get_rng_state()}
    device = device_of(_mesh(model))
    if device.type == "cuda":
        states["random_state.cuda"] = torch.cuda.get_rng_state(device)
    return states


def _set_random_state(model: nn.Module, states: dict[str, torch.Tensor]) -> bool:
    device = device_of(_mesh(model))
    if "random_state.cpu" in states:
        torch.set_rng_state(states["random_state.cpu"])
    if device.type == "cuda" and "random_state.cuda" in states:
        torch.cuda.set_rng_state(states["random_state.cuda"], device)
    return "random_state.cpu" in states
