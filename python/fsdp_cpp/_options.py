"""Options of the engine that PyTorch's FSDP has no argument for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class EngineOptions:
    """Options of the engine beyond the arguments of PyTorch's FSDP, for ``fully_shard(..., engine_options=...)``.

    All calls of ``fully_shard`` for one model must use the same options, on all ranks.

    Attributes:
        backend: the way by which ranks exchange data. ``"auto"`` takes NCCL on GPUs; on CPUs shared memory within a
            host and Gloo between hosts. ``"shm"``, ``"gloo"`` and ``"nccl"`` insist on one.
        forward_prefetch: whether forward issues the gather of the unit that it is expected to need next.
        backward_prefetch: when backward does so: ``"BACKWARD_PRE"`` (before the current unit's gradients are computed),
            ``"BACKWARD_POST"`` (after them) or ``"none"``.
        limit_all_gathers: whether at most ``max_gathered_units`` units are gathered at a time.
        max_gathered_units: see ``limit_all_gathers``. The unit in use counts, the root does not.
        one_communicator: whether gathers and reductions share one communicator instead of having one each.
        keep_memory: whether the memory of gradients and gathered parameters stays allocated between steps.
        collective_check: when ranks compare the collectives that they issue: ``"sampled"`` (in the first three steps,
            then in every hundredth), ``"always"`` or ``"off"``.
        dump_folder: a folder in which a rank whose collective fails writes its last collectives. Empty: none.
        read_only_parameters: whether gathered parameters that ranks share are protected against writes that bypass
            operators. ``None``: as the library was built.
    """

    backend: str = "auto"
    forward_prefetch: bool = True
    backward_prefetch: str = "BACKWARD_PRE"
    limit_all_gathers: bool = True
    max_gathered_units: int = 2
    one_communicator: bool = False
    keep_memory: bool = False
    collective_check: str = "sampled"
    dump_folder: str = ""
    read_only_parameters: bool | None = None


@dataclass
class _Defaults:
    engine_options: EngineOptions
    device_type: str | None  # None: the accelerator, or CPUs where torch finds none


_defaults = _Defaults(EngineOptions(), None)


def default_engine_options() -> EngineOptions:
    """The options of models that are sharded without any."""
    return _defaults.engine_options


def default_device_type() -> str | None:
    """The device type of the mesh of models that are sharded without one; None: torch's accelerator."""
    return _defaults.device_type


def set_defaults(engine_options: EngineOptions, device_type: str | None) -> None:
    """Sets the options and the device type of models that are sharded from now on without them."""
    _defaults.engine_options = engine_options
    _defaults.device_type = device_type
