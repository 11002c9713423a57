"""Loads the compiled library, whose classes torch then has as torch.classes.fsdp_cpp."""

import sys

from fsdp_cpp import _choice


def load():
    """Loads the library that fits the torch of this Python, and returns its `_choice.CompiledLibrary`. Raises
    ImportError if none fits: before torch is imported, or else before the library registers anything with torch, where
    that is possible."""
    installed = _choice.installed_torch()
    library = _choice.choose(installed, list(sys.modules["fsdp_cpp"].__path__))
    import torch

    if str(torch.__version__) != installed.version:
        raise ImportError(
            f"torch {installed.version} is installed in {installed.folder}, but this process has imported torch "
            f"{torch.__version__}: start it again"
        )
    try:
        torch.classes.load_library(str(library.path))
    except OSError as error:
        raise ImportError(
            f"{library.path}, compiled for torch {library.torch}, cannot be loaded with torch {torch.__version__}: "
            f"{error.__cause__ or error}"
        ) from error
    _confirm(library, torch.classes.fsdp_cpp.Build)
    return library


def _confirm(library, build):
    """Asks the library itself for the claims of its record, and whether torch behaves as it needs."""
    compiled_for = build.torch_version()
    if compiled_for != library.torch:
        raise ImportError(
            f"{library.path} was compiled for torch {compiled_for}, but {_choice.RECORD} beside it says "
            f"{library.torch}: build it again, or install fsdp-cpp anew"
        )
    try:
        build.check()
    except RuntimeError as error:
        raise ImportError(f"{library.path} does not work with this torch: {error}") from error
