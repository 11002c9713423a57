"""Type checkers see the package as its documentation says: a script that uses it passes mypy --strict, and one that
misuses it does not."""

import subprocess
import sys

import pytest

HEAD = """
import torch
from torch import nn
import fsdp_cpp

model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
"""

GOOD = """
from torch.distributed.device_mesh import init_device_mesh

mesh = init_device_mesh("cpu", (2,))
policy = fsdp_cpp.MixedPrecisionPolicy(param_dtype=torch.bfloat16)
for layer in model:
    fsdp_cpp.fully_shard(layer, mesh=mesh, mp_policy=policy, offload_policy=fsdp_cpp.CPUOffloadPolicy())
sharded = fsdp_cpp.fully_shard(model, mesh=mesh, engine_options=fsdp_cpp.EngineOptions(backend="gloo"))
sharded.set_requires_gradient_sync(False)
handle = sharded.unshard(async_op=True)
if handle is not None:
    handle.wait()
loss: torch.Tensor = sharded(torch.ones(2, 2)).sum()
optimizer = torch.optim.AdamW(sharded.parameters())
both: list[fsdp_cpp.FSDPModule] = fsdp_cpp.fully_shard([nn.Linear(1, 1), nn.Linear(1, 1)])
fsdp_cpp.save("folder", model, optimizer, extra={"step": 1})
loaded: fsdp_cpp.LoadedCheckpoint = fsdp_cpp.load("folder", model, optimizer)
norm: torch.Tensor = fsdp_cpp.FullyShardedDataParallel(nn.Linear(2, 2)).clip_grad_norm_(1.0)
fsdp_cpp.register_fsdp_forward_method(model, "forward")
fsdp_cpp.install()
"""


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """A folder in which mypy keeps what it has read of torch from one script to the next."""
    return tmp_path_factory.mktemp("mypy")


@pytest.fixture
def check(source_dir, tmp_path, cache):
    """Runs mypy on a script, and returns the process that has ended."""

    def run(body):
        (tmp_path / "use.py").write_text(HEAD + body)
        options = ["--strict", "--follow-imports=silent", f"--cache-dir={cache}"]
        return subprocess.run(
            [sys.executable, "-m", "mypy", *options, "use.py"],
            cwd=tmp_path,
            env={"MYPYPATH": str(source_dir / "python"), "PATH": ""},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    return run


def test_scripts_are_typed(check):
    result = check(GOOD)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize(
    "mistake, said",
    [
        ("fsdp_cpp.fully_shard(model, mp_polcy=None)", 'did you mean "mp_policy"?'),
        ("fsdp_cpp.fully_shard(model, reshard_after_forward='yes')", "No overload variant"),
        ("fsdp_cpp.fully_shard(model).unshard(async_op='no')", 'expected "bool"'),
    ],
)
def test_mistakes_are_seen(check, mistake, said):
    result = check(mistake)
    assert result.returncode == 1
    assert said in result.stdout
