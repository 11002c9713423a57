"""Training with fsdp_cpp beside FSDP2, to the bit: reshard_after_forward, meshes, accumulation, several models."""

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from package_beside import (
    assert_same_as_fsdp2,
    full,
    gradients_of,
    loss_of,
    make_batch,
    make_model,
    parameters_of,
    run_ranks,
    shard_model,
    train,
)


def adamw(model, **options):
    return torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1, **options)


def trained(fsdp, rank, size, options):
    model = shard_model(fsdp, make_model(), **options)
    return train(model, 3, rank, adamw(model))


@pytest.mark.parametrize("reshard", [None, True, False, 1, 2])
def test_reshard_after_forward(reshard):
    assert_same_as_fsdp2(2, trained, {"reshard_after_forward": reshard})


def offloaded(fsdp, rank, size):
    # PyTorch pins memory even where there is no accelerator to copy to, which fails.
    pinned = fsdp.CPUOffloadPolicy(pin_memory=False)
    return trained(fsdp, rank, size, {"offload_policy": pinned})


def test_cpu_offload():
    assert_same_as_fsdp2(2, offloaded)


def hybrid(fsdp, rank, size):
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    results = []
    for reshard in (None, True, False):
        model = shard_model(fsdp, make_model(), mesh=mesh, reshard_after_forward=reshard)
        optimizer = adamw(model)
        results.append(train(model, 2, rank, optimizer))
        results.append([(p.to_local().clone(), str(p.placements)) for p in model.parameters()])
        results.append(accumulate(model, rank, [(False, True), (True, False), (True, True)]))
    return results


def accumulate(model, rank, switches):
    """Backward passes with (requires_gradient_sync, requires_all_reduce); gradients after the last one."""
    for step, (sync, all_reduce) in enumerate(switches):
        model.set_requires_gradient_sync(sync)
        if sync:
            model.set_requires_all_reduce(all_reduce)
        model.set_is_last_backward(step == len(switches) - 1)
        loss_of(model, make_batch(step, rank)).backward()
    result = gradients_of(model)
    model.zero_grad()
    return result


def test_hybrid_sharding_of_two_by_two_ranks():
    assert_same_as_fsdp2(4, hybrid)


def accumulated(fsdp, rank, size):
    results = []
    for reshard in (True, False):
        model = shard_model(fsdp, make_model(tied=True), reshard_after_forward=reshard)
        for _ in range(2):
            results.append(accumulate(model, rank, [(False, True), (False, True), (True, True)]))
        # Without communication first, then two backward passes that reduce and add up.
        results.append(accumulate(model, rank, [(False, True), (True, True), (True, True)]))
    return results


def test_gradient_accumulation():
    assert_same_as_fsdp2(2, accumulated)


def clipped(fsdp, rank, size, norm_type):
    model = shard_model(fsdp, make_model())
    loss_of(model, make_batch(0, rank)).backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05, norm_type=norm_type)
    return float(full(norm)), gradients_of(model)


@pytest.mark.parametrize("norm_type", [1, 2, float("inf")])
def test_clip_grad_norm(norm_type):
    assert_same_as_fsdp2(2, clipped, norm_type)


def group_of_modules(fsdp, rank, size):
    model = make_model(blocks=3)
    fsdp.fully_shard([model.blocks[0], model.blocks[1]])
    fsdp.fully_shard([model.norm, model.head], reshard_after_forward=False)
    assert fsdp.fully_shard(model) is model
    names = [type(module).__name__ for module in (model.blocks[0], model.blocks[2], model.norm, model)]
    return names, train(model, 3, rank, adamw(model))


def test_list_of_modules_is_one_unit():
    assert_same_as_fsdp2(2, group_of_modules)


def nested_list(fsdp, rank, size):
    net = nn.Sequential(nn.Linear(5, 5), nn.Sequential(nn.Linear(5, 5), nn.ReLU()))
    returned = fsdp.fully_shard([net[1], net[1][0]])
    return isinstance(returned, list), type(net[1]).__name__, type(net[1][0]).__name__


def test_a_list_drops_modules_below_others_of_it():
    assert_same_as_fsdp2(1, nested_list)


def prefetched(fsdp, rank, size):
    model = shard_model(fsdp, make_model(blocks=4))
    blocks = list(model.blocks)
    for index, block in enumerate(blocks):
        block.set_modules_to_forward_prefetch(blocks[index + 1 : index + 3])
        block.set_modules_to_backward_prefetch(blocks[max(index - 2, 0) : index][::-1])
    model.set_modules_to_forward_prefetch(blocks[:1])
    return train(model, 3, rank, adamw(model))


def test_prefetch_lists():
    assert_same_as_fsdp2(2, prefetched)


def adversaries(fsdp, rank, size):
    """Two models that train each other, each with its own optimizer and with parts of the other's graph."""
    torch.manual_seed(5)
    maker = nn.Sequential(nn.Linear(7, 11), nn.Tanh(), nn.Linear(11, 9))
    judge = nn.Sequential(nn.Linear(9, 11), nn.Tanh(), nn.Linear(11, 1))
    for net in (maker, judge):
        fsdp.fully_shard(net[0])
        fsdp.fully_shard(net)
    for_maker = torch.optim.Adam(maker.parameters(), lr=1e-2)
    for_judge = torch.optim.Adam(judge.parameters(), lr=1e-2)
    losses = []
    for step in range(3):
        torch.manual_seed(10 * step + rank)
        noise, real = torch.randn(4, 7), torch.randn(4, 9)
        made = maker(noise)
        judged = judge(real).sigmoid().mean() - judge(made.detach()).sigmoid().mean()
        judged.backward()
        for_judge.step()
        for_judge.zero_grad()
        fooled = judge(made).sigmoid().mean()
        fooled.backward()
        for_maker.step()
        for_maker.zero_grad()
        for_judge.zero_grad()
        losses.append((judged.item(), fooled.item()))
    return losses, parameters_of(maker), parameters_of(judge)


def test_two_models_that_train_each_other():
    assert_same_as_fsdp2(2, adversaries)


def several_roots(fsdp, rank, size):
    """Blocks that are sharded, in a model that is not: each is a root of its own."""
    model = make_model()
    for block in model.blocks:
        fsdp.fully_shard(block)
    for name, parameter in model.named_parameters():
        if not name.startswith("blocks"):
            parameter.requires_grad_(False)
    return train(model, 3, rank, torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1))


def test_sharded_blocks_of_a_model_that_is_not_sharded():
    assert_same_as_fsdp2(2, several_roots)


def divided(fsdp, rank, size, factor):
    model = fsdp.fully_shard(make_model())
    model.set_gradient_divide_factor(factor)
    loss_of(model, make_batch(0, rank)).backward()
    return gradients_of(model)


@pytest.mark.parametrize(("ranks", "factor"), [(1, 1.0), (1, 2.0), (2, 2.0)])
def test_gradient_divide_factor(ranks, factor):
    assert_same_as_fsdp2(ranks, divided, factor)


def divided_by_others(rank, size):
    import fsdp_cpp

    return [divided(fsdp_cpp, rank, size, factor) for factor in (2.0, 1.0, 3.0)]


def test_gradient_divide_factors_that_gloo_refuses():
    for halves, sums, thirds in run_ranks(2, divided_by_others):
        for name, half in halves.items():
            assert torch.equal(sums[name], half * 2)
            torch.testing.assert_close(thirds[name], half * 2 / 3)
