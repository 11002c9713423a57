"""Checkpoints of torch.distributed.checkpoint: torch writes what we read, and reads what we write, equal to the bit."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file

WRITER = Path(__file__).parent / "support/dcp_writer.py"


def run(*command, status=0):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout if status == 0 else done.stdout + done.stderr


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """What three ranks with FSDP2 wrote: the folder, with the same values in a file for each checkpoint."""
    folder = tmp_path_factory.mktemp("dcp")
    run(sys.executable, WRITER, folder)
    return folder


def assert_equal(ours, theirs):
    assert ours.keys() == theirs.keys(), ours.keys() ^ theirs.keys()
    for name, value in theirs.items():
        if isinstance(value, torch.Tensor):
            assert ours[name].dtype == value.dtype and ours[name].shape == value.shape, name
            assert torch.equal(ours[name], value), name
        else:
            assert ours[name] == value and type(ours[name]) is type(value), (name, ours[name], value)


def flatten(tree, prefix=""):
    """Leaves of nested dicts and lists by dotted names, as torch.distributed.checkpoint has them."""
    if isinstance(tree, dict) and tree:
        items = tree.items()
    elif isinstance(tree, list) and any(isinstance(item, (dict, torch.Tensor)) for item in tree):
        items = enumerate(tree)
    else:
        return {prefix[:-1]: tree}
    return {name: leaf for key, value in items for name, leaf in flatten(value, f"{prefix}{key}.").items()}


def zeros_like(tree):
    """A template for dcp.load with nothing of the values in it."""
    if isinstance(tree, dict):
        return {key: zeros_like(value) for key, value in tree.items()}
    if isinstance(tree, list) and any(isinstance(item, dict) for item in tree):
        return [zeros_like(item) for item in tree]
    return torch.zeros_like(tree) if isinstance(tree, torch.Tensor) else None


def load(folder, like):
    state = zeros_like(like)
    dcp.load(state, checkpoint_id=folder, no_dist=True)
    return state


@pytest.mark.parametrize("layout", ["nested", "flat"])
def test_torch_reads_what_became_of_its_checkpoint(fsdp_program, written, tmp_path, layout):
    """DCP to ours to DCP: model, buffers, moments, steps and groups are equal to the bit."""
    wanted = torch.load(written / f"{layout}.pt")
    said = run(
        fsdp_program,
        "convert",
        written / layout,
        tmp_path / "ours",
        "--to",
        "fsdp",
        "--buffer",
        "*.running_*",
        "--buffer",
        "*.num_batches_tracked",
    )
    assert "prefix removed from the model's names: model." in said
    assert "left out: value step" in said
    flags = ["--flatten-optimizer"] if layout == "flat" else []
    run(fsdp_program, "convert", tmp_path / "ours", tmp_path / "back", "--to", "dcp", *flags)
    wanted.pop("step")
    assert_equal(flatten(load(tmp_path / "back", wanted)), flatten(wanted))
    names = {
        tensor["name"] for tensor in json.loads(run(fsdp_program, "inspect", "--json", tmp_path / "ours"))["tensors"]
    }
    assert {"buffer/norm.running_mean", "model/norm.weight", "optimizer/odd.weight/exp_avg"} <= names


def test_a_sharded_run_goes_on_from_what_we_wrote(fsdp_program, written, tmp_path):
    """FSDP2 on other ranks loads our checkpoint into DTensors, and its next step is the one it would have been."""
    run(fsdp_program, "convert", written / "nested", tmp_path / "ours", "--to", "fsdp")
    run(fsdp_program, "convert", tmp_path / "ours", tmp_path / "back", "--to", "dcp")
    run(sys.executable, WRITER, tmp_path, "resume", tmp_path / "back")
    assert_equal(torch.load(tmp_path / "resumed.pt"), torch.load(written / "next.pt"))


def test_dtypes_shapes_and_placements(fsdp_program, written, tmp_path):
    """Uneven and empty shards, 0-d and empty tensors, transposed ones and all dtypes that safetensors can hold."""
    wanted = torch.load(written / "odd.pt")
    (tmp_path / "config.json").write_text('{"model_type": "none"}')
    said = run(
        fsdp_program,
        "convert",
        written / "odd",
        tmp_path / "hf",
        "--to",
        "hf",
        "--config",
        tmp_path / "config.json",
        "--max-shard-size",
        "1kB",
    )
    assert "left out" not in said
    ours = {}
    for file in sorted((tmp_path / "hf").glob("*.safetensors")):
        ours |= load_file(file)
    assert_equal(ours, wanted)
    run(fsdp_program, "convert", tmp_path / "hf", tmp_path / "dcp", "--to", "dcp", "--model-prefix", "")
    assert_equal(load(tmp_path / "dcp", wanted), wanted)
    assert (tmp_path / "dcp" / "config.json").read_bytes() == (tmp_path / "hf" / "config.json").read_bytes()


def test_inspect_says_what_torch_says(fsdp_program, written):
    for name in ["nested", "flat", "odd"]:
        said = json.loads(run(fsdp_program, "inspect", "--json", "--verify", written / name))
        metadata = dcp.FileSystemReader(written / name).read_metadata()
        tensors = {key: entry for key, entry in metadata.state_dict_metadata.items() if hasattr(entry, "size")}
        assert {t["name"]: (f"torch.{t['dtype']}", t["shape"], len(t["parts"])) for t in said["tensors"]} == {
            key: (str(entry.properties.dtype), list(entry.size), len(entry.chunks)) for key, entry in tensors.items()
        }
        assert said["problems"] == []
    text = run(fsdp_program, "inspect", written / "nested")
    assert "checkpoint of torch.distributed.checkpoint" in text and "optim.param_groups.0.betas: [0.9,0.999]" in text


def test_damage_is_named(fsdp_program, written, tmp_path):
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    for file in (written / "nested").iterdir():
        (damaged / file.name).write_bytes(file.read_bytes())
    place = next(
        info
        for index, info in dcp.FileSystemReader(damaged).read_metadata().storage_data.items()
        if index.fqn == "model.odd.weight"
    )
    data = bytearray((damaged / place.relative_path).read_bytes())
    at = data.index(b"/data/0", place.offset) + 80
    data[at] ^= 1
    (damaged / place.relative_path).write_bytes(data)
    said = run(fsdp_program, "inspect", "--verify", damaged, status=1)
    assert f'{place.relative_path}: "model.odd.weight"' in said and "CRC-32" in said and "1 problem" in said
    assert '"model.odd.weight"' in run(fsdp_program, "convert", damaged, tmp_path / "x", "--to", "fsdp", status=1)
    assert not (tmp_path / "x").exists()
    os.truncate(damaged / place.relative_path, len(data) - 1)
    said = run(fsdp_program, "inspect", damaged, status=1)
    assert place.relative_path in said and "cut short" in said


def test_wrong_usage_is_named(fsdp_program, written, tmp_path):
    assert "config.json" in run(fsdp_program, "convert", written / "odd", tmp_path / "x", "--to", "hf", status=1)
    assert "must be a whole number of bytes" in run(
        fsdp_program, "convert", "a", "b", "--max-shard-size", "5GX", status=2
    )
    assert "--flatten-optimizer needs" in run(
        fsdp_program, "convert", written / "odd", tmp_path / "x", "--to", "fsdp", "--flatten-optimizer", status=1
    )
