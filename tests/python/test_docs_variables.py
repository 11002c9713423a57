"""docs/test_variables.md lists the environment variables that tests, benchmarks and scripts read, and no others."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/test_variables.md"
# Passed on to other programs, with a folder in front.
PASSED_ON = {"PATH", "PYTHONPATH"}
CPP_READ = re.compile(r"\b(?:getenv|env_string|env_int)\(\s*(?:\"(\w+)\"|(k\w+))")
NAMED_FOR_TESTS = re.compile(r"_test\.cpp$|test_support\.\w+$|/testing/")


def read_by_cpp(text):
    """The names in calls, literal or as a constant of the same file."""
    for literal, constant in CPP_READ.findall(text):
        if literal:
            yield literal
        elif value := re.search(rf"\b{constant}\s*=\s*\"(\w+)\"", text):
            yield value[1]


def is_environment(node):
    return isinstance(node, ast.Attribute) and node.attr == "environ"


def name_read_by(node):
    """The argument of os.getenv, os.environ.get and os.environ.setdefault, or the index of os.environ."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
        call = node.func
        if call.attr == "getenv" or (call.attr in ("get", "setdefault") and is_environment(call.value)):
            return node.args[0]
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load) and is_environment(node.value):
        return node.slice
    return None


def read_by_python(text):
    names = map(name_read_by, ast.walk(ast.parse(text)))
    return (name.value for name in names if isinstance(name, ast.Constant))


def files(*patterns):
    return (path for pattern in patterns for path in sorted(ROOT.glob(pattern)) if path.is_file())


def is_python(path):
    return path.suffix == ".py" or (not path.suffix and path.read_bytes().startswith(b"#!/usr/bin/env python"))


def variables_read():
    """Of tests, benchmarks and scripts all variables; of the library and the program those with its name in front."""
    found = set()
    for path in files("tests/**/*.cpp", "tests/**/*.h", "benchmarks/**/*.cpp", "benchmarks/**/*.h"):
        found.update(read_by_cpp(path.read_text()))
    for path in files("src/**/*.cpp", "src/**/*.h", "trainer/**/*.cpp", "trainer/**/*.h"):
        names = set(read_by_cpp(path.read_text()))
        is_test = NAMED_FOR_TESTS.search(path.as_posix())
        found.update(names if is_test else {name for name in names if name.startswith("FSDP_")})
    for path in filter(is_python, files("tests/**/*", "benchmarks/**/*", "scripts/*")):
        found.update(read_by_python(path.read_text()))
    return found - PASSED_ON


def variables_listed():
    return re.findall(r"^\| `(\w+)` \|", PAGE.read_text(), flags=re.M)


def test_the_page_lists_what_is_read():
    listed = variables_listed()
    assert sorted(variables_read()) == sorted(listed)


def test_reads_are_found():
    assert list(read_by_cpp('kA = "ONE"; std::getenv(kA); base::env_int("TWO", 0, 1); setenv("SET", "1", 1);')) == [
        "ONE",
        "TWO",
    ]
    python = "os.environ['A']; os.environ.get('B'); os.getenv('C', 1); os.environ.setdefault('D', ''); "
    python += "os.environ['SET'] = 'x'; other.get('E'); 'os.environ[\"F\"]'"
    assert sorted(read_by_python(python)) == ["A", "B", "C", "D"]
