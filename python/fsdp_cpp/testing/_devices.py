"""Test modules that name GPUs, on CPUs.

Such modules are compiled from a changed syntax tree: ``"cuda"`` is read as ``"cpu"``, ``"nccl"`` as ``"gloo"``, a call
of ``.cuda()`` as ``.cpu()``, and ``torch.cuda.current_device()`` as the CPU. CPUs are counted in the place of GPUs, and
DDP and replicate get no ids of devices. Their files stay as they are.
"""

from __future__ import annotations

import ast
import importlib.abc
import importlib.machinery
import importlib.util
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from types import CodeType, ModuleType

# Only modules that use PyTorch's support for tests are changed.
_MARK = "torch.testing._internal"


def read_gpus_as_cpus() -> None:
    """Changes the test modules (``test_*.py``) that are imported from now on. Further calls do nothing."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if not name.rpartition(".")[2].startswith("test_"):
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None or not isinstance(spec.loader, importlib.machinery.SourceFileLoader):
            return None
        if spec.origin is None or _MARK not in Path(spec.origin).read_text(encoding="utf-8"):
            return None
        return importlib.util.spec_from_file_location(name, spec.origin, loader=_Loader(name, spec.origin))


class _Loader(importlib.machinery.SourceFileLoader):
    def get_code(self, fullname: str) -> CodeType:
        """Compiles the changed module. The result is kept nowhere: the file's compiled form is another one."""
        path = self.get_filename(fullname)
        tree = _OnCpu().visit(ast.parse(self.get_data(path), path))
        return compile(ast.fix_missing_locations(tree), path, "exec", dont_inherit=True)


class _OnCpu(ast.NodeTransformer):
    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if isinstance(node.value, str):
            value = "gloo" if node.value == "nccl" else re.sub(r"^cuda(?=:|$)", "cpu", node.value)
            return ast.copy_location(ast.Constant(value), node)
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        function = ast.unparse(node.func)
        if function == "torch.cuda.current_device":
            return ast.copy_location(_cpu(), node)
        if function == "torch.device" and node.args and ast.unparse(node.args[0]) == "'cuda'":
            return ast.copy_location(_cpu(), node)
        if function == "torch.cuda.set_device":
            return ast.copy_location(ast.Constant(None), node)
        self.generic_visit(node)
        if function == "torch.cuda.device_count":
            node.func = ast.parse("torch.cpu.device_count", mode="eval").body
        if isinstance(node.func, ast.Attribute) and node.func.attr == "cuda":
            node.func.attr, node.args, node.keywords = "cpu", [], []
        if function in ("DDP", "DistributedDataParallel", "replicate"):
            node.keywords = [one for one in node.keywords if one.arg not in ("device_ids", "output_device")]
        return node


def _cpu() -> ast.expr:
    return ast.parse("torch.device('cpu')", mode="eval").body
