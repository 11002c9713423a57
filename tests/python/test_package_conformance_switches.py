"""Switches of single modules, beside FSDP2: synchronization, all-reduce, releases, divisor."""

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from package_beside import (
    assert_same,
    assert_same_as_fsdp2,
    gradients_of,
    loss_of,
    make_batch,
    make_model,
    shard_model,
    train,
)
from package_ranks import run_ranks


def accumulated(fsdp, rank, size, module_of, recurse):
    """Two passes, in the first of which some units do not reduce."""
    model = shard_model(fsdp, make_model(blocks=3))
    results = []
    for step, sync in enumerate([False, True]):
        module_of(model).set_requires_gradient_sync(sync, recurse=recurse)
        loss_of(model, make_batch(step, rank)).backward()
        results.append(gradients_of(model) if sync else None)
    return results


def one_block(model):
    return model.blocks[1]


def the_root(model):
    return model


def test_one_unit_without_synchronization():
    assert_same_as_fsdp2(2, accumulated, one_block, True)


def test_the_root_alone_without_synchronization():
    assert_same_as_fsdp2(2, accumulated, the_root, False)


def without_all_reduce(fsdp, rank, size):
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    model = shard_model(fsdp, make_model(), mesh=mesh)
    for step, on in enumerate([False, True]):
        model.blocks[0].set_requires_all_reduce(on)
        loss_of(model, make_batch(step, rank)).backward()
    return gradients_of(model)


def test_one_unit_without_all_reduce():
    assert_same_as_fsdp2(4, without_all_reduce)


def divided(rank, size):
    import fsdp_cpp

    gradients = []
    for factor in (2.0, 8.0):
        model = shard_model(fsdp_cpp, make_model())
        model.blocks[1].set_gradient_divide_factor(factor)
        loss_of(model, make_batch(0, rank)).backward()
        gradients.append(gradients_of(model))
    return gradients


def test_the_divisor_of_one_unit():
    """FSDP2 refuses divisors other than the number of ranks over Gloo."""
    for by_two, by_eight in run_ranks(2, divided):
        for name, gradient in by_two.items():
            assert torch.equal(gradient, by_eight[name] * (4 if name.startswith("blocks.1.") else 1)), name


def released(fsdp, rank, size):
    model = shard_model(fsdp, make_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    results = [train(model, 2, rank, optimizer)]
    model.set_reshard_after_forward(True, recurse=False)
    model.blocks[0].set_reshard_after_forward(False)
    results.append(train(model, 2, rank, optimizer))
    return results


def test_release_after_forward_changes_no_number():
    assert_same_as_fsdp2(2, released)


def accumulated_while_gathered(rank, size):
    import fsdp_cpp

    gradients = []
    for reshard in (True, False):
        model = shard_model(fsdp_cpp, make_model())
        model.set_reshard_after_backward(reshard)
        for step in range(3):
            model.set_requires_gradient_sync(step == 2)
            loss_of(model, make_batch(step, rank)).backward()
        gradients.append(gradients_of(model))
    return gradients


def test_release_after_backward_changes_no_gradient():
    for released, kept in run_ranks(2, accumulated_while_gathered):
        assert_same(kept, released)


def kept_over_steps(rank, size):
    import fsdp_cpp

    model = shard_model(fsdp_cpp, make_model())
    model.set_reshard_after_backward(False)
    return train(model, 3, 0, torch.optim.SGD(model.parameters(), lr=0.1))[0]


def test_gathered_parameters_are_never_stale():
    """With FSDP2, the forward after a step would compute with the parameters from before it."""
    model = make_model()
    losses = train(model, 3, 0, torch.optim.SGD(model.parameters(), lr=0.1))[0]
    assert run_ranks(2, kept_over_steps) == [losses, losses]


def gathers(rank, size):
    import fsdp_cpp

    model = shard_model(fsdp_cpp, make_model(blocks=4))
    stats = model._fsdp_cpp_state.sharded.stats

    def gathers_of_a_step(write):
        before = stats()["all_gathers"]
        loss_of(model, make_batch(0, rank)).backward()
        if write:
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.add_(0.0)
        return stats()["all_gathers"] - before

    gathers_of_a_step(True), gathers_of_a_step(True)
    released = gathers_of_a_step(True)
    for block in model.blocks:
        block.set_reshard_after_forward(False)
    gathers_of_a_step(True)
    kept = gathers_of_a_step(True)
    model.set_reshard_after_backward(False)
    gathers_of_a_step(False)
    unwritten = gathers_of_a_step(False)
    return released, kept, unwritten


def test_switches_change_the_number_of_gathers():
    for released, kept, unwritten in run_ranks(2, gathers):
        assert released > kept > unwritten == 0, (released, kept, unwritten)


class Embedded(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(7, 5)
        self.head = nn.Linear(5, 7)

    def forward(self, tokens):
        return self.head(self.embedding(tokens))


def embedding_in_backward(fsdp, rank, size):
    torch.manual_seed(0)
    model = Embedded()
    fsdp.fully_shard(model.embedding)
    fsdp.fully_shard(model)
    model.embedding.set_unshard_in_backward(False)
    for _ in range(3):
        model.zero_grad()
        model(torch.arange(4) + rank).sum().backward()
    return gradients_of(model)


def test_an_embedding_that_backward_does_not_gather():
    assert_same_as_fsdp2(2, embedding_in_backward)
