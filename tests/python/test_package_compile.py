"""torch.compile over the package's fully_shard: backends, caches, shapes, and requests that are refused."""

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from package_ranks import library_environment, run_ranks

STEPS = 3


class Block(nn.Module):
    """Its backward uses transposed views of its weights."""

    def __init__(self):
        super().__init__()
        self.up = nn.Linear(7, 11)
        self.down = nn.Linear(11, 7, bias=False)
        self.norm = nn.LayerNorm(7)

    def forward(self, inputs):
        return inputs + self.down(torch.nn.functional.gelu(self.up(self.norm(inputs))))


def make_net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(7, 7), Block(), Block(), nn.Linear(7, 3))


def shard(net):
    from fsdp_cpp import fully_shard

    for block in (net[1], net[2]):
        fully_shard(block)
    return fully_shard(net)


def batch(step, rows=4):
    return torch.randn(rows, 7, generator=torch.Generator().manual_seed(step))


def compiled(net, part, **settings):
    """The net with some part of it compiled: its blocks, itself in place, or itself wrapped."""
    if part == "blocks":
        for block in (net[1], net[2]):
            block.compile(fullgraph=True, **settings)
    elif part == "whole":
        net.compile(fullgraph=True, **settings)
    else:
        return torch.compile(net, fullgraph=True, **settings)
    return net


def difference_from_eager(part, rows=(4,) * STEPS, **settings):
    """Trains a compiled sharded net beside a plain one. Returns the largest difference of losses and gradients, and the
    number of graphs. Steps after the second must not compile."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    plain, net = make_net(), shard(make_net())
    called = compiled(net, part, **settings)
    optimizers = [torch.optim.AdamW(one.parameters(), lr=1e-2) for one in (plain, net)]
    worst = 0.0
    for step in range(STEPS):
        with torch._dynamo.config.patch(error_on_recompile=step > 0):
            loss = called(batch(step, rows[step])).square().mean()
            loss.backward()
        expected = plain(batch(step, rows[step])).square().mean()
        expected.backward()
        worst = max(worst, abs(loss.item() - expected.item()))
        for ours, theirs in zip(net.parameters(), plain.parameters(), strict=True):
            worst = max(worst, (ours.grad.full_tensor() - theirs.grad).abs().max().item())
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    return worst, torch._dynamo.utils.counters["stats"]["unique_graphs"]


def on_ranks(rank, size):
    """Runs all cases, because every process compiles anew; returns their results by name."""
    import torch._functorch.config as functorch
    import torch._inductor.config as inductor

    def hits():
        counters = torch._dynamo.utils.counters
        return counters["inductor"]["fxgraph_cache_hit"], counters["aot_autograd"]["autograd_cache_hit"]

    results = {}
    for part in ("blocks", "whole", "wrapped"):
        results["aot_eager", part] = difference_from_eager(part, backend="aot_eager")
        results["inductor", part] = difference_from_eager(part)
    results["cached", "blocks"] = difference_from_eager("blocks")
    found = hits()
    with inductor.patch(fx_graph_cache=False), functorch.patch(enable_autograd_cache=False):
        results["uncached", "blocks"] = difference_from_eager("blocks")
    results["dynamic", "blocks"] = difference_from_eager("blocks", rows=(4, 6, 5), dynamic=True)
    results["CUDA graphs without CUDA", "blocks"] = difference_from_eager("blocks", mode="reduce-overhead")
    return results, found


def test_compiled_modules_train_as_eager_ones():
    for results, (fx_hits, autograd_hits) in run_ranks(2, on_ranks):
        assert fx_hits and autograd_hits  # or the case "cached" shows nothing
        for (name, part), (difference, graphs) in results.items():
            # Inductor fuses operators, so sums round differently.
            assert difference <= (0 if name == "aot_eager" else 1e-6), (name, part, difference)
            assert graphs == 1, (name, part, graphs)


def frozen(net):
    import torch._inductor.config as inductor

    with inductor.patch(freezing=True), torch.no_grad():
        compiled(net, "blocks")(batch(0))


def written(net):
    def forward(inputs):
        with torch.no_grad():
            net[1].norm.weight.mul_(2)
        return net(inputs)

    torch.compile(forward)(batch(0))


def exported(net, strict):
    torch.export.export(net, (batch(0),), strict=strict)


def compiled_backward(net):
    with torch._dynamo.compiled_autograd._enable(lambda graph: graph):
        net(batch(0)).sum().backward()


REFUSED = {
    "freezing": (frozen, "makes constants of parameters, so that every rank would keep all of '1"),
    "write": (written, r"a compiled graph writes to parameter '1.norm.weight' of a sharded module"),
    "export": (lambda net: exported(net, strict=False), "torch.export of a sharded module"),
    "strict export": (lambda net: exported(net, strict=True), "torch.export of a sharded module"),
    "compiled autograd": (compiled_backward, "cannot be captured under compiled autograd"),
}


def refusals(rank, size):
    import torch._dynamo.compiled_autograd

    for name, (request, sentence) in REFUSED.items():
        torch._dynamo.reset()
        net = shard(make_net())
        before = {key: p.full_tensor() for key, p in net.named_parameters()}
        with pytest.raises(Exception, match=sentence) as caught:
            request(net)
        inner = getattr(caught.value, "inner_exception", caught.value)  # of an error that Dynamo reports
        assert isinstance(inner, NotImplementedError), (name, inner)
        for key, p in net.named_parameters():
            assert torch.equal(p.full_tensor(), before[key]), (name, key)


def test_requests_that_are_refused():
    run_ranks(1, refusals)


def cuda_graphs(rank, size):
    from fsdp_cpp._compile import _noting_cuda_graphs, _with_gathered_arguments, aligned

    note = _noting_cuda_graphs(lambda *_: None)
    call = _with_gathered_arguments(lambda graph, inputs: [value.sum() for value in inputs])
    net = shard(make_net())
    graph = SimpleNamespace(device_types={"cuda"}, mutated_input_idxs=())
    note(graph, [], None, {"cudagraphs": False})
    assert call(graph, [net[1].up.weight]) == [make_net()[1].up.weight.sum()]
    note(graph, [], None, {"cudagraphs": True})
    with pytest.raises(NotImplementedError, match="CUDA graphs cannot use sharded parameters"):
        call(graph, [net[1].up.weight])
    assert call(graph, [torch.ones(3)]) == [3]

    shifted = torch.arange(21.0)[1:].view(4, 5).t()
    assert aligned(shifted).data_ptr() % 16 == 0 and aligned(shifted).stride() == shifted.stride()
    assert torch.equal(aligned(shifted), shifted)
    assert aligned(torch.ones(4)).data_ptr() % 16 == 0


def test_cuda_graphs_are_refused_and_arguments_aligned():
    run_ranks(1, cuda_graphs)


def test_import_of_the_package_imports_no_compiler():
    source = (
        "import sys, fsdp_cpp; print([name for name in ('torch._dynamo', 'torch._inductor') if name in sys.modules])"
    )
    environment = os.environ | library_environment()
    printed = subprocess.run(
        [sys.executable, "-c", source], env=environment, capture_output=True, text=True, check=True
    )
    assert printed.stdout == "[]\n", printed.stdout
