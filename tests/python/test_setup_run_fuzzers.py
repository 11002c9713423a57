"""scripts/run_fuzzers.py counts the inputs of fuzz targets, and takes whatever ends one for a finding."""

import subprocess
import sys
import xml.etree.ElementTree as ElementTree

import pytest

SOUND = 'print("stat::number_of_executed_units: 41")'
CRASHING = """print("FINDING: what went wrong", flush=True)
os.abort()"""
SILENT = ""

TARGET = """#!{python}
import os, sys
{body}
"""


@pytest.fixture
def run_fuzzers(tmp_path, source_dir):
    """Runs the script over targets with the given bodies."""

    def run(bodies, *options):
        for name, body in bodies.items():
            target = tmp_path / name
            target.write_text(TARGET.format(python=sys.executable, body=body))
            target.chmod(0o755)
            (tmp_path / "seeds" / name).mkdir(parents=True, exist_ok=True)
        return subprocess.run(
            [
                sys.executable,
                source_dir / "scripts/run_fuzzers.py",
                "--build-dir",
                tmp_path,
                "--report",
                tmp_path / "report.xml",
                *options,
            ],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    return run


def last_line(result):
    return result.stdout.splitlines()[-1]


def failures(tmp_path):
    cases = ElementTree.parse(tmp_path / "report.xml").getroot().iter("testcase")
    return {case.get("name"): case.find("failure") is not None for case in cases}


def test_inputs_are_counted(run_fuzzers, tmp_path):
    result = run_fuzzers({"a_fuzz": SOUND, "b_fuzz": SOUND})
    assert "a_fuzz: 41 inputs\n" in result.stdout
    assert last_line(result) == "2 targets, 82 inputs, 0 with findings"
    assert failures(tmp_path) == {"a_fuzz": False, "b_fuzz": False}
    assert result.returncode == 0


@pytest.mark.parametrize("body", [CRASHING, SILENT])
def test_what_ends_a_target_is_a_finding(run_fuzzers, tmp_path, body):
    result = run_fuzzers({"a_fuzz": SOUND, "b_fuzz": body}, "--jobs", "2")
    assert last_line(result) == "2 targets, 41 inputs, 1 with findings"
    assert failures(tmp_path) == {"a_fuzz": False, "b_fuzz": True}
    assert ("what went wrong" in result.stdout) == (body == CRASHING)
    assert result.returncode == 1


def test_targets_get_limits_a_dictionary_and_their_inputs(run_fuzzers, tmp_path, source_dir):
    arguments = 'print(*sys.argv[1:], sep="\\n"); assert os.environ["UBSAN_OPTIONS"]; ' + "sys.exit(1)"
    lines = run_fuzzers({"a_fuzz": arguments, "pickle_fuzz": SOUND}, "--only", "^a", "--keep", "--runs", "7").stdout
    for argument in (
        "-runs=7",
        "-malloc_limit_mb=64",
        f"-dict={source_dir}/fuzz/dictionaries/json.dict",
        f"-artifact_prefix={tmp_path}/findings/a_fuzz-",
        str(tmp_path / "corpus/a_fuzz"),
        str(tmp_path / "seeds/a_fuzz"),
    ):
        assert argument in lines.splitlines()
    assert "pickle_fuzz" not in lines


@pytest.mark.parametrize("target, dictionary", [("dcp_folder_fuzz", "pickle"), ("zip_archive_fuzz", "zip")])
def test_dictionaries_of_formats(run_fuzzers, source_dir, target, dictionary):
    lines = run_fuzzers({target: 'print(*sys.argv[1:], sep="\\n"); sys.exit(1)'}).stdout
    assert f"-dict={source_dir}/fuzz/dictionaries/{dictionary}.dict" in lines.splitlines()
    assert (source_dir / "fuzz" / "dictionaries" / f"{dictionary}.dict").is_file()


def test_without_targets_a_test_is_skipped(run_fuzzers, tmp_path):
    result = run_fuzzers({})
    assert last_line(result).startswith("no fuzz targets in ")
    assert ElementTree.parse(tmp_path / "report.xml").getroot().find("testcase/skipped") is not None
    assert result.returncode == 0
