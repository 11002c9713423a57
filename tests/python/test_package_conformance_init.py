"""fully_shard's arguments, errors and construction, beside FSDP2."""

import inspect

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard

from package_beside import (
    assert_same_as_fsdp2,
    error_of,
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


def test_public_methods_are_those_of_torch():
    missing, different = run_ranks(1, compare_methods)[0]
    assert not missing
    assert not different


def compare_methods(rank, size):
    import fsdp_cpp
    import torch.distributed.fsdp as fsdp2

    theirs = {name: value for name, value in vars(fsdp2.FSDPModule).items() if inspect.isfunction(value)}
    del theirs["_apply"]  # nn.Module's
    missing = [name for name in theirs if not hasattr(fsdp_cpp.FSDPModule, name)]
    different = [
        name
        for name, value in theirs.items()
        if name in vars(fsdp_cpp.FSDPModule) and parameters(value) != parameters(getattr(fsdp_cpp.FSDPModule, name))
    ]
    ours = [p for p in parameters(fsdp_cpp.fully_shard) if p[0] != "engine_options"]
    if ours != parameters(inspect.unwrap(fsdp2.fully_shard)):
        different.append("fully_shard")
    return missing, different


def parameters(function):
    return [
        (one.name, one.kind, repr(one.default))
        for one in inspect.signature(function).parameters.values()
        if one.name not in ("args", "kwargs", "self", "fn", "recurse_")
    ]


def refused(fsdp, rank, size):
    def scalar():
        net = nn.Linear(3, 3)
        net.register_parameter("scale", nn.Parameter(torch.tensor(1.0)))
        fsdp.fully_shard(net)

    def twice():
        net = nn.Linear(3, 3)
        fsdp.fully_shard(net)
        fsdp.fully_shard(net)

    def not_contiguous():
        net = nn.Linear(3, 4)
        net.weight = nn.Parameter(torch.randn(3, 4).t())
        fsdp.fully_shard(net)

    def copied():
        import copy

        copy.deepcopy(fsdp.fully_shard(nn.Linear(3, 3)))

    def mesh(shape, names=None):
        fsdp.fully_shard(nn.Linear(3, 3), mesh=init_device_mesh("cpu", shape, mesh_dim_names=names))

    net = fsdp.fully_shard(nn.Sequential(fsdp.fully_shard(nn.Linear(4, 4)), nn.Linear(4, 4)))
    net(torch.ones(1, 4))
    actions = [
        scalar,
        twice,
        not_contiguous,
        copied,
        lambda: mesh((1, 1, 1)),
        lambda: mesh((1, 1)),
        lambda: fsdp.fully_shard(nn.ModuleList([nn.Linear(3, 3)])),
        lambda: fsdp.fully_shard(nn.ModuleDict({"a": nn.Linear(3, 3)})),
        lambda: fsdp.fully_shard(nn.Linear(3, 3), reshard_after_forward=3),
        lambda: fsdp.fully_shard(nn.Linear(3, 3), reshard_after_forward=0),
        lambda: fsdp.fully_shard(nn.Linear(3, 3), reshard_after_forward="no"),
        lambda: fsdp.fully_shard(nn.Linear(3, 3), shard_placement_fn=lambda p: "rows"),
        lambda: fsdp.fully_shard(nn.Linear(3, 3), shard_placement_fn=lambda p: Replicate()),
        lambda: fsdp.fully_shard(nn.Linear(4, 4), shard_placement_fn=lambda p: Shard(1)),
        lambda: fsdp.fully_shard(nn.Linear(4, 4), shard_placement_fn=lambda p: Shard(2)),
        lambda: fsdp.register_fsdp_forward_method(net, "missing"),
        lambda: fsdp.share_comm_ctx([nn.Linear(1, 1)]),
        lambda: net.set_modules_to_forward_prefetch([nn.Linear(1, 1)]),
        lambda: net.set_modules_to_backward_prefetch([nn.Linear(1, 1)]),
        lambda: net.set_reshard_after_forward(1),
        lambda: net.set_reduce_scatter_max_input_buffers(True),
        lambda: net.set_reduce_scatter_max_input_buffers(0),
        lambda: net[0].reset_iter_state(),
    ]
    return [(error_of(action) or ("none",))[0] for action in actions]


def test_errors_are_of_the_same_types():
    assert_same_as_fsdp2(2, refused)


def refused_by_name(rank, size):
    import fsdp_cpp
    from torch.distributed.fsdp import DataParallelMeshDims
    from torch.distributed.tensor import distribute_tensor

    net = fsdp_cpp.fully_shard(nn.Sequential(fsdp_cpp.fully_shard(nn.Linear(4, 4)), nn.Linear(4, 4)))
    parallel = nn.Linear(4, 4)
    mesh = init_device_mesh("cpu", (size, 1))
    parallel.weight = nn.Parameter(distribute_tensor(parallel.weight.detach(), mesh, [Replicate(), Shard(0)]))
    actions = {
        "set_custom_all_gather": lambda: net.set_custom_all_gather(None),
        "set_custom_reduce_scatter": lambda: net.set_custom_reduce_scatter(None),
        "set_symm_mem_for_comm": net.set_symm_mem_for_comm,
        "set_allocate_memory_from_process_group_for_comm": (
            lambda: net.set_allocate_memory_from_process_group_for_comm(True)
        ),
        "set_reduce_scatter_max_input_buffers(1)": lambda: net.set_reduce_scatter_max_input_buffers(1),
        "set_separate_reduce_scatter_group(False)": lambda: net.set_separate_reduce_scatter_group(False),
        "_get_fsdp_state": net._get_fsdp_state,
        "dp_mesh_dims": lambda: fsdp_cpp.fully_shard(nn.Linear(4, 4), dp_mesh_dims=DataParallelMeshDims(shard="dp")),
        "is a DTensor over 2 dimensions": lambda: fsdp_cpp.fully_shard(parallel),
    }
    return {name: error_of(action) for name, action in actions.items()}


def test_what_is_not_supported_is_refused_by_name():
    for name, error in run_ranks(1, refused_by_name)[0].items():
        assert error is not None, f"{name} was accepted"
        assert error[0] == "NotImplementedError" and name in error[1], (name, error)


def accepted(fsdp, rank, size):
    """Calls that ask for something that holds in any case."""
    model = shard_model(fsdp, make_model())
    model.set_allocate_memory_from_process_group_for_comm(False)
    model.set_force_sum_reduction_for_comms(True)
    model.set_reduce_scatter_unused_params(True)
    model.set_reduce_scatter_max_input_buffers(2)
    model.set_separate_reduce_scatter_group(True)
    model.set_unshard_in_backward(True)
    model._set_unshard_async_op(True)
    model.set_reshard_after_backward(True)
    fsdp.share_comm_ctx([model, model.blocks[0]])
    fsdp.share_comm_ctx([])
    return train(model, 2, rank, torch.optim.SGD(model.parameters(), lr=0.1))


def test_settings_that_hold_in_any_case():
    assert_same_as_fsdp2(2, accepted)


class Empty(nn.Module):
    def forward(self, x):
        return x * 2


def without_parameters(fsdp, rank, size):
    policy = fsdp.MixedPrecisionPolicy(param_dtype=torch.bfloat16, output_dtype=torch.float32)
    empty = fsdp.fully_shard(Empty(), mp_policy=policy)
    outer = fsdp.fully_shard(nn.Sequential(nn.Linear(3, 3), empty, fsdp.fully_shard(Empty())))
    for module in (empty, outer):
        module.unshard()
        module.reshard()
        module.set_modules_to_forward_prefetch([empty])
        module.set_modules_to_backward_prefetch([outer] if module is empty else [])
        module.set_requires_gradient_sync(True)
        module.set_is_last_backward(True)
    empty.set_modules_to_forward_prefetch([])
    torch.manual_seed(rank)
    out = outer(torch.randn(2, 3))
    out.sum().backward()
    return type(empty).__name__, out.dtype, empty(torch.ones(3)).dtype, gradients_of(outer)


def test_modules_without_parameters():
    ours = run_ranks(2, only_ours, without_parameters)
    assert ours[0][:3] == ("FSDPEmpty", torch.float32, torch.float32)


def only_ours(rank, size, function, *args):
    import fsdp_cpp

    return function(fsdp_cpp, rank, size, *args)


def ignoring(fsdp, rank, size):
    model = make_model()
    ignored = {model.embedding.weight, model.blocks[0].up.weight, model.blocks[0].up.bias}
    shard_model(fsdp, model, ignored_params=ignored)
    plain = sorted(name for name, parameter in model.named_parameters() if type(parameter) is nn.Parameter)
    before = {name: full(p) for name, p in model.named_parameters()}
    loss_of(model, make_batch(0, rank)).backward()
    return plain, before, gradients_of(model)


def test_ignored_parameters():
    assert_same_as_fsdp2(2, ignoring)


def on_meta(fsdp, rank, size):
    """PyTorch's documented way: build on meta, shard, to_empty, then initialise or load."""
    whole = make_model(seed=11)
    with torch.device("meta"):
        model = make_model()
    shard_model(fsdp, model)
    kinds = [(p.is_meta, str(p.placements), tuple(p.shape), p.to_local().shape) for p in model.parameters()]
    model.to_empty(device="cpu")
    kinds += [(p.is_meta, p.device.type, p.to_local().shape) for p in model.parameters()]
    load_rows(model, whole)
    return kinds, parameters_of(model), train(model, 2, rank, torch.optim.AdamW(model.parameters(), lr=1e-2))


def load_rows(model, whole):
    from torch.distributed.tensor import distribute_tensor

    rows = {}
    for name, parameter in model.state_dict().items():
        rows[name] = distribute_tensor(whole.state_dict()[name], parameter.device_mesh, parameter.placements)
    model.load_state_dict(rows, assign=True)


def test_meta_construction_and_loading():
    assert_same_as_fsdp2(2, on_meta)


def reset_after_meta(fsdp, rank, size):
    """Initialises by constants: PyTorch's random numbers for DTensors are other ones than one process draws."""
    with torch.device("meta"):
        net = nn.Sequential(nn.LayerNorm(7), nn.Linear(7, 5))
    fsdp.fully_shard(net[1])
    fsdp.fully_shard(net)
    net.to_empty(device="cpu")
    net[0].reset_parameters()  # by attributes, which are whole parameters here
    nn.init.constant_(net[1].weight, 0.25)
    nn.init.constant_(dict(net.named_parameters())["1.bias"], 0.5)
    with torch.no_grad():
        net[1].bias.add_(2)
        dict(net.named_parameters())["0.weight"].mul_(3)
    return parameters_of(net), full(net(torch.ones(2, 7)))


def test_initialisation_after_meta():
    assert_same_as_fsdp2(2, reset_after_meta)


def forgotten_meta(fsdp, rank, size):
    with torch.device("meta"):
        net = nn.Sequential(nn.Linear(3, 7), nn.BatchNorm1d(7))
    fsdp.fully_shard(net[0])
    fsdp.fully_shard(net)
    error = error_of(lambda: net(torch.ones(2, 3)))
    return error[0], "materialized from meta device" in error[1], "['1.weight', '1.bias']" in error[1]


def test_parameters_left_on_meta_are_an_error():
    assert_same_as_fsdp2(2, forgotten_meta)


def filled_after_error(rank, size):
    import fsdp_cpp

    with torch.device("meta"):
        net = fsdp_cpp.fully_shard(nn.Sequential(nn.Linear(3, 7), nn.BatchNorm1d(7)))
    error = error_of(lambda: net(torch.ones(2, 3)))
    net.to_empty(device="cpu")
    for tensor in (*net.parameters(), *net.buffers()):
        nn.init.ones_(tensor) if tensor.is_floating_point() else tensor.zero_()
    return error, error_of(lambda: net(torch.ones(2, 3)))


def test_forward_works_once_all_parameters_have_values():
    for first, second in run_ranks(2, filled_after_error):
        assert "0.weight" in first[1] and "1.bias" in first[1]
        assert second is None


def containers(fsdp, rank, size):
    net = nn.Sequential(*(nn.Linear(3, 3) for _ in range(4)))
    fsdp.fully_shard(net)
    part = net[:2]
    return type(net).__name__, type(part).__name__, isinstance(net, fsdp.FSDPModule), len(part)


def test_slices_of_a_container_are_of_its_own_class():
    assert_same_as_fsdp2(1, containers)


class TwoWays(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(5, 5)

    def forward(self, x):
        return self.inner(x)

    def generate(self, x, *, scale=1):
        return self.inner(x) * scale


def other_method(fsdp, rank, size):
    torch.manual_seed(0)
    net = TwoWays()
    policy = fsdp.MixedPrecisionPolicy(param_dtype=torch.bfloat16, output_dtype=torch.float32)
    fsdp.fully_shard(net, mp_policy=policy)
    fsdp.register_fsdp_forward_method(net, "generate")
    fsdp.register_fsdp_forward_method(nn.Linear(1, 1), "anything")
    out = net.generate(torch.ones(2, 5), scale=torch.tensor(3.0))
    out.sum().backward()
    return out.detach(), gradients_of(net)


def test_registered_forward_method():
    assert_same_as_fsdp2(2, other_method)


def unsharded_by_hand(fsdp, rank, size):
    model = shard_model(fsdp, make_model())
    handles = [block.unshard(async_op=True) for block in model.blocks]
    waited = [handle.wait() for handle in handles] + [handles[0].wait()]
    assert isinstance(handles[0], fsdp.UnshardHandle)
    nothing = model.unshard()
    shapes = [tuple(module.weight.shape) for module in (model.embedding, model.blocks[1].down)]
    for module in (model, *model.blocks):
        module.reshard()
        module.reshard()
    return waited, nothing, shapes, train(model, 2, rank, torch.optim.SGD(model.parameters(), lr=0.1))


def test_unshard_and_reshard():
    assert_same_as_fsdp2(2, unsharded_by_hand)


@pytest.mark.parametrize("ranks", [1, 3])
def test_sizes_that_do_not_divide(ranks):
    assert_same_as_fsdp2(ranks, local_parts)


def local_parts(fsdp, rank, size):
    net = nn.Sequential(nn.Linear(7, 1), nn.Linear(1, 2), nn.Linear(2, 5), nn.Conv1d(3, 4, 2))
    net[0].steps = nn.Parameter(torch.arange(5, dtype=torch.int32), requires_grad=False)
    torch.manual_seed(1)
    for parameter in net.parameters():
        if parameter.is_floating_point():
            nn.init.normal_(parameter)
    fsdp.fully_shard(net)
    return {name: (str(p.placements), p.to_local(), p.stride()) for name, p in net.named_parameters()}
