"""MixedPrecisionPolicy and the gradient scaler, beside FSDP2 to the bit."""

import pytest
import torch
from torch import nn

from package_beside import (
    assert_same,
    assert_same_as_fsdp2,
    gradients_of,
    loss_of,
    make_batch,
    make_model,
    parameters_of,
    run_ranks,
    shard_model,
    train,
    with_both,
)

LOW = [torch.bfloat16, torch.float16]


def mixed(fsdp, rank, size):
    results = []
    for param in (None, *LOW):
        policy = fsdp.MixedPrecisionPolicy(param_dtype=param, reduce_dtype=torch.float32)
        model = shard_model(fsdp, make_model(), mp_policy=policy)
        result = train(model, 2, rank, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
        dtypes = {name: p.dtype for name, p in model.named_parameters()}
        results.append((result, dtypes, accumulated(model, rank)))
    return results


def accumulated(model, rank):
    model.zero_grad()
    for step, sync in enumerate((False, False, True, True)):
        model.set_requires_gradient_sync(sync)
        loss_of(model, make_batch(step, rank)).backward()
    return gradients_of(model)


def test_low_precision_with_reductions_in_fp32():
    assert_same_as_fsdp2(2, mixed)


def low_reductions(fsdp, rank, size):
    results = []
    for param, reduce in [(None, low) for low in LOW] + [(low, None) for low in LOW] + [(low, low) for low in LOW]:
        policy = fsdp.MixedPrecisionPolicy(param_dtype=param, reduce_dtype=reduce)
        model = shard_model(fsdp, make_model(), mp_policy=policy)
        loss_of(model, make_batch(0, rank)).backward()
        results.append((reduce or param, gradients_of(model)))
    return results


def test_reductions_in_low_precision_are_rounded_once():
    """FSDP2's gradients are rounded to the dtype of the reduction, also where the shards have a wider one. Ours are the
    sums before that rounding."""
    exact = 0
    for ours, theirs in run_ranks(2, with_both, low_reductions):
        for (dtype, own), (_, other) in zip(ours, theirs, strict=True):
            for name, gradient in own.items():
                assert gradient.dtype == other[name].dtype == torch.float32
                torch.testing.assert_close(gradient.to(dtype), other[name].to(dtype), rtol=0.01, atol=1e-6)
                exact += torch.equal(gradient.to(dtype).float(), other[name])
    assert exact > 100, exact


class Watched(nn.Module):
    """Remembers the dtypes that its forward saw."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(5, 5)
        self.register_buffer("offset", torch.ones(5))
        self.seen = []

    def forward(self, x, *, more=None):
        floating = {} if more is None else {key: value.dtype for key, value in more.items()}
        self.seen.append((x.dtype, self.layer.weight.dtype, self.offset.dtype, floating))
        out = self.layer(x.to(self.layer.weight.dtype)) + self.offset.to(self.layer.weight.dtype)
        return {"out": out, "index": torch.arange(3), "pair": (out, "text")}


def boundaries(fsdp, rank, size, cast_inputs, output):
    torch.manual_seed(2)
    policy = fsdp.MixedPrecisionPolicy(param_dtype=torch.bfloat16, output_dtype=output, cast_forward_inputs=cast_inputs)
    net = fsdp.fully_shard(Watched(), mp_policy=policy)
    result = net(torch.ones(2, 5), more={"real": torch.ones(1, dtype=torch.float64), "whole": torch.ones(1).int()})
    result["out"].float().sum().backward()
    dtypes = (result["out"].dtype, result["index"].dtype, result["pair"][0].dtype)
    return net.seen, dtypes, gradients_of(net), {name: b.dtype for name, b in net.named_buffers()}


def all_boundaries(fsdp, rank, size):
    return [
        boundaries(fsdp, rank, size, cast_inputs, output)
        for cast_inputs in (True, False)
        for output in (None, torch.float32)
    ]


def test_casts_at_the_boundaries_of_a_module():
    assert_same_as_fsdp2(2, all_boundaries)


def submodules(fsdp, rank, size):
    """Policies that differ from module to module: normalisations in fp32."""
    low = fsdp.MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    high = fsdp.MixedPrecisionPolicy(param_dtype=torch.float32, output_dtype=torch.bfloat16)
    model = make_model()
    for block in model.blocks:
        fsdp.fully_shard(block.norm, mp_policy=high)
        fsdp.fully_shard(block, mp_policy=low)
    fsdp.fully_shard(model, mp_policy=low)
    return train(model, 2, rank, torch.optim.SGD(model.parameters(), lr=0.1))


def test_policies_that_differ_between_modules():
    assert_same_as_fsdp2(2, submodules)


class Images(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(2, 5, 3)
        self.norm = nn.BatchNorm2d(5)
        self.head = nn.Linear(5, 3)

    def forward(self, x):
        return self.head(torch.relu(self.norm(self.conv(x))).mean((2, 3)))


def batch_norm(fsdp, rank, size):
    torch.manual_seed(4)
    net = Images()
    fsdp.fully_shard(net.norm)  # in fp32: BatchNorm takes low inputs with fp32 parameters
    policy = fsdp.MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    fsdp.fully_shard(net, mp_policy=policy)
    torch.manual_seed(rank)
    for _ in range(2):
        net(torch.randn(3, 2, 6, 6)).float().sum().backward()
    return gradients_of(net), dict(net.named_buffers())


def test_batch_norm_in_full_precision():
    assert_same_as_fsdp2(2, batch_norm)


def scaled(fsdp, rank, size, bad_rank):
    model = shard_model(fsdp, make_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    scales = []
    for step in range(3):
        loss = loss_of(model, make_batch(step, rank))
        if step == 1 and rank == bad_rank:
            loss = loss * float("inf")
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        scales.append(scaler.get_scale())
    return scales, parameters_of(model)


@pytest.mark.parametrize("bad_rank", [0, 1])
def test_gradient_scaler(bad_rank):
    ours = assert_same_as_fsdp2(2, scaled, bad_rank)
    assert ours[0][0] == [1024.0, 512.0, 512.0]


def autocast(fsdp, rank, size):
    model = shard_model(fsdp, make_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(2):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = loss_of(model, make_batch(step, rank))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return parameters_of(model)


def test_autocast():
    assert_same_as_fsdp2(2, autocast)


def two_dtypes(rank, size):
    import fsdp_cpp

    torch.manual_seed(0)
    net = fsdp_cpp.fully_shard(nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 3).double()))
    net[1](net[0](torch.ones(2, 3)).double()).sum().backward()
    return gradients_of(net)


def test_parameters_of_two_dtypes_in_one_unit():
    """FSDP2 wants one dtype for each unit."""
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 3).double())
    plain[1](plain[0](torch.ones(2, 3)).double()).sum().backward()
    for ours in run_ranks(2, two_dtypes):
        assert_same(ours, gradients_of(plain))
