"""Common uses of sharded models, each beside the same use of the same model in one process."""

import copy

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from package_families import IDS, VOCABULARY, build, causal, decoders, shard_by_blocks
from package_ranks import run_ranks


def tokens(step, rows=2):
    return torch.arange(rows * 10).view(rows, 10) * (7 + 2 * step) % VOCABULARY


def loss_of(model, ids=IDS):
    return model(input_ids=ids, labels=ids).loss


def whole(tensor):
    return (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor.detach()).clone()


def gradients(model):
    return [None if p.grad is None else whole(p.grad) for p in model.parameters()]


# Each of these uses a model and returns tensors, which must be the same whether the model is sharded or not.


def generation(model):
    model.eval()
    prompts = IDS[:, :4]
    settings = dict(max_new_tokens=6, do_sample=False)
    result = [model.generate(prompts, **settings), model.generate(prompts, num_beams=3, **settings)]
    torch.manual_seed(5)
    return [*result, model.generate(prompts, max_new_tokens=6, do_sample=True, use_cache=False)]


def generation_between_steps(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    loss_of(model).backward()
    optimizer.step()
    optimizer.zero_grad()
    model.eval()
    result = model.generate(IDS[:, :4], max_new_tokens=4, do_sample=False)
    model.train()
    loss_of(model).backward()
    return [result, *gradients(model)]


def checkpointed_blocks(model, reentrant):
    for layer in model.model.layers:
        layer.forward = checkpointed(layer.forward, reentrant)
    loss = loss_of(model)
    loss.backward()
    return [loss, *gradients(model)]


def checkpointed(forward, reentrant):
    # A reentrant checkpoint takes no keywords.
    return lambda hidden, **kwargs: checkpoint(lambda h: forward(h, **kwargs), hidden, use_reentrant=reentrant)


def checkpointing_of_transformers(model, reentrant):
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": reentrant})
    loss = loss_of(model)
    loss.backward()
    return [loss, *gradients(model)]


def autocast(model):
    with torch.autocast("cpu", torch.bfloat16):
        loss = loss_of(model)
    loss.backward()
    return [loss, *gradients(model)]


def accumulation(model):
    """Gradients of three batches, and then of a step without zero_grad()."""
    for step in range(3):
        (loss_of(model, tokens(step)) / 3).backward()
    first = gradients(model)
    loss_of(model, tokens(3)).backward()
    return [*first, *gradients(model)]


def accumulation_without_sync(model):
    """Gradients of three batches, which only the last backward reduces."""
    for step in range(3):
        if hasattr(model, "set_requires_gradient_sync"):
            model.set_requires_gradient_sync(step == 2)
        (loss_of(model, tokens(step)) / 3).backward()
    return gradients(model)


def several_optimizers(model):
    embeddings = [p for name, p in model.named_parameters() if "embed" in name]
    others = [p for name, p in model.named_parameters() if "embed" not in name]
    optimizers = [
        torch.optim.SGD(embeddings, lr=0.1, momentum=0.9),
        torch.optim.AdamW([{"params": others[::2]}, {"params": others[1::2], "lr": 1e-4}], lr=1e-3),
    ]
    for step in range(2):
        loss_of(model, tokens(step)).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    return [whole(p) for p in model.parameters()]


def hooks(model):
    """Hooks on modules and on activations that see and change what passes."""
    seen = []
    first, second = model.model.layers
    first.register_forward_pre_hook(lambda _, args, kwargs: ((args[0] * 2, *args[1:]), kwargs), with_kwargs=True)
    first.register_forward_hook(lambda _, args, result: result * 0.5)
    second.register_full_backward_pre_hook(lambda _, gradients: seen.append(gradients[0].clone()))
    second.mlp.register_full_backward_hook(lambda _, inputs, outputs: seen.extend(g.clone() for g in inputs))
    second.mlp.up_proj.register_forward_hook(lambda _, args, result: result.register_hook(lambda g: g * 3) and None)
    loss_of(model).backward()
    return [*seen, *gradients(model)]


def functional_calls(model):
    """Calls with other values in the place of parameters; the model's own stay as they are."""
    before = loss_of(model)
    others = {name: torch.full(p.shape, 0.01, requires_grad=True) for name, p in model.named_parameters()}
    result = torch.func.functional_call(model, others, (IDS,)).logits
    result.square().mean().backward()
    seen = [before, result, *(value.grad for value in others.values()), *gradients(model)]
    plain = {name: value.detach() for name, value in others.items()}
    by_func = torch.func.grad(lambda values: torch.func.functional_call(model, values, (IDS,)).logits.square().mean())
    seen.extend(by_func(plain).values())
    after = loss_of(model)
    after.backward()
    return [*seen, after, *gradients(model)]


def several_forwards(model):
    """Two forwards before one backward, an evaluation in between, and two backwards of one forward."""
    first = loss_of(model, tokens(0))
    with torch.no_grad():
        evaluated = loss_of(model, tokens(1))
    second = loss_of(model, tokens(2))
    (first + 2 * second).backward()
    both = gradients(model)
    loss = loss_of(model, tokens(3))
    loss.backward(retain_graph=True)
    loss.backward()
    return [evaluated, *both, *gradients(model)]


def inference(model):
    with torch.inference_mode():
        first = loss_of(model)
    loss_of(model).backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    with torch.inference_mode():
        second = loss_of(model)
    return [first.clone(), second.clone(), *gradients(model)]


def frozen_parts(model):
    """Only the second layer is trained."""
    loss_of(model).backward()
    return gradients(model)


def freeze(model):
    model.requires_grad_(False)
    model.model.layers[1].requires_grad_(True)


def changed_values(model):
    """Reads of a whole parameter and writes to all sharded ones, outside training."""
    weight = model.model.layers[0].mlp.up_proj.weight
    read = weight.norm(), weight.sum(dim=0)
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(1.5)
    return [*read, loss_of(model), weight]


USES = {
    "generation": generation,
    "generation between steps": generation_between_steps,
    "checkpoint": lambda model: checkpointed_blocks(model, reentrant=False),
    "reentrant checkpoint": lambda model: checkpointed_blocks(model, reentrant=True),
    "checkpointing of transformers": lambda model: checkpointing_of_transformers(model, reentrant=False),
    "reentrant checkpointing of transformers": lambda model: checkpointing_of_transformers(model, reentrant=True),
    "autocast": autocast,
    "accumulation": accumulation,
    "accumulation without sync": accumulation_without_sync,
    "several optimizers": several_optimizers,
    "hooks": hooks,
    "functional calls": functional_calls,
    "several forwards": several_forwards,
    "inference": inference,
    "frozen parts": frozen_parts,
    "changed values": changed_values,
}


def problem_of(use, ranks, before=None):
    model = build(lambda: causal(decoders()["llama tied"]))
    if before is not None:
        before(model)
    plain = copy.deepcopy(model)
    shard_by_blocks(model)
    expected = use(plain)
    found = use(model)
    assert len(found) == len(expected)
    for index, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        if (ours is None) != (theirs is None):
            return f"result {index}: {ours is not None}, expected {theirs is not None}"
        if theirs is None:
            continue
        # Three equal numbers, summed and divided by 3, are not always the same number.
        same = torch.equal(ours, theirs) if ranks == 2 else torch.allclose(ours, theirs, rtol=1e-4, atol=1e-6)
        if not same:
            return f"result {index}: a difference of {(ours - theirs).abs().max()}"
    return None


def every_use(rank, size):
    problems = {name: problem_of(use, size, freeze if use is frozen_parts else None) for name, use in USES.items()}
    return {name: problem for name, problem in problems.items() if problem}


@pytest.mark.parametrize("ranks", [2, 3])
def test_uses_give_what_they_give_in_one_process(ranks):
    for problems in run_ranks(ranks, every_use):
        assert not problems, problems
