"""Models of many families in plain loops of training over the package's fully_shard, beside one process."""

import copy

import pytest
import torch

from package_families import build, families, shard_by_blocks
from package_ranks import run_ranks

STEPS = 3
# Families whose sums depend on where a parameter lies in memory (products of a matrix and one vector).
INEXACT = {"parametrized"}


def steps_of(model, loss_of):
    """Trains a model and returns the losses and norms of gradients of all steps."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    seen = []
    for step in range(STEPS):
        torch.manual_seed(100 + step)  # of dropout
        loss = loss_of(model)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        norm = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
        seen.append((loss.item(), norm.item()))
    return seen


def gradients(model, loss_of):
    torch.manual_seed(7)
    loss = loss_of(model)
    loss.backward()
    found = {}
    for name, p in model.named_parameters():
        gradient = p.grad.full_tensor() if hasattr(p.grad, "full_tensor") else p.grad
        found[name] = None if gradient is None or not gradient.any() else gradient.clone()
    model.zero_grad()
    return loss.item(), found


def every_family(rank, size):
    """Compares each family with one process in this rank; returns differences by family."""
    differences = {}
    for name, (make, loss_of) in families().items():
        model = build(make)
        plain = copy.deepcopy(model)
        shard_by_blocks(model)
        problems = []
        loss, found = gradients(model, loss_of)
        expected_loss, expected = gradients(plain, loss_of)
        exact = size == 2 and name not in INEXACT  # the sum of two equal numbers, halved, is exact
        if loss != expected_loss:
            problems.append(f"first loss {loss}, expected {expected_loss}")
        assert found.keys() == expected.keys(), name
        for parameter, gradient in expected.items():
            ours = found[parameter]
            if (ours is None) != (gradient is None):
                problems.append(f"gradient of {parameter}: {ours is not None}, expected {gradient is not None}")
            elif gradient is not None and not same(ours, gradient, exact):
                problems.append(f"gradient of {parameter}: {(ours - gradient).abs().max()}")
        for ours, theirs in zip(steps_of(model, loss_of), steps_of(plain, loss_of), strict=True):
            for value, wanted in zip(ours, theirs, strict=True):
                # Norms are summed in another order, and clipping spreads the difference over all parameters.
                if abs(value - wanted) > 2e-5 * max(1, abs(wanted)):
                    problems.append(f"step: {ours}, expected {theirs}")
        if problems:
            differences[name] = problems
    return differences


def same(ours, expected, exact):
    return torch.equal(ours, expected) if exact else torch.allclose(ours, expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("ranks", [2, 3])
def test_families_train_as_in_one_process(ranks):
    for differences in run_ranks(ranks, every_family):
        assert not differences, differences
