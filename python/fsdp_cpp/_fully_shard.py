"""fully_shard: the function of torch.distributed.fsdp, on this engine."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, NoReturn, overload

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy
from torch.distributed.tensor import Shard

from fsdp_cpp._casts import cast_inputs_of, cast_outputs_of, with_casts
from fsdp_cpp._checks import check_mesh, check_modules, check_not_supported, check_parameters, check_same_arguments
from fsdp_cpp._ctrl_c import end_waits_at_ctrl_c
from fsdp_cpp._gradient_hooks import keep_calling_hooks
from fsdp_cpp._groups import default_mesh, device_of, group_names, group_of
from fsdp_cpp._meta import mark_without_values, parameters_on_meta
from fsdp_cpp._mirror import annotate, build_mirror
from fsdp_cpp._module import FSDPModule, ModuleState, TreeArguments, annotate_class, state_of
from fsdp_cpp._options import EngineOptions, default_engine_options
from fsdp_cpp._parameters import list_as_sharded, may_hold_sharded, whole_parameters
from fsdp_cpp._sharded_parameter import ShardedParameter, make_sharded_parameter, sharded_parameter_of
from fsdp_cpp._tensor_parallel import LocalParts

_classes = torch.classes.fsdp_cpp

_NO_POLICY = MixedPrecisionPolicy()
_NO_OFFLOAD = OffloadPolicy()


@overload
def fully_shard(
    module: nn.Module,
    *,
    mesh: DeviceMesh | None = ...,
    reshard_after_forward: bool | int | None = ...,
    shard_placement_fn: Callable[[nn.Parameter], Shard | None] | None = ...,
    mp_policy: MixedPrecisionPolicy = ...,
    offload_policy: OffloadPolicy = ...,
    ignored_params: set[nn.Parameter] | None = ...,
    dp_mesh_dims: Any = ...,
    engine_options: EngineOptions | None = ...,
) -> FSDPModule: ...
@overload
def fully_shard(
    module: list[nn.Module],
    *,
    mesh: DeviceMesh | None = ...,
    reshard_after_forward: bool | int | None = ...,
    shard_placement_fn: Callable[[nn.Parameter], Shard | None] | None = ...,
    mp_policy: MixedPrecisionPolicy = ...,
    offload_policy: OffloadPolicy = ...,
    ignored_params: set[nn.Parameter] | None = ...,
    dp_mesh_dims: Any = ...,
    engine_options: EngineOptions | None = ...,
) -> list[FSDPModule]: ...
def fully_shard(
    module: nn.Module | list[nn.Module],
    *,
    mesh: DeviceMesh | None = None,
    reshard_after_forward: bool | int | None = None,
    shard_placement_fn: Callable[[nn.Parameter], Shard | None] | None = None,
    mp_policy: MixedPrecisionPolicy = _NO_POLICY,
    offload_policy: OffloadPolicy = _NO_OFFLOAD,
    ignored_params: set[nn.Parameter] | None = None,
    dp_mesh_dims: Any = None,
    engine_options: EngineOptions | None = None,
) -> Any:
    """Shards the parameters of a module over the ranks of a mesh, in place.

    Makes one unit of all parameters below ``module`` that no inner call has taken: they are gathered in one collective
    when an operator first needs one of them, and their gradients are reduced in one collective. Call it bottom-up, on
    each block and then on the model. Modules of a list form one unit together.

    Afterwards ``module.parameters()`` are DTensors with the placement ``Shard(0)``, or the one that
    ``shard_placement_fn`` returns: build optimizers on them.
    ``module.weight`` stays a whole parameter, which is gathered on use, in forward or anywhere else; what is written to
    it outside training is kept by the shards.

    Parameters that tensor parallelism has split before (DTensors over another dimension of the same mesh) stay split:
    the rows of each rank's part are sharded over ``mesh``, and ``module.weight`` is a DTensor as it was.

    Parameters on the device meta get shards without values. They pass for meta tensors until ``to_empty()``, an
    initialisation or ``load_state_dict()`` has written to them; forward is an error before.

    Args:
        module: the module, or several of them. Its class becomes ``FSDP<class>``, a subclass of :class:`FSDPModule`.
        mesh: the ranks. One dimension: shards over all of them. Two dimensions: shards over the second, replicates over
            the first (HSDP). None: all ranks of the job.
        reshard_after_forward: whether parameters are released after forward and gathered again in backward. None: yes,
            except for the root. An integer N: they are kept spread over groups of N ranks.
        shard_placement_fn: returns the placement ``Shard(dim)`` of a parameter; None: ``Shard(0)``. The ranks need not
            divide the dimension. A whole parameter that is cut in another dimension than the first one has that
            dimension outermost in memory, so it is not contiguous.
        mp_policy: dtypes of computation, reduction, inputs and outputs.
        offload_policy: ``CPUOffloadPolicy()`` keeps shards, gradients and optimizer state in host memory.
        ignored_params: parameters that are left as they are.
        dp_mesh_dims: not supported; refused unless None.
        engine_options: options that PyTorch's FSDP does not have. None: those of :func:`install`, or the defaults.

    Returns:
        ``module``.

    Raises:
        ValueError: the module is a container without forward, the mesh has three or more dimensions, a parameter has no
            dimension to cut, ``reshard_after_forward`` is no divisor of the number of ranks.
        AssertionError: a module is sharded twice; a mesh of two dimensions has no names.
        NotImplementedError: an argument asks for something that this engine does not do; the message names it.
        RuntimeError: ranks shard differently, or do not come.
    """
    modules = _topmost(module) if isinstance(module, (list, tuple)) else [module]
    check_modules(modules)
    check_not_supported(dp_mesh_dims, offload_policy)
    end_waits_at_ctrl_c()
    mesh = mesh if mesh is not None else default_mesh()
    check_mesh(mesh)
    shard_dims = check_parameters(modules, shard_placement_fn, ignored_params, mesh)
    engine_options = engine_options if engine_options is not None else default_engine_options()
    arguments = TreeArguments(group_names(mesh), offload_policy, engine_options)
    check_same_arguments(modules, arguments)
    makes_unit = _makes_unit(modules, ignored_params)
    options = _options(
        mesh, reshard_after_forward, mp_policy, offload_policy, ignored_params, engine_options, makes_unit
    )
    with LocalParts(modules, ignored_params) as local_parts:
        options.set_shard_dims([local_parts.of(one) for one in shard_dims], list(shard_dims.values()))
        on_meta = parameters_on_meta(modules)
        sharded = _shard(modules, options) if any(True for one in modules for _ in one.parameters()) else None
        local_parts.keep()
    _show_sharded_parameters(modules, mesh)
    mark_without_values(modules, on_meta)
    for one in modules:
        _annotate(one, sharded, arguments, mp_policy)
    return module


def _refuse_state(module: nn.Module) -> NoReturn:
    """In the place of ``fully_shard.state``, by which torch.distributed.pipelining reaches into FSDP2's own units."""
    raise NotImplementedError(
        f"fsdp_cpp: fully_shard.state({type(module).__name__}) is not supported: the state of a unit is the engine's, "
        "not in Python. A pipeline stage asks for it after fsdp_cpp.install(); import fully_shard from fsdp_cpp "
        "without install(), and each microbatch reduces its gradients"
    )


fully_shard.state = _refuse_state  # type: ignore[attr-defined]


def register_fsdp_forward_method(module: nn.Module, method_name: str) -> None:
    """Lets a method other than forward cast its arguments and results as forward does. Its parameters are gathered on
    use with or without this call. Does nothing if ``module`` is not sharded."""
    if not isinstance(module, FSDPModule):
        return
    if not hasattr(module, method_name):
        raise ValueError(f"{type(module)} does not have a method {method_name}")
    state = state_of(module)
    method = with_casts(getattr(module, method_name), state.input_dtype, state.output_dtype)
    setattr(module, method_name, method.__get__(module, type(module)))


def share_comm_ctx(modules: list[FSDPModule]) -> None:
    """Does nothing but check its argument: models over one mesh share their communicators and streams in any case."""
    for module in modules:
        if not isinstance(module, FSDPModule):
            raise ValueError(f"Expects list of FSDPModules but got {module}")


# -- options --


def _options(
    mesh: DeviceMesh,
    reshard_after_forward: bool | int | None,
    mp_policy: MixedPrecisionPolicy,
    offload_policy: OffloadPolicy,
    ignored: set[nn.Parameter] | None,
    engine: EngineOptions,
    makes_unit: bool,
) -> torch.ScriptObject:
    options = _classes.Options()
    if mesh.ndim == 1:
        options.set_group(group_of(mesh, 0, engine.backend))
    else:
        options.set_mesh(None, group_of(mesh, 1, engine.backend), group_of(mesh, 0, engine.backend))
    options.set_device(device_of(mesh))
    reshard = None if reshard_after_forward is None else _reshard_size(reshard_after_forward, mesh.size(mesh.ndim - 1))
    # Where inner calls have sharded everything, options of a unit would apply to nothing, which the library refuses;
    # but models are commonly sharded last with the options of their blocks.
    if makes_unit:
        options.set_strategy("FULL_SHARD" if mesh.ndim == 1 else "HYBRID_SHARD")
        if reshard is not None:
            options.set_reshard_after_forward(reshard)
        # Inputs are cast where PyTorch casts them, at the module's boundary, and not again at each operator.
        options.set_mixed_precision(mp_policy.param_dtype, mp_policy.reduce_dtype, None, False, False)
    options.set_offload(isinstance(offload_policy, CPUOffloadPolicy), None)
    options.set_layout(True, True)
    options.ignore(list(ignored or ()))
    options.set_overlap(
        engine.backward_prefetch,
        engine.forward_prefetch,
        engine.limit_all_gathers,
        engine.max_gathered_units,
        engine.one_communicator,
    )
    options.set_keep_memory(engine.keep_memory)
    options.set_debug(engine.collective_check, engine.dump_folder, engine.read_only_parameters)
    return options


def _makes_unit(modules: list[nn.Module], ignored: set[nn.Parameter] | None) -> bool:
    """Whether inner calls have left parameters to shard."""
    parameters = (parameter for module in modules for parameter in module.parameters())
    return any(type(one) is not ShardedParameter and one not in (ignored or ()) for one in parameters)


def _reshard_size(reshard_after_forward: bool | int, ranks: int) -> int:
    if isinstance(reshard_after_forward, bool):
        return int(reshard_after_forward)
    if not isinstance(reshard_after_forward, int):
        raise ValueError(
            "reshard_after_forward should be a bool or an int representing the group size to reshard to, not "
            f"{reshard_after_forward}"
        )
    if reshard_after_forward < 1 or ranks % reshard_after_forward:
        raise ValueError(
            f"If passing reshard_after_forward as an int, it should be a factor of {ranks}, not {reshard_after_forward}"
        )
    if reshard_after_forward == 1:
        warnings.warn(
            "reshard_after_forward=1 (int) means resharding parameters to world size 1, instead of "
            "reshard_after_forward=True (bool)",
            stacklevel=4,
        )
        return 0
    return 1 if reshard_after_forward == ranks else reshard_after_forward


# -- sharding --


def _topmost(modules: list[nn.Module] | tuple[nn.Module, ...]) -> list[nn.Module]:
    """The modules of a list that are not below another one of it."""
    below = {id(one) for module in modules for one in list(module.modules())[1:]}
    return [module for module in modules if id(module) not in below]


def _shard(modules: list[nn.Module], options: torch.ScriptObject) -> torch.ScriptObject:
    mirrors = [build_mirror(module) for module in modules]
    sharded = _classes.Sharded.fully_shard(mirrors, options)
    for module, mirror in zip(modules, mirrors, strict=True):
        annotate(module, mirror)
    return sharded


def _show_sharded_parameters(modules: list[nn.Module], mesh: DeviceMesh) -> None:
    """Lists the parameters that the engine has taken over as sharded ones, wherever they are registered."""
    for module in modules:
        for holder in module.modules():
            may_hold_sharded(holder)
            for name, whole in whole_parameters(holder).items():
                if not _classes.Whole.is_whole(whole):
                    continue
                known = sharded_parameter_of(whole)
                if known is None or holder._parameters.raw(name) is not known:
                    list_as_sharded(holder, name, known if known is not None else make_sharded_parameter(whole, mesh))
        keep_calling_hooks(module.parameters())


def _annotate(
    module: nn.Module, sharded: torch.ScriptObject | None, arguments: TreeArguments, policy: MixedPrecisionPolicy
) -> None:
    inputs = policy.param_dtype if policy.cast_forward_inputs else None
    annotate_class(module, ModuleState(sharded, arguments, policy.output_dtype, inputs))
    if inputs is not None:
        cast_inputs_of(module, inputs)
    if policy.output_dtype is not None:
        cast_outputs_of(module, policy.output_dtype)
