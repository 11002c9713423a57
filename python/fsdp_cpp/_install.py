"""install() and uninstall(): this package in the place of torch.distributed.fsdp."""

from __future__ import annotations

import gc
import importlib
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import torch
import torch.distributed.fsdp as torch_fsdp

from fsdp_cpp import _install_accelerate
from fsdp_cpp._options import EngineOptions, set_defaults

# Where people import FSDP from. They are loaded by install(), so that later imports from them find the package.
_ADDRESSES = (
    "torch.distributed.fsdp",
    "torch.distributed.fsdp._fully_shard",
    "torch.distributed.fsdp.fully_sharded_data_parallel",
    "torch.distributed._composable.fsdp",
    "torch.distributed._composable.fsdp.fully_shard",
    "torch.distributed.checkpoint.state_dict",
)

# torch's own FSDP, which is made of these modules, keeps its own classes: saved references to it still work.
_IMPLEMENTATION = ("torch.distributed.fsdp._", "torch.distributed._composable.replicate_with_fsdp")

# The names that install() has replaced: (module, name) -> the value before.
_replaced: dict[tuple[ModuleType, str], Any] = {}

# Modules that were loaded when install() looked through them. Those loaded later bind the package's objects by
# themselves, for uninstall() to find.
_seen: set[str] = set()


def install(*, cpu: bool | None = None, engine_options: EngineOptions | None = None) -> None:
    """Puts this package in the place of ``torch.distributed.fsdp`` for the whole process.

        import fsdp_cpp

        fsdp_cpp.install()
        …  # accelerate, the Trainer, the SFTTrainer as before

    ``fully_shard``, ``FSDPModule`` and the other names that both have become those of this package in
    ``torch.distributed.fsdp``, in its other addresses, and in all modules that have imported them from there, before or
    after this call. Objects that hold them otherwise (defaults of arguments, closures, entries of containers) keep
    torch's.

    accelerate chooses FSDP on CPUs, too, when a script, its environment or the launcher asks for it; without this
    package it takes DDP there, without a word.

    Call it before the model is sharded, on all ranks. It may be called again: it takes the new options, and looks
    through modules that were loaded since.

    Args:
        cpu: whether models are trained on CPUs: accelerate, and with it the Trainer, then computes there even if it was
            not told to, and ``fully_shard`` without a mesh shards over CPUs. None: if torch finds no accelerator.
        engine_options: the options of models that ``fully_shard`` is called on without ``engine_options``. None: the
            defaults of :class:`EngineOptions`.

    Raises:
        RuntimeError: a model that torch's own FSDP has sharded exists. It would no longer be taken for one of FSDP.
    """
    _refuse_beside_sharded_models()
    on_cpu = cpu if cpu is not None else not torch.accelerator.is_available()
    for address in _ADDRESSES:
        importlib.import_module(address)
    _replace(_replacements())
    _seen.update(sys.modules)
    set_defaults(engine_options or EngineOptions(), "cpu" if cpu else None)
    _install_accelerate.choose_fsdp_on_cpus(on_cpu)


def uninstall() -> None:
    """Restores all that :func:`install` has replaced. Does nothing if it is not installed.

    Names in modules that were loaded since install() become torch's as well, even if they were imported from this
    package. Models that are sharded stay on this engine.
    """
    if _replaced:
        ours = {id(theirs): ours for theirs, ours in _replacements()}
        for (module, name), value in _replaced.items():
            if vars(module).get(name) is ours[id(value)]:
                setattr(module, name, value)
        _restore_later_modules()
    _replaced.clear()
    _seen.clear()
    set_defaults(EngineOptions(), None)
    _install_accelerate.choose_fsdp_on_cpus(False)


def _replacements() -> list[tuple[Any, Any]]:
    """Pairs of torch's objects and this package's of the same name."""
    import fsdp_cpp

    names = [name for name in torch_fsdp.__all__ if name in fsdp_cpp.__all__]
    pairs = [(_originals().get(name), getattr(fsdp_cpp, name)) for name in names]
    return [(theirs, ours) for theirs, ours in pairs if theirs is not ours]


def _originals() -> dict[str, Any]:
    """torch's own objects by name, installed or not."""
    return {name: _replaced.get((torch_fsdp, name), getattr(torch_fsdp, name)) for name in torch_fsdp.__all__}


def _replace(pairs: list[tuple[Any, Any]]) -> None:
    ours_by_theirs = {id(theirs): ours for theirs, ours in pairs}
    for module, name, value in _names_of_loaded_modules(set()):
        if id(value) in ours_by_theirs:
            _replaced[(module, name)] = value
            setattr(module, name, ours_by_theirs[id(value)])


def _restore_later_modules() -> None:
    theirs_by_ours = {id(ours): theirs for theirs, ours in _replacements()}
    for module, name, value in _names_of_loaded_modules(_seen):
        if id(value) in theirs_by_ours:
            setattr(module, name, theirs_by_ours[id(value)])


def _names_of_loaded_modules(without: set[str]) -> Iterator[tuple[ModuleType, str, Any]]:
    for module_name, module in list(sys.modules.items()):
        if module_name in without or not isinstance(module, ModuleType) or _keeps_its_own(module_name):
            continue
        for name, value in list(vars(module).items()):
            yield module, name, value


def _keeps_its_own(module_name: str) -> bool:
    if module_name in _ADDRESSES:
        return False
    return module_name.startswith(_IMPLEMENTATION) or module_name.partition(".")[0] == "fsdp_cpp"


def _refuse_beside_sharded_models() -> None:
    originals = _originals()
    for base in (originals["FSDPModule"], originals["FullyShardedDataParallel"]):
        module = _an_instance(base)
        if module is not None:
            raise RuntimeError(
                f"fsdp_cpp.install: a model that torch's own FSDP has sharded exists ({type(module).__name__}); call "
                "install() before the first model is sharded, or delete that model first"
            )


def _an_instance(base: type) -> Any:
    """An object of a class or of one derived from it, if the process has one."""
    classes = {base}
    while more := {derived for one in classes for derived in type.__subclasses__(one)} - classes:
        classes |= more
    found = _instance_among_referrers(classes)
    if found is None:
        return None
    del found
    gc.collect()  # modules are in cycles with their hooks
    return _instance_among_referrers(classes)


def _instance_among_referrers(classes: set[type]) -> Any:
    return next((one for one in gc.get_referrers(*classes) if type(one) in classes), None)
