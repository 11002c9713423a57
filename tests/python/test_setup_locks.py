"""Clang finds every use of a member without the mutex that guards it (src/base/mutex.h)."""

import shutil
import subprocess
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.skipif(not shutil.which("clang++"), reason="clang++ is not installed")


def diagnose(source_dir, tmp_path, text):
    """Clang's exit status and messages for a file with this text."""
    (tmp_path / "all.cpp").write_text(text)
    torch_include = Path(torch.__file__).parent / "include"
    command = [
        "clang++",
        "-std=c++20",
        "-fsyntax-only",
        "-Werror=thread-safety",
        "-I",
        source_dir / "src",
        "-I",
        source_dir / "include",
        "-isystem",
        torch_include,
        "-isystem",
        torch_include / "torch/csrc/api/include",
        tmp_path / "all.cpp",
    ]
    result = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    return result.returncode, result.stderr


def test_layers_take_the_locks_that_their_members_name(source_dir, tmp_path):
    sources = [
        source
        for layer in ("engine", "dispatch", "deferred")
        for source in sorted((source_dir / "src" / layer).glob("*.cpp"))
        if not source.name.endswith("_test.cpp")
    ]
    assert len(sources) > 20
    status, messages = diagnose(source_dir, tmp_path, "".join(f'#include "{source}"\n' for source in sources))
    assert (status, "thread-safety" in messages) == (0, False), messages


def test_a_use_without_the_lock_is_found(source_dir, tmp_path):
    status, messages = diagnose(
        source_dir,
        tmp_path,
        '#include "engine/unit.h"\nbool pinned(fsdp::engine::Unit& unit) { return unit.use.pinned(); }\n',
    )
    assert status != 0 and "requires holding mutex 'unit.mutex'" in messages
