"""The command `fsdp`: runs the program that the package brings (train, convert, inspect, report, plan).

A package of its own, because importing fsdp_cpp imports torch, which takes seconds.
"""

import importlib.util
import os
import sys
from pathlib import Path


def main():
    """Becomes the program, with the arguments of this command."""
    try:
        program, torch_libraries = find_program()
    except ImportError as error:
        sys.exit(f"fsdp: error: {error}")
    environment = dict(os.environ)
    # In site-packages the program finds torch beside its package.
    if (program.parent / "../../../torch/lib").resolve() != torch_libraries.resolve():
        folders = [str(torch_libraries), environment.get("LD_LIBRARY_PATH", "")]
        environment["LD_LIBRARY_PATH"] = ":".join(filter(None, folders))
    os.execve(program, [str(program), *sys.argv[1:]], environment)


def find_program():
    """The program for the torch that is installed, and the folder of torch's libraries. Raises ImportError."""
    package = importlib.util.find_spec("fsdp_cpp")
    if package is None:
        raise ImportError("the package fsdp_cpp is not installed: pip install fsdp-cpp")
    folders = list(package.submodule_search_locations)
    choice = load_choice(folders)
    torch = choice.installed_torch()
    program = choice.choose(torch, folders).program
    if not program.exists():
        raise ImportError(f"the program {program} is missing: install fsdp-cpp anew")
    return program, torch.folder / "lib"


def load_choice(folders):
    """The module fsdp_cpp._choice, without its package, which would import torch."""
    name = "_fsdp_cpp_choice"
    path = next(path for folder in folders if (path := Path(folder) / "_choice.py").exists())
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where dataclasses look for it
    spec.loader.exec_module(module)
    return module
