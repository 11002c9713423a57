"""Gradient scalers over sharded parameters, beside one process."""

import torch

from package_optimizers import STEPS, assert_same, batch, loss_of, make_net, shard, whole
from package_ranks import run_ranks


def scaled(net, optimizer, rank, overflow_on=None, **options):
    """Four steps, the second of which overflows on one rank; returns the scales."""
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)
    scales = []
    for step in range(STEPS):
        scaler.scale(loss_of(net, batch(step), rank)).backward()
        if step == 1 and overflow_on == rank:
            next(iter(net.parameters())).grad.mul_(float("inf"))
        if step == 2:
            scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        scales.append(scaler.get_scale())
    return scales, whole(net)


SCALED = {
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01),
    "AdamW fused": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
}


def scaled_on_ranks(rank, size):
    results = {}
    for name, make in SCALED.items():
        net = shard(make_net())
        results[name] = scaled(net, make(net.parameters()), rank, overflow_on=1)
    return results


def test_grad_scaler_agrees_on_an_overflow_of_one_rank():
    for results in run_ranks(2, scaled_on_ranks):
        for name, make in SCALED.items():
            net = make_net()
            scales, parameters = scaled(net, make(net.parameters()), 0, overflow_on=0)
            assert results[name][0] == scales and scales[1] == 512.0
            assert_same(results[name][1], parameters, f"scaled {name}")


def unscaled_early(rank, size):
    """unscale_ right after a backward that does not wait for its reductions."""
    from fsdp_cpp import ShardedGradScaler

    results = []
    for make in (lambda: torch.amp.GradScaler("cpu", init_scale=1024.0), lambda: ShardedGradScaler("cpu", 1024.0)):
        net = shard(make_net())
        scaler, optimizer = make(), torch.optim.SGD(net.parameters(), lr=0.1)
        net.set_is_last_backward(False)
        scaler.scale(loss_of(net, batch(0), rank)).backward()
        scaler.unscale_(optimizer)
        results.append({name: p.grad.full_tensor() for name, p in net.named_parameters()})
    return results


def test_unscaling_waits_for_reductions():
    net = make_net()
    loss_of(net, batch(0)).backward()
    expected = {name: p.grad for name, p in net.named_parameters()}
    for results in run_ranks(2, unscaled_early):
        for gradients in results:
            assert_same(gradients, expected, "unscaled gradients")
