"""shard_placement_fn: parameters that are cut in other dimensions than the first one, beside FSDP2 and one process."""

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, set_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard

from package_beside import assert_close, assert_same, with_both
from package_ranks import run_ranks


def largest(parameter):
    """FSDP2's own tests cut the largest dimension."""
    return Shard(max(range(parameter.dim()), key=parameter.size))


def last(parameter):
    return Shard(-1)


class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up = nn.Linear(4, width)
        self.down = nn.Linear(width, 6)
        self.norm = nn.LayerNorm(6)
        self.mix = nn.Conv1d(6, 4, 4, padding=1)
        self.table = nn.Parameter(torch.randn(2, width, 6))

    def forward(self, x):
        x = torch.relu(self.up(x))
        x = self.norm(self.down(x) + x @ self.table.sum(0))
        return self.mix(x.mT)


def make(width):
    torch.manual_seed(5)
    return Net(width)


def shard(fsdp, net, placement, mesh=None):
    fsdp.fully_shard(net.up, mesh=mesh, shard_placement_fn=placement)
    fsdp.fully_shard(net, mesh=mesh, shard_placement_fn=placement)
    return net


def batch_of(rank, step):
    return torch.sin(torch.arange(3.0 * 5 * 4).view(3, 5, 4) * (0.2 + 0.1 * step) + rank)


def train(net, optimizer, batches, norm_type=2.0):
    losses = []
    for batch in batches:
        optimizer.zero_grad()
        loss = net(batch).square().mean()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(net.parameters(), 0.5, norm_type)
        losses.append((loss.detach(), norm.full_tensor() if hasattr(norm, "full_tensor") else norm))
        optimizer.step()
    return losses


def whole(tensors):
    return [tensor.detach().full_tensor() for tensor in tensors]


def trained(fsdp, rank, size, placement, shape):
    names = ("replicate", "shard")[-len(shape) :]
    net = shard(fsdp, make(8), placement, init_device_mesh("cpu", shape, mesh_dim_names=names))
    # FSDP2's parts of one dimension have the rank's shape, too, so what each rank holds is compared, not only the sum.
    result = [[(name, str(p.placements), p.shape, p.to_local().shape) for name, p in net.named_parameters()]]
    result.append([parameter.detach().to_local() for parameter in net.parameters()])
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.02)
    result.append(train(net, optimizer, [batch_of(rank, step) for step in range(3)]))
    result.append([parameter.grad.to_local() for parameter in net.parameters()])
    result.append([parameter.detach().to_local() for parameter in net.parameters()])
    result.append(whole(optimizer.state[parameter]["exp_avg_sq"] for parameter in net.parameters()))
    return result


@pytest.mark.parametrize("placement", [largest, last])
@pytest.mark.parametrize("shape", [(2,), (2, 2)])
def test_trains_as_with_fsdp2(placement, shape):
    ranks = torch.Size(shape).numel()
    for ours, theirs in run_ranks(ranks, with_both, trained, placement, shape):
        assert_close(ours, theirs)


def trained_unevenly(rank, size, placement, cut):
    """`size` ranks do not divide the width of 7."""
    import fsdp_cpp

    net = shard(fsdp_cpp, make(7).double(), placement)
    for name, parameter in net.named_parameters():
        dim = placement(parameter).dim % parameter.dim()
        chunks = dict(make(7).double().named_parameters())[name].detach().chunk(size, dim)
        own = chunks[rank] if rank < len(chunks) else chunks[0].narrow(dim, 0, 0)
        assert_same(parameter.detach().to_local().contiguous(), own.contiguous(), name)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.02)
    losses = train(net, optimizer, [batch_of(rank, step).double() for step in range(3)], cut)
    dist.all_reduce(mean := torch.stack([loss for loss, _ in losses]) / size)
    return [*mean], [norm for _, norm in losses], whole(net.parameters())


def trained_alone(size, norm_type):
    net = make(7).double()
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.02)
    batches = [torch.cat([batch_of(rank, step).double() for rank in range(size)]) for step in range(3)]
    losses = train(net, optimizer, batches, norm_type)
    return [loss for loss, _ in losses], [norm for _, norm in losses], [p.detach() for p in net.parameters()]


@pytest.mark.parametrize("size,norm_type", [(1, 2.0), (2, 2.0), (3, 2.0), (3, float("inf")), (4, 1.0)])
def test_ranks_need_not_divide_the_dimension(size, norm_type):
    want = trained_alone(size, norm_type)
    for result in run_ranks(size, trained_unevenly, largest, norm_type):
        assert_close(result, want)


def states(rank, size, folder):
    """States pass between cuts, through torch.distributed.checkpoint and through files of our own."""
    import fsdp_cpp

    def trained_net(placement):
        net = shard(fsdp_cpp, make(7), placement)
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.02)
        train(net, optimizer, [batch_of(rank, 0)])
        return net, optimizer

    def values(net, optimizer):
        return [
            {name: value.full_tensor() for name, value in net.state_dict().items()},
            whole(optimizer.state[parameter]["exp_avg"] for parameter in net.parameters()),
        ]

    for source, target in ((largest, None), (None, last), (last, largest)):
        net, optimizer = trained_net(source)
        want = values(net, optimizer)
        other, other_optimizer = trained_net(target)
        train(other, other_optimizer, [batch_of(rank, 3)])

        full = get_model_state_dict(net, options=StateDictOptions(full_state_dict=True))
        set_model_state_dict(other, full, options=StateDictOptions(full_state_dict=True))
        assert_same({name: value.full_tensor() for name, value in other.state_dict().items()}, want[0], "full")

        own = f"{folder}/own-{source}-{target}"
        fsdp_cpp.save(own, net, optimizer)
        train(other, other_optimizer, [batch_of(rank, 4)])
        fsdp_cpp.load(own, other, other_optimizer)
        assert_same(values(other, other_optimizer), want, "own files")

        train(other, other_optimizer, [batch_of(rank, 5)])
        dcp.save({"model": net.state_dict()}, checkpoint_id=f"{folder}/dcp-{source}-{target}")
        state = {"model": other.state_dict()}
        dcp.load(state, checkpoint_id=f"{folder}/dcp-{source}-{target}")
        assert_same({name: value.full_tensor() for name, value in other.state_dict().items()}, want[0], "DCP")


@pytest.mark.parametrize("size", [2, 3])
def test_states_pass_between_cuts(size, tmp_path):
    run_ranks(size, states, str(tmp_path))


def exchanged(rank, size, folder):
    """DCP's folders, from and to FSDP2."""
    import fsdp_cpp
    import torch.distributed.fsdp as fsdp2

    for writer, reader, name in ((fsdp_cpp, fsdp2, "ours"), (fsdp2, fsdp_cpp, "theirs")):
        net = shard(writer, make(8), largest)
        train(net, torch.optim.SGD(net.parameters(), lr=0.1), [batch_of(rank, 1)])
        dcp.save(net.state_dict(), checkpoint_id=f"{folder}/{name}")
        other = shard(reader, make(8), last)
        state = other.state_dict()
        dcp.load(state, checkpoint_id=f"{folder}/{name}")
        assert_same(whole(other.parameters()), whole(net.parameters()), name)


def test_folders_of_fsdp2(tmp_path):
    run_ranks(2, exchanged, str(tmp_path))


def written(rank, size):
    """Writes after sharding keep the rank's slices: to meta parameters, to whole ones, through views and DTensors."""
    import fsdp_cpp

    with torch.device("meta"):
        net = Net(7)
    shard(fsdp_cpp, net, largest)
    net.to_empty(device="cpu")
    reference = make(7)
    with torch.no_grad():
        for (name, parameter), value in zip(net.named_parameters(), reference.parameters(), strict=True):
            module = net.get_submodule(name.rpartition(".")[0])
            getattr(module, name.rpartition(".")[2]).copy_(value)
            assert_same(parameter.full_tensor(), value.detach(), name)
        net.table[:, 2:5].mul_(3)
        reference.table[:, 2:5].mul_(3)
        net.down.weight.data.zero_()
        reference.down.weight.zero_()
        dict(net.named_parameters())["up.weight"].copy_(torch.ones(7, 4))
        reference.up.weight.fill_(1)
        dict(net.named_parameters())["mix.weight"].add_(1)
        reference.mix.weight.add_(1)
    assert_same(whole(net.parameters()), [p.detach() for p in reference.parameters()])
    x = batch_of(0, 0)
    torch.testing.assert_close(net(x), reference(x))
    net(x).sum().backward()
    dict(net.named_parameters())["table"].grad = torch.ones(2, 7, 6)
    assert_same(dict(net.named_parameters())["table"].grad.full_tensor(), torch.ones(2, 7, 6))


@pytest.mark.parametrize("size", [1, 2, 3])
def test_writes_keep_the_slices_of_the_rank(size):
    run_ranks(size, written)


def mixed(rank, size):
    """Low precision, parameters kept after forward, accumulation, recomputation."""
    import fsdp_cpp
    from torch.utils.checkpoint import checkpoint

    def losses_of(placement):
        net = make(7)
        policy = fsdp_cpp.MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        fsdp_cpp.fully_shard(net.up, shard_placement_fn=placement, mp_policy=policy, reshard_after_forward=False)
        fsdp_cpp.fully_shard(net, shard_placement_fn=placement, mp_policy=policy)
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.02)
        losses = []
        for step in range(3):
            for micro_batch in range(2):
                net.set_requires_gradient_sync(micro_batch == 1)
                loss = (
                    checkpoint(net, batch_of(rank, 2 * step + micro_batch), use_reentrant=False).float().square().mean()
                )
                loss.backward()
                losses.append(loss.detach())
            optimizer.step()
            optimizer.zero_grad()
        return losses

    for one, other in zip(losses_of(largest), losses_of(None), strict=True):
        torch.testing.assert_close(one, other, rtol=2e-2, atol=1e-3)


def test_low_precision_accumulation_and_recomputation():
    run_ranks(2, mixed)


def matrices_with_muon(rank, size):
    import fsdp_cpp

    def after(placement):
        net = nn.Sequential(nn.Linear(6, 5, bias=False), nn.Linear(5, 7, bias=False))
        torch.manual_seed(2)
        for parameter in net.parameters():
            nn.init.normal_(parameter)
        fsdp_cpp.fully_shard(net, shard_placement_fn=placement)
        optimizer = torch.optim.Muon(net.parameters(), lr=0.02)
        for step in range(2):
            optimizer.zero_grad()
            net(batch_of(rank, step).reshape(-1, 6)).square().mean().backward()
            optimizer.step()
        return whole(net.parameters())

    assert_close(after(last), after(None))


def test_muon_gets_whole_matrices():
    run_ranks(2, matrices_with_muon)
