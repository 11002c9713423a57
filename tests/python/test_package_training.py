"""fsdp_cpp.fully_shard in plain loops of training, beside one process."""

import pytest
import torch
from torch import nn

from package_ranks import run_ranks


def make_net(seed=0, bias=True):
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(15, 33, bias=bias), nn.GELU(), nn.Linear(33, 33), nn.LayerNorm(33), nn.Linear(33, 7, bias=bias)
    )


def batch(step, rank=0):
    torch.manual_seed(1000 * step + rank)
    return torch.randn(4, 15)


def shard(net, **options):
    from fsdp_cpp import fully_shard

    for layer in (net[0], net[2]):
        fully_shard(layer, **options)
    return fully_shard(net, **options)


def train(net, batches, make_optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-2)):
    """Trains and returns the losses."""
    optimizer = make_optimizer(net.parameters())
    losses = []
    for inputs in batches:
        loss = net(inputs).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def whole(net):
    """The parameters of a net, sharded or not, as whole tensors."""
    return {name: p.full_tensor() if hasattr(p, "full_tensor") else p.detach() for name, p in net.named_parameters()}


def same_batches(rank, size, backend):
    from fsdp_cpp import EngineOptions

    sharded = shard(make_net(), engine_options=EngineOptions(backend=backend))
    losses = train(sharded, [batch(step) for step in range(5)])
    return losses, whole(sharded), {name: p.to_local().shape for name, p in sharded.named_parameters()}


@pytest.mark.parametrize("backend", ["shm", "gloo"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_training_on_one_batch_equals_one_process_to_the_bit(ranks, backend):
    plain = make_net()
    expected = train(plain, [batch(step) for step in range(5)])
    for losses, parameters, _ in run_ranks(ranks, same_batches, backend):
        assert losses == expected
        for name, parameter in plain.named_parameters():
            assert torch.equal(parameters[name], parameter), name


def own_batches(rank, size):
    sharded = shard(make_net())
    train(sharded, [batch(step, rank) for step in range(5)])
    return whole(sharded)


def test_training_on_batches_of_three_ranks_equals_one_process():
    plain = make_net()
    optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-2)
    for step in range(5):
        for rank in range(3):
            (plain(batch(step, rank)).square().mean() / 3).backward()
        optimizer.step()
        optimizer.zero_grad()
    results = run_ranks(3, own_batches)
    for name, parameter in plain.named_parameters():
        torch.testing.assert_close(results[0][name], parameter.detach(), rtol=1e-4, atol=1e-6)
        assert torch.equal(results[0][name], results[2][name]), name


def placements(rank, size):
    from torch.distributed.tensor import DTensor, Shard, distribute_tensor

    net = make_net()
    mesh_values = {name: p.detach().clone() for name, p in net.named_parameters()}
    shard(net)
    for name, parameter in net.named_parameters():
        assert isinstance(parameter, DTensor) and isinstance(parameter, nn.Parameter), name
        assert parameter.placements == (Shard(0),), name
        expected = distribute_tensor(mesh_values[name], parameter.device_mesh, [Shard(0)])
        assert torch.equal(parameter.to_local(), expected.to_local()), name
        assert parameter.shape == expected.shape and parameter.stride() == expected.stride(), name
    assert type(net[0]).__name__ == "FSDPLinear" and isinstance(net[0], nn.Linear)
    assert torch.equal(net[0].weight, mesh_values["0.weight"])  # whole, outside forward as well
    assert type(net[0].weight) is nn.Parameter


@pytest.mark.parametrize("ranks", [2, 3])
def test_parameters_are_the_rows_that_distribute_tensor_gives(ranks):
    run_ranks(ranks, placements)


def blocks_with_all_parameters(rank, size):
    from fsdp_cpp import MixedPrecisionPolicy, fully_shard

    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    net = nn.Sequential(nn.Linear(15, 7), nn.Linear(7, 5))
    for layer in net:
        fully_shard(layer, reshard_after_forward=True, mp_policy=policy)
    fully_shard(net, mp_policy=policy)  # as accelerate calls it
    assert net(batch(0)).dtype == torch.bfloat16
    with pytest.raises(ValueError, match="should be a factor of 2"):
        fully_shard(nn.Sequential(fully_shard(nn.Linear(3, 3))), reshard_after_forward=3)


def test_a_model_whose_blocks_have_all_parameters_takes_their_options():
    run_ranks(2, blocks_with_all_parameters)
