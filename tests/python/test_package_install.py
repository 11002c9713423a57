"""fsdp_cpp.install() and uninstall(): which names become the package's, and which device accelerate chooses."""

import functools
import gc
import importlib
import os
import sys
import types
from unittest import mock

import pytest
import torch
import torch.distributed.fsdp as torch_fsdp
from torch import nn

from package_ranks import run_ranks

# What the package has in the place of torch's, and from where people import it.
REPLACED = ["FSDPModule", "UnshardHandle", "fully_shard", "register_fsdp_forward_method", "share_comm_ctx"]
ADDRESSES = {
    "torch.distributed.fsdp": REPLACED,
    "torch.distributed.fsdp._fully_shard": REPLACED,
    "torch.distributed._composable.fsdp": ["FSDPModule", "fully_shard", "register_fsdp_forward_method"],
    "torch.distributed._composable.fsdp.fully_shard": ["FSDPModule", "fully_shard", "UnshardHandle"],
    "transformers.distributed.fsdp": ["fully_shard"],
    "user_of_fsdp": ["fully_shard", "Module"],
}
USER = "from torch.distributed.fsdp import FSDPModule as Module, fully_shard\nimport torch.distributed.fsdp as fsdp\n"


def names_of_all_modules():
    """Values of all names of all modules, without those of the interpreter that change by themselves."""
    modules = [(key, module) for key, module in sys.modules.items() if isinstance(module, types.ModuleType)]
    return {
        (key, name): value
        for key, module in modules
        for name, value in vars(module).items()
        if callable(value) and not key.startswith("fsdp_cpp")
    }


def import_user(name):
    """A module of a user of FSDP."""
    module = sys.modules[name] = types.ModuleType(name)
    exec(USER, vars(module))
    return module


def names_everywhere(rank, size):
    import fsdp_cpp

    import_user("user_of_fsdp")
    for address in ADDRESSES:
        importlib.import_module(address)
    theirs = {name: getattr(torch_fsdp, name) for name in REPLACED}
    before = names_of_all_modules()

    fsdp_cpp.install()
    for address, names in ADDRESSES.items():
        for name in names:
            expected = getattr(fsdp_cpp, {"Module": "FSDPModule"}.get(name, name))
            assert getattr(sys.modules[address], name) is expected, f"{address}.{name}"
    later = import_user("imported_later")
    assert later.fully_shard is later.fsdp.fully_shard is fsdp_cpp.fully_shard and later.Module is fsdp_cpp.FSDPModule
    assert isinstance(later.fully_shard(nn.Linear(3, 3)), torch_fsdp.FSDPModule)
    # Whoever holds torch's own function gets torch's own sharding.
    own = theirs["fully_shard"](nn.Linear(3, 3))
    assert isinstance(own, theirs["FSDPModule"]) and not isinstance(own, fsdp_cpp.FSDPModule)
    own(torch.ones(2, 3)).sum().backward()
    del own

    later.changed_since = sys.modules["user_of_fsdp"].fully_shard = len
    fsdp_cpp.uninstall()
    assert sys.modules["user_of_fsdp"].fully_shard is len  # not install()'s any more
    sys.modules["user_of_fsdp"].fully_shard = theirs["fully_shard"]
    assert later.fully_shard is theirs["fully_shard"] and later.Module is theirs["FSDPModule"]
    after = names_of_all_modules()
    assert [key for key, value in before.items() if after[key] is not value] == []
    fsdp_cpp.uninstall()
    assert fsdp_cpp.fully_shard is not torch_fsdp.fully_shard


def test_names_are_the_packages_everywhere_and_torchs_again_after_uninstall():
    run_ranks(1, names_everywhere)


def beside_torchs_models(rank, size):
    import fsdp_cpp

    theirs = torch_fsdp.fully_shard
    fsdp1 = functools.partial(torch_fsdp.FullyShardedDataParallel, device_id=torch.device("cpu"))
    for make in (torch_fsdp.fully_shard, fsdp1):
        model = make(nn.Linear(3, 3))
        with pytest.raises(RuntimeError, match=f"torch's own FSDP has sharded exists .{type(model).__name__}"):
            fsdp_cpp.install()
        assert torch_fsdp.fully_shard is theirs
        del model
    fsdp_cpp.install()
    fsdp_cpp.uninstall()
    gc.collect()


def test_install_is_refused_beside_models_that_torchs_fsdp_has_sharded():
    run_ranks(1, beside_torchs_models)


def options(rank, size):
    import fsdp_cpp
    from fsdp_cpp import EngineOptions

    fsdp_cpp.install(engine_options=EngineOptions(backward_prefetch="no such"))
    with pytest.raises(ValueError, match="no such"):
        torch_fsdp.fully_shard(nn.Linear(3, 3))
    torch_fsdp.fully_shard(nn.Linear(3, 3), engine_options=EngineOptions())
    fsdp_cpp.install()  # again, with the defaults
    torch_fsdp.fully_shard(nn.Linear(3, 3))
    fsdp_cpp.install(engine_options=EngineOptions(backward_prefetch="no such"))
    fsdp_cpp.uninstall()
    fsdp_cpp.fully_shard(nn.Linear(3, 3))

    with mock.patch.object(torch._C, "_get_accelerator", lambda: torch.device("cuda")):
        fsdp_cpp.install(cpu=True)
        model = torch_fsdp.fully_shard(nn.Linear(3, 3))
        assert model.weight.device.type == "cpu" and next(model.parameters()).device_mesh.device_type == "cpu"


def test_models_get_the_engine_options_and_the_device_of_install():
    run_ranks(1, options)


def launched(rank, size):
    """What torchrun sets for a rank."""
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(size), LOCAL_WORLD_SIZE=str(size))
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29500")


def chosen(environment=False, **arguments):
    """What accelerate chooses in a new state; with `environment`, one that asks for FSDP."""
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(reset_partial_state=True)
    os.environ["ACCELERATE_USE_FSDP"] = str(environment).lower()
    accelerator = Accelerator(**arguments)
    again = Accelerator()  # shares the state
    assert accelerator.is_fsdp2 == (accelerator.distributed_type.value == "FSDP")
    assert again.distributed_type == accelerator.distributed_type and again.is_fsdp2 == accelerator.is_fsdp2
    return accelerator.distributed_type.value, accelerator.device.type, accelerator.num_processes


def choices_of_accelerate(rank, size):
    import fsdp_cpp
    from accelerate.utils import FullyShardedDataParallelPlugin

    def plugin():
        return FullyShardedDataParallelPlugin(fsdp_version=2)

    launched(rank, size)
    assert chosen(cpu=True, fsdp_plugin=plugin()) == ("MULTI_CPU", "cpu", size)  # accelerate by itself
    fsdp_cpp.install()
    assert chosen(cpu=True, fsdp_plugin=plugin()) == ("FSDP", "cpu", size)
    assert chosen(fsdp_plugin=plugin()) == ("FSDP", "cpu", size)  # no accelerator: on CPUs unasked
    assert chosen() == ("MULTI_CPU", "cpu", size)  # FSDP was not asked for
    with_bf16 = plugin()
    assert chosen(fsdp_plugin=with_bf16, mixed_precision="bf16")[0] == "FSDP"
    assert with_bf16.mixed_precision_policy.param_dtype == torch.bfloat16
    with mock.patch.dict(os.environ, FSDP_VERSION="2", FSDP_STATE_DICT_TYPE="SHARDED_STATE_DICT"):
        assert chosen(environment=True) == ("FSDP", "cpu", size)  # as a launcher asks
    fsdp_cpp.install(cpu=False)
    assert chosen(cpu=True, fsdp_plugin=plugin()) == ("MULTI_CPU", "cpu", size)
    fsdp_cpp.install(cpu=True)
    assert chosen(fsdp_plugin=plugin()) == ("FSDP", "cpu", size)
    fsdp_cpp.uninstall()
    assert chosen(cpu=True, fsdp_plugin=plugin()) == ("MULTI_CPU", "cpu", size)


def test_accelerate_chooses_fsdp_on_cpus_when_it_is_asked_for():
    run_ranks(2, choices_of_accelerate)
