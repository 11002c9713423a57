"""Device meshes and process groups as the library's communicators."""

from __future__ import annotations

import atexit
import os

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from fsdp_cpp._options import default_device_type

_group_class = torch.classes.fsdp_cpp.Group


def default_mesh() -> DeviceMesh:
    """A mesh of one dimension over all ranks, which starts torch.distributed if nobody has."""
    if not dist.is_initialized():
        dist.init_process_group()
    device_type = default_device_type() or torch._C._get_accelerator().type
    return init_device_mesh(device_type, (dist.get_world_size(),))


def device_of(mesh: DeviceMesh) -> torch.device:
    """The device on which this rank computes."""
    if mesh.device_type == "cpu":
        return torch.device("cpu")
    return torch.device(mesh.device_type, torch.accelerator.current_device_index())


def group_names(mesh: DeviceMesh) -> tuple[str, ...]:
    """The names of the process groups of a mesh's dimensions, this rank's ones."""
    return tuple(mesh.get_group(dimension).group_name for dimension in range(mesh.ndim))


def group_of(mesh: DeviceMesh, dimension: int, backend: str) -> torch.ScriptObject:
    """The communicator over the ranks of one dimension of a mesh. Collective when it is made."""
    process_group = mesh.get_group(dimension)
    if dist.get_world_size(process_group) == 1 or dist.get_backend(process_group) == "fake":
        backend = "fake"
    _group_class.forget(False)
    return _group_class.of(
        process_group.group_name,
        backend,
        device_of(mesh),
        os.environ.get("GLOO_SOCKET_IFNAME", ""),
        os.environ.get("MASTER_ADDR", ""),
    )


# The groups' connections end before torch's store does.
atexit.register(lambda: _group_class.forget(True))
