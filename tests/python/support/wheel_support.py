"""A wheel of the build under test, and environments that it is installed into."""

import os
import subprocess
import sys
from pathlib import Path

import torch

TORCH = Path(torch.__file__).parent


def call(*command, **options):
    result = subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, timeout=300, check=False, **options
    )
    assert result.returncode == 0, f"{command} failed:\n{result.stdout}\n{result.stderr}"
    return result.stdout


def make_wheel(source_dir, build_dir, folder, *options):
    call(sys.executable, source_dir / "scripts/make_wheel.py", "--build-dir", build_dir, "--output", folder, *options)
    (wheel,) = folder.glob("*.whl")
    return wheel


class Environment:
    """A fresh virtual environment, which runs programs without a compiler on PATH and without variables of tests."""

    def __init__(self, folder):
        self.folder = folder
        call(sys.executable, "-m", "venv", "--without-pip", folder)
        self.python = folder / "bin/python"
        (self.site_packages,) = folder.glob("lib/python*/site-packages")
        self.variables = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("FSDP_", "PYTHON")) and name not in ("LD_LIBRARY_PATH", "TORCH_DIR")
        }
        self.variables["PATH"] = str(folder / "bin")

    def install(self, wheel):
        call(
            sys.executable, "-m", "pip", "--python", self.python, "install", "--quiet", "--no-index", "--no-deps", wheel
        )

    def share_packages(self):
        """Lets the environment see torch, and what torch imports, where this process has them."""
        (self.site_packages / "shared.pth").write_text(f"{TORCH.parent}\n")

    def link_torch(self):
        """Puts torch beside the package, as pip does, and the libraries that a CUDA build of it needs."""
        for name in ("torch", "nvidia"):
            if (TORCH.parent / name).exists():
                (self.site_packages / name).symlink_to(TORCH.parent / name)

    def unlink_torch(self):
        for name in ("torch", "nvidia"):
            (self.site_packages / name).unlink(missing_ok=True)

    def run(self, *command, **variables):
        return subprocess.run(
            [str(word) for word in command],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
            cwd=self.folder,
            env={**self.variables, **variables},
        )

    def python_says(self, code, **variables):
        result = self.run(self.python, "-c", code, **variables)
        assert result.returncode == 0, result.stderr
        return result.stdout.strip()

    def import_error(self, **variables):
        """The message of the ImportError of `import fsdp_cpp`."""
        result = self.run(self.python, "-c", "import fsdp_cpp", **variables)
        assert result.returncode == 1, result.stdout
        last = result.stderr.strip().splitlines()[-1]
        assert last.startswith("ImportError: "), result.stderr
        return last.removeprefix("ImportError: ")
