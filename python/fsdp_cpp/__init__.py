"""Fully Sharded Data Parallel for PyTorch, on the engine of fsdp.cpp.

    from fsdp_cpp import fully_shard

    for block in model.layers:
        fully_shard(block)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters())
    …  # train as before

The names are those of ``torch.distributed.fsdp``.
"""

from fsdp_cpp import _library

_compiled = _library.load()
__version__ = _compiled.version

from fsdp_cpp import _registration  # noqa: E402

_registration.install()

from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy  # noqa: E402
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler  # noqa: E402

from fsdp_cpp import _clipping, _compile, _exports, _fsdp1_parts, _optimizer  # noqa: E402
from fsdp_cpp._checkpoint import LoadedCheckpoint, load, save  # noqa: E402
from fsdp_cpp._fsdp1 import FullyShardedDataParallel  # noqa: E402
from fsdp_cpp._fully_shard import fully_shard, register_fsdp_forward_method, share_comm_ctx  # noqa: E402
from fsdp_cpp._install import install, uninstall  # noqa: E402
from fsdp_cpp._module import FSDPModule, UnshardHandle  # noqa: E402
from fsdp_cpp._options import EngineOptions  # noqa: E402
from fsdp_cpp._sharded_parameter import ShardedParameter  # noqa: E402

_compile.install()
_optimizer.install()
_fsdp1_parts.install()
_clipping.install()
_exports.install()

__all__ = [
    "CPUOffloadPolicy",
    "EngineOptions",
    "FSDPModule",
    "FullyShardedDataParallel",
    "LoadedCheckpoint",
    "MixedPrecisionPolicy",
    "OffloadPolicy",
    "ShardedGradScaler",
    "ShardedParameter",
    "UnshardHandle",
    "fully_shard",
    "install",
    "load",
    "register_fsdp_forward_method",
    "save",
    "share_comm_ctx",
    "uninstall",
]
