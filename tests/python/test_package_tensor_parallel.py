"""Models that torch's tensor parallelism has split, sharded over the rest of the mesh, beside FSDP2."""

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, set_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.utils.checkpoint import checkpoint

from package_beside import Block, assert_close, assert_same, error_of, with_both
from package_ranks import run_ranks

DIM, HIDDEN, BLOCKS = 12, 24, 2


class Net(nn.Module):
    """With positions, a parameter that no plan can name, and so is sharded whole."""

    def __init__(self, with_positions, outputs=7):
        super().__init__()
        self.positions = nn.Parameter(torch.randn(6, DIM)) if with_positions else None
        self.blocks = nn.ModuleList(Block(DIM, HIDDEN) for _ in range(BLOCKS))
        self.head = nn.Linear(DIM, outputs)

    def forward(self, x):
        if self.positions is not None:
            x = x + self.positions
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def split(net, mesh, sequence):
    """With `sequence`, each rank has a part of the sequence between layers."""
    between = Shard(1) if sequence else Replicate()
    plan = {"head": ColwiseParallel(input_layouts=between, output_layouts=Replicate())}
    if sequence:
        plan["blocks.0"] = PrepareModuleInput(
            input_layouts=(Replicate(),), desired_input_layouts=(between,), use_local_output=True
        )
    for i in range(BLOCKS):
        plan[f"blocks.{i}.up"] = ColwiseParallel(input_layouts=between)
        plan[f"blocks.{i}.down"] = RowwiseParallel(output_layouts=between)
        if sequence:
            plan[f"blocks.{i}.norm"] = SequenceParallel()
    return parallelize_module(net, mesh, plan)


def tp_dim(parameter):
    """The dimension that tensor parallelism has split; None if it has split none."""
    placements = parameter.placements if isinstance(parameter, DTensor) else ()
    return next((placement.dim for placement in placements if isinstance(placement, Shard)), None)


def beside_tp(parameter):
    dim = tp_dim(parameter)
    return Shard(0 if dim is None else parameter.dim() - 1 - dim)


def within_tp(parameter):
    return Shard(tp_dim(parameter) or 0)


def make(fsdp, shape, names, sequence=False, outputs=7, placement=None):
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
    torch.manual_seed(3)
    net = split(Net(with_positions=not sequence, outputs=outputs), mesh["tp"], sequence)
    data = mesh[names[0]] if len(names) == 2 else mesh[names[:2]]
    for block in net.blocks:
        fsdp.fully_shard(block, mesh=data, shard_placement_fn=placement)
    fsdp.fully_shard(net, mesh=data, shard_placement_fn=placement)
    return net, mesh


def batch_of(mesh, step):
    data_rank = dist.get_rank() // mesh["tp"].size()
    return torch.cos(torch.arange(3 * 6 * DIM).view(3, 6, DIM) * (0.1 + 0.3 * step) + data_rank)


def trained(fsdp, rank, size, shape, names, sequence, norm_type, outputs=7, placement=None):
    """Placements, losses, norms, and all parts and whole values of parameters, gradients and the optimizer's state."""
    net, mesh = make(fsdp, shape, names, sequence, outputs, placement)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    result = [[(name, str(parameter.placements), parameter.shape) for name, parameter in net.named_parameters()]]
    for step in range(3):
        optimizer.zero_grad()
        loss = net(batch_of(mesh, step)).square().mean()
        loss.backward()
        result.append(loss.detach())
        if sequence:  # torch takes no norm over parameters of different meshes
            result.append(torch.nn.utils.clip_grad_norm_(net.parameters(), 0.1, norm_type).full_tensor())
        result.append([parameter.grad.full_tensor() for parameter in net.parameters()])
        optimizer.step()
    result.append([parameter.detach().to_local() for parameter in net.parameters()])
    result.append([parameter.full_tensor().detach() for parameter in net.parameters()])
    result.append([optimizer.state[parameter]["exp_avg"].full_tensor() for parameter in net.parameters()])
    return result


@pytest.mark.parametrize("sequence,norm_type", [(False, 2.0), (True, 2.0), (True, float("inf"))])
def test_trains_as_with_fsdp2(sequence, norm_type):
    for ours, theirs in run_ranks(4, with_both, trained, (2, 2), ("dp", "tp"), sequence, norm_type):
        assert_close(ours, theirs)


@pytest.mark.parametrize("placement", [beside_tp, within_tp])
def test_fully_shard_cuts_other_dimensions(placement):
    for ours, theirs in run_ranks(4, with_both, trained, (2, 2), ("dp", "tp"), True, 2.0, 8, placement):
        assert_close(ours, theirs)


@pytest.mark.parametrize("ranks,shape", [(2, (1, 2)), (2, (2, 1)), (3, (1, 3))])
def test_trains_over_other_meshes(ranks, shape):
    for ours, theirs in run_ranks(ranks, with_both, trained, shape, ("dp", "tp"), False, 2.0):
        assert_close(ours, theirs)


def test_trains_with_replicas():
    for ours, theirs in run_ranks(4, with_both, trained, (2, 1, 2), ("replicate", "shard", "tp"), True, 1.0):
        assert_close(ours, theirs)


def clipped(rank, size, norm_type):
    """The norm over parameters of different meshes, and that of the whole gradients."""
    import fsdp_cpp

    net, mesh = make(fsdp_cpp, (2, 2), ("dp", "tp"))
    net(batch_of(mesh, 0)).square().mean().backward()
    whole = torch.cat([parameter.grad.full_tensor().flatten() for parameter in net.parameters()])
    return torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0, norm_type), whole.norm(norm_type)


@pytest.mark.parametrize("norm_type", [1.0, 2.0, float("inf")])
def test_norms_over_parameters_of_different_meshes(norm_type):
    for norm, expected in run_ranks(4, clipped, norm_type):
        torch.testing.assert_close(norm, expected)


def uses(fsdp, rank, size):
    """What a user may do with the module and its parameters."""
    net, mesh = make(fsdp, (2, 2), ("dp", "tp"), outputs=8)  # torch distributes no whole tensor unevenly over both
    up = net.blocks[0].up
    result = [isinstance(up.weight, DTensor), up.weight.shape, "blocks.0.up.weight" in net.state_dict()]
    with torch.no_grad():
        for parameter in net.parameters():  # before forward, after which FSDP2's are whole copies
            parameter.mul_(2)
        result.append(net(batch_of(mesh, 0)))
    net.reshard()
    options = StateDictOptions(full_state_dict=True)
    whole = get_model_state_dict(net, options=options)
    result.append(whole)
    set_model_state_dict(net, {**whole, "head.bias": torch.zeros(8)}, options=options)
    result.append([parameter.detach().to_local() for parameter in net.parameters()])
    net.blocks[1].requires_grad_(False)
    net(batch_of(mesh, 1)).square().mean().backward()
    result.append([None if one.grad is None else one.grad.full_tensor() for one in net.parameters()])
    return result


def test_is_used_as_with_fsdp2():
    for ours, theirs in run_ranks(4, with_both, uses):
        assert_close(ours, theirs)


def from_meta(fsdp, rank, size):
    """As torchtitan makes models: on meta, split, sharded, and then given memory and values."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    with torch.device("meta"):
        net = split(Net(with_positions=False), mesh["tp"], sequence=False)
    for block in net.blocks:
        fsdp.fully_shard(block, mesh=mesh["dp"])
    fsdp.fully_shard(net, mesh=mesh["dp"])
    net.to_empty(device="cpu")
    with torch.no_grad():
        for i, parameter in enumerate(net.parameters()):
            nn.init.constant_(parameter, 0.1 * i)
        for i, block in enumerate(net.blocks):
            block.up.weight.fill_(0.25 + i)
            nn.init.constant_(block.down.weight, 0.5)
            block.up.bias.add_(1)
        torch.nn.init.ones_(net.head.bias)
    values = [parameter.full_tensor().detach() for parameter in net.parameters()]
    return values, net(batch_of(mesh, 0)).detach()


def test_models_from_meta():
    for ours, theirs in run_ranks(4, with_both, from_meta):
        assert_close(ours, theirs)


def remade(fsdp, rank, size):
    """Both kinds of activation checkpointing, and accumulation without reductions."""
    net, mesh = make(fsdp, (2, 2), ("dp", "tp"), sequence=True)
    for i, block in enumerate(net.blocks):
        forward = block.forward
        block.forward = lambda x, forward=forward, i=i: checkpoint(forward, x, use_reentrant=bool(i))
    for step in range(3):
        net.set_requires_gradient_sync(step == 2)
        net(batch_of(mesh, step).requires_grad_()).square().mean().backward()
    return [parameter.grad.full_tensor() for parameter in net.parameters()]


def test_recomputation_and_accumulation():
    for ours, theirs in run_ranks(4, with_both, remade):
        assert_close(ours, theirs)


def save(fsdp, rank, size, folder):
    net, _ = make(fsdp, (2, 2), ("dp", "tp"))
    torch.distributed.checkpoint.save({"model": get_model_state_dict(net)}, checkpoint_id=folder)
    return [parameter.full_tensor().detach() for parameter in net.parameters()]


def load(fsdp, rank, size, folder, shape):
    net, _ = make(fsdp, shape, ("dp", "tp"))
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.zero_()
    state = {"model": get_model_state_dict(net)}
    torch.distributed.checkpoint.load(state, checkpoint_id=folder)
    set_model_state_dict(net, state["model"])
    return [parameter.full_tensor().detach() for parameter in net.parameters()]


def exchanged(rank, size, folder):
    """From each side to the other, over another mesh."""
    import fsdp_cpp
    import torch.distributed.fsdp as fsdp2

    saved = save(fsdp_cpp, rank, size, f"{folder}/ours")
    return (
        saved,
        load(fsdp2, rank, size, f"{folder}/ours", (1, 4)),
        save(fsdp2, rank, size, f"{folder}/theirs"),
        load(fsdp_cpp, rank, size, f"{folder}/theirs", (4, 1)),
    )


def test_checkpoints_are_exchanged_with_fsdp2(tmp_path):
    for saved, by_fsdp2, saved_by_fsdp2, loaded in run_ranks(4, exchanged, str(tmp_path)):
        assert_same(by_fsdp2, saved)
        assert_same(loaded, saved_by_fsdp2)


def refused(rank, size):
    import fsdp_cpp

    mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("dp", "tp"))
    other = init_device_mesh("cpu", (2,))
    net = split(Net(with_positions=False), mesh["tp"], sequence=False)
    weight = net.head.weight
    errors = [error_of(lambda one=one: fsdp_cpp.fully_shard(net, mesh=one)) for one in (other, mesh, mesh["tp"])]
    assert net.head.weight is weight  # nothing has changed
    fsdp_cpp.fully_shard(net, mesh=mesh["dp"])
    errors.append(error_of(lambda: fsdp_cpp.save("nowhere", net)))
    return errors


def test_what_is_refused():
    for *other_meshes, own_checkpoint in run_ranks(2, refused):
        for error in other_meshes:
            assert error[0] == "ValueError" and "which is no dimension beside" in error[1], error
        assert own_checkpoint[0] == "NotImplementedError" and "split by tensor parallelism" in own_checkpoint[1]
