"""torch.nn.utils.clip_grad_norm_ and its like on sharded parameters, beside FSDP2 and one process."""

import io

import pytest
import torch
from torch import nn
from torch.distributed.tensor import DTensor, Replicate

from package_ranks import run_ranks

NORM_TYPES = (1, 2, 2.5, float("inf"), float("-inf"), 0)


def make_net(last=5):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(7, 13), nn.Tanh(), nn.Linear(13, last))


def backward(net, scale=1.0):
    (net(torch.randn(6, 7, generator=torch.Generator().manual_seed(1))).square().sum() * scale).backward()


def sharded_by(fully_shard, net, **options):
    fully_shard(net[0], **options)
    fully_shard(net, **options)
    backward(net)
    return net


def gradients(net):
    grads = {name: p.grad for name, p in net.named_parameters()}
    return {name: g.full_tensor() if isinstance(g, DTensor) else g.clone() for name, g in grads.items()}


def same(one, other, close):
    assert one.keys() == other.keys()
    for name, value in one.items():
        if close:
            torch.testing.assert_close(value, other[name], rtol=1e-6, atol=1e-7)
        else:
            assert torch.equal(value, other[name]), (name, value, other[name])


def beside_fsdp2(rank, size):
    import fsdp_cpp
    import torch.distributed.fsdp as theirs

    exact = size < 3  # more ranks than two are added in another order
    for norm_type in NORM_TYPES:
        for max_norm in (0.5, 1e6):
            own, reference = (sharded_by(f.fully_shard, make_net()) for f in (fsdp_cpp, theirs))
            norms = [
                torch.nn.utils.clip_grad_norm_(net.parameters(), max_norm, norm_type=norm_type)
                for net in (own, reference)
            ]
            assert type(norms[0]) is type(norms[1]) is DTensor
            assert norms[0].placements == (Replicate(),)  # FSDP2's is partial for infinite norms
            same({"norm": norms[0].full_tensor()}, {"norm": norms[1].full_tensor()}, not exact)
            same(gradients(own), gradients(reference), not exact)

    # In two steps, on lists, with and without foreach, on one tensor; by value.
    for foreach in (None, True, False):
        own, reference = (sharded_by(f.fully_shard, make_net()) for f in (fsdp_cpp, theirs))
        norms = []
        for net in (own, reference):
            norms.append(torch.nn.utils.get_total_norm([p.grad for p in net.parameters()], foreach=foreach))
            torch.nn.utils.clip_grads_with_norm_(list(net.parameters()), 0.5, norms[-1], foreach=foreach)
            norms.append(torch.nn.utils.clip_grad_norm_(net[0]._parameters.values(), 0.1, foreach=foreach))
            norms.append(torch.nn.utils.clip_grad_norm_(next(iter(net.parameters())), 0.05, foreach=foreach))
            torch.nn.utils.clip_grad_value_(net.parameters(), 0.01, foreach=foreach)
        for one, other in zip(norms[:3], norms[3:], strict=True):
            same({"norm": one.full_tensor()}, {"norm": other.full_tensor()}, not exact)
        same(gradients(own), gradients(reference), not exact)

    own, reference = (sharded_by(f.fully_shard, make_net()) for f in (fsdp_cpp, theirs))
    messages = []
    for net in (own, reference):
        net.zero_grad()
        assert torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0) == 0  # no gradients
        backward(net, float("inf"))
        before = gradients(net)
        with pytest.raises(RuntimeError) as raised:
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0, error_if_nonfinite=True)
        messages.append(str(raised.value))
        for name, gradient in gradients(net).items():
            torch.testing.assert_close(gradient, before[name], equal_nan=True)
        assert not torch.isfinite(torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0).full_tensor())
    assert messages[0] == messages[1]


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_clipping_equals_fsdp2(ranks):
    run_ranks(ranks, beside_fsdp2)


def beside_one_process(rank, size):
    import fsdp_cpp
    from torch.distributed.device_mesh import init_device_mesh

    # Parts without rows, for which DTensors have no largest element.
    for norm_type in NORM_TYPES:
        for mesh in (None, init_device_mesh("cpu", (1, size), mesh_dim_names=("replicate", "shard"))):
            net = sharded_by(fsdp_cpp.fully_shard, make_net(last=1), mesh=mesh)
            plain = make_net(last=1)
            backward(plain)
            norm = torch.nn.utils.clip_grad_norm_(net.parameters(), 0.5, norm_type)
            expected = torch.nn.utils.clip_grad_norm_(plain.parameters(), 0.5, norm_type)
            assert norm.placements == (Replicate(),) * (1 if mesh is None else 2)
            torch.testing.assert_close(norm.full_tensor(), expected)
            same(gradients(net), gradients(plain), close=True)

    # Sharded and plain parameters in one list, one of them without a gradient; gradients of two dtypes.
    for foreach in (None, False):
        net, plain = make_net(), make_net()
        net[2].double(), plain[2].double()
        fsdp_cpp.fully_shard(net, ignored_params={net[0].weight, net[0].bias})
        for one in (net, plain):
            backward(nn.Sequential(one[0], one[1], Double(), one[2]))
        dict(net.named_parameters())["2.bias"].grad = plain[2].bias.grad = None
        norms = [torch.nn.utils.clip_grad_norm_(one.parameters(), 0.5, foreach=foreach) for one in (net, plain)]
        assert type(norms[0]) is torch.Tensor and norms[0].dtype == torch.float64
        torch.testing.assert_close(norms[0], norms[1])
        for name, parameter in net.named_parameters():
            gradient = parameter.grad.full_tensor() if isinstance(parameter.grad, DTensor) else parameter.grad
            torch.testing.assert_close(gradient, plain.get_parameter(name).grad, rtol=1e-6, atol=1e-7)

    # What the engine does not know of: gradients that were replaced, and those of a penalty on parameters().
    net, plain = sharded_by(fsdp_cpp.fully_shard, make_net()), make_net()
    backward(plain)
    for one in (net, plain):
        penalty = sum((parameter**2).sum() for parameter in one.parameters())
        (penalty.full_tensor() if isinstance(penalty, DTensor) else penalty).backward()
        first = next(iter(one.parameters()))
        first.grad = first.grad * 2
    old = [parameter.grad for parameter in net.parameters()]
    assert torch.equal(through_a_file(old[0]).full_tensor(), old[0].full_tensor())
    expected = torch.nn.utils.get_total_norm([parameter.grad for parameter in plain.parameters()])
    net.zero_grad()
    torch.testing.assert_close(torch.nn.utils.get_total_norm(old).full_tensor(), expected)

    # Other DTensors in the list.
    other = nn.Parameter(torch.distributed.tensor.zeros(4, device_mesh=old[0].device_mesh))
    other.grad = torch.distributed.tensor.ones(4, device_mesh=old[0].device_mesh)
    backward(net)
    with pytest.raises(NotImplementedError, match="together with gradients that are other DTensors"):
        torch.nn.utils.clip_grad_norm_([*net.parameters(), other], 1.0)


def through_a_file(tensor):
    buffer = io.BytesIO()
    torch.save(tensor, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=False)


class Double(nn.Module):
    def forward(self, inputs):
        return inputs.double()


@pytest.mark.parametrize("ranks", [1, 3])
def test_clipping_equals_one_process(ranks):
    run_ranks(ranks, beside_one_process)


def replicas(rank, size):
    """A mesh of 2 x 2: the norm counts each replica once."""
    import fsdp_cpp
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    net, plain = sharded_by(fsdp_cpp.fully_shard, make_net(), mesh=mesh), make_net()
    backward(plain)
    norm = torch.nn.utils.clip_grad_norm_(net.parameters(), 0.5)
    assert norm.placements == (Replicate(), Replicate())
    torch.testing.assert_close(norm.full_tensor(), torch.nn.utils.clip_grad_norm_(plain.parameters(), 0.5))
    same(gradients(net), gradients(plain), close=True)


def test_clipping_on_a_mesh_of_two_dimensions():
    run_ranks(4, replicas)
