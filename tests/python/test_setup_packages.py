"""scripts/setup.sh installs exactly the system's packages that are missing, on a stand-in for Debian's tools."""

import os
import subprocess

import pytest

FAKES = {
    # As the real one: lists the packages that it knows, and fails if there is one that it does not know.
    "dpkg-query": """
status=0
for name; do
  case $name in -*) continue ;; esac
  if grep -qx "$name" "$STATE/installed"; then echo "$name installed"
  elif grep -qx "$name" "$STATE/removed"; then echo "$name config-files"
  else status=1; fi
done
exit $status
""",
    "apt-get": """
echo "$*" >>"$STATE/calls"
[ "$1" = install ] || exit 0
for name; do
  case $name in -*|install) continue ;; esac
  if grep -qx "$name" "$STATE/unknown"; then echo "E: Unable to locate package $name"; exit 100; fi
  echo "$name" >>"$STATE/installed"
done
""",
    "id": "echo 0",
}


@pytest.fixture
def debian(tmp_path, source_dir):
    """Runs `setup.sh packages STAGE` where the given packages are installed, left as configuration, or unknown."""
    for name, body in FAKES.items():
        fake = tmp_path / "bin" / name
        fake.parent.mkdir(exist_ok=True)
        fake.write_text(f"#!/bin/sh\n{body}")
        fake.chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
        "STATE": str(tmp_path),
        "VENV": str(tmp_path / "venv"),
    }

    def run(stage, installed=(), removed=(), unknown=()):
        for name, packages in (("removed", removed), ("unknown", unknown)):
            (tmp_path / name).write_text("".join(f"{package}\n" for package in packages))
        if not (tmp_path / "installed").exists() or installed:
            (tmp_path / "installed").write_text("".join(f"{package}\n" for package in installed))
        (tmp_path / "calls").write_text("")
        result = subprocess.run(
            [source_dir / "scripts/setup.sh", "packages", stage],
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        calls = (tmp_path / "calls").read_text().splitlines()
        asked_for = {
            word for call in calls if call.startswith("install") for word in call.split() if not word.startswith("-")
        } - {"install"}
        return result, asked_for

    return run


def packages_of(source_dir, *stages):
    lines = [line.split() for line in (source_dir / "scripts/packages.txt").read_text().splitlines()]
    return {words[1] for words in lines if words and words[0] in stages}


def test_on_a_bare_system_all_packages_of_the_stage_are_installed(debian, source_dir):
    result, asked_for = debian("train")
    assert result.returncode == 0, result.stderr
    assert asked_for == packages_of(source_dir, "build", "build?", "train")


def test_only_missing_packages_are_installed(debian, source_dir):
    every = packages_of(source_dir, "build", "build?", "train")
    result, asked_for = debian("train", installed=every - {"fortunes", "cmake"}, removed=["cmake"])
    assert result.returncode == 0, result.stderr
    assert asked_for == {"fortunes", "cmake"}
    assert debian("train")[1] == set(), "nothing is missing the second time"


def test_a_required_package_that_cannot_be_installed_is_an_error(debian):
    result, _ = debian("build", unknown=["ninja-build"])
    assert result.returncode != 0
    assert "apt-get could not install all of:" in result.stderr
    assert "Unable to locate package ninja-build" in result.stderr


def test_optional_packages_that_cannot_be_installed_are_named_and_not_tried_again(debian):
    result, asked_for = debian("build", unknown=["mold"])
    assert result.returncode == 0, result.stderr
    assert "continuing without mold" in result.stdout
    assert "mold" in asked_for
    assert debian("build", unknown=["mold"])[1] == set()
