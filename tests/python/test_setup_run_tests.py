"""scripts/run_tests.py counts test cases over programs, and takes a crash for the failure it is."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

PASSING = """print("[ RUN      ] Suite.One\\n[       OK ] Suite.One (0 ms)")
report([("One", {"result": "COMPLETED"}), ("Two", {"result": "SKIPPED"})])"""
FAILING = """print("[ RUN      ] Suite.Bad\\nwhat went wrong\\n[  FAILED  ] Suite.Bad (0 ms)")
report([("Good", {"result": "COMPLETED"}), ("Bad", {"result": "COMPLETED", "failures": [{"failure": "x"}]})])
sys.exit(1)"""
CRASHING = """print("[ RUN      ] Suite.Fine\\n[       OK ] Suite.Fine (0 ms)\\n[ RUN      ] Suite.Dies", flush=True)
os.abort()"""
CRASHING_AT_EXIT = """report([("One", {"result": "COMPLETED"})])
os.abort()"""
HANGING = """print("[ RUN      ] Suite.Hangs", flush=True)
time.sleep(60)"""
EMPTY = "report([])"
LITTERING = """import tempfile
report([("One", {"result": "COMPLETED"})])
tempfile.mkdtemp(prefix="litter-", dir=os.environ["TMPDIR"])"""
LEAVING_A_PROCESS = """import subprocess
report([("One", {"result": "COMPLETED"})])
subprocess.Popen(["sleep", "1234"], start_new_session=True)"""

# Waits for a while until four programs run at the same time.
MEETING = """here = os.path.dirname(os.path.abspath(__file__))
name = os.path.join(here, "meeting-%d" % os.getpid())
open(name, "w").close()
deadline = time.monotonic() + 3
while sum(one.startswith("meeting-") for one in os.listdir(here)) < 4 and time.monotonic() < deadline: time.sleep(0.01)
met = time.monotonic() < deadline
time.sleep(0.5)
os.remove(name)
report([("Meets", {"result": "COMPLETED" if met else "SKIPPED"})])"""

# Maps the file that comes, and keeps it mapped until its input ends.
HOLDING_SHARED_MEMORY = """import mmap, os, sys, time
while not (os.path.exists(sys.argv[1]) and os.path.getsize(sys.argv[1])): time.sleep(0.01)
memory = mmap.mmap(os.open(sys.argv[1], os.O_RDWR), 4096)
sys.stdin.read()"""

PROGRAM = """#!{python}
import json, os, sys, time
def report(cases):
    path = sys.argv[1].removeprefix("--gtest_output=json:")
    tests = [dict(name=name, status="RUN", **rest) for name, rest in cases]
    json.dump({{"testsuites": [{{"name": "Suite", "testsuite": tests}}]}}, open(path, "w"))
{body}
"""


@pytest.fixture
def run_tests(tmp_path, source_dir):
    """Runs the script over programs with the given bodies, through a CTest file as CMake writes it."""

    def run(bodies, *options, environment="", labels=None, costs=None, arguments='"--gtest_brief=1"'):
        lines = []
        for name, body in bodies.items():
            program = tmp_path / name
            program.write_text(PROGRAM.format(python=sys.executable, body=body))
            program.chmod(0o755)
            lines.append(f'add_test([=[{name}]=] "{program}" {arguments})\n')
            if environment:
                lines.append(f'set_tests_properties([=[{name}]=] PROPERTIES ENVIRONMENT "{environment}")\n')
            if name in (labels or {}):
                lines.append(f'set_tests_properties([=[{name}]=] PROPERTIES LABELS "{labels[name]}")\n')
            if name in (costs or {}):
                lines.append(f"set_tests_properties([=[{name}]=] PROPERTIES COST {costs[name]})\n")
        (tmp_path / "CTestTestfile.cmake").write_text("".join(lines))
        return subprocess.run(
            [sys.executable, source_dir / "scripts/run_tests.py", "--build-dir", tmp_path, *options],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    return run


def last_line(result):
    return result.stdout.splitlines()[-1]


def test_counts_cases_over_programs(run_tests):
    result = run_tests({"a_test": PASSING, "b_test": PASSING})
    assert last_line(result) == "2 passed, 0 failed, 2 skipped"
    assert result.returncode == 0


def test_programs_get_their_environment(run_tests):
    body = PASSING + '\nassert (os.environ["ONE"], os.environ["TWO"]) == ("a=b", "c") and "PATH" in os.environ'
    assert last_line(run_tests({"a_test": body}, environment="ONE=a=b;TWO=c")) == "1 passed, 0 failed, 1 skipped"


def test_programs_get_their_filter(run_tests):
    body = PASSING + '\nassert sys.argv[2:] == ["--gtest_filter=-Suite.Long"]'
    result = run_tests({"a_test": body}, arguments='"--gtest_brief=1" "--gtest_filter=-Suite.Long"')
    assert last_line(result) == "1 passed, 0 failed, 1 skipped"


def test_failure_is_counted_named_and_shown(run_tests):
    result = run_tests({"a_test": PASSING, "b_test": FAILING})
    assert last_line(result) == "2 passed, 1 failed, 1 skipped"
    assert "FAILED b_test: Suite.Bad" in result.stdout
    assert "what went wrong" in result.stdout
    assert result.returncode == 1


# Fails the first time, and runs only that test the second time.
UNSTABLE = """first = not os.path.exists(__file__ + "-ran")
open(__file__ + "-ran", "w").close()
assert first or sys.argv[2:] == ["--gtest_filter=Suite.Bad"], sys.argv
bad = ("Bad", {"result": "COMPLETED", **({"failures": [{"failure": "x"}]} if first else {})})
report([("Good", {"result": "COMPLETED"}), bad] if first else [bad])
sys.exit(1 if first else 0)"""


def test_a_test_that_passes_by_itself_is_unstable_and_no_failure(run_tests):
    result = run_tests({"a_test": PASSING, "b_test": UNSTABLE})
    assert last_line(result) == "3 passed, 0 failed, 1 skipped"
    assert "b_test: 1 passed, 1 failed" in result.stdout
    assert "UNSTABLE b_test: Suite.Bad" in result.stdout
    assert result.returncode == 0


def test_many_failures_are_not_repeated(run_tests):
    cases = ", ".join(f'("Bad{i}", {{"result": "COMPLETED", "failures": [{{"failure": "x"}}]}})' for i in range(4))
    body = f"assert len(sys.argv) < 3\nprint('ran')\nreport([{cases}])\nsys.exit(1)"
    result = run_tests({"a_test": body})
    assert last_line(result) == "0 passed, 4 failed"
    assert result.stdout.count("ran\n") == 1


def test_python_tests_are_repeated_by_name(run_tests, tmp_path, monkeypatch):
    (tmp_path / "python").mkdir()
    (tmp_path / "python" / "test_some.py").write_text(
        "import os, pytest\n@pytest.mark.parametrize('value', [1, 2])\ndef test_small(value):\n"
        "    first = not os.path.exists(__file__ + '-ran')\n    open(__file__ + '-ran', 'w').close()\n"
        "    assert value > 1 or not first\n"
    )
    monkeypatch.chdir(tmp_path)
    result = run_tests({"a_test": PASSING}, "--pytest", "python")
    assert last_line(result) == "3 passed, 0 failed, 1 skipped"
    assert "UNSTABLE pytest: python.test_some.test_small[1]" in result.stdout


def test_crash_fails_the_running_test_and_keeps_those_before_it(run_tests):
    result = run_tests({"a_test": CRASHING})
    assert last_line(result) == "1 passed, 1 failed"
    assert "Suite.Dies (a_test crashed with SIGABRT)" in result.stdout
    assert result.returncode == 1


def test_programs_are_chosen_by_label(run_tests):
    programs = {"a_test": PASSING, "b_test": PASSING, "c_test": FAILING}
    labels = {"a_test": "unit", "b_test": "ranks"}
    result = run_tests(programs, "--label", "unit", labels=labels)
    assert "a_test: 1 passed" in result.stdout and last_line(result) == "1 passed, 0 failed, 1 skipped"
    result = run_tests(programs, "--label", "units", labels=labels)
    assert result.returncode == 1
    assert (
        "error: no test program matches '' with the label 'units'; there are: a_test unit, b_test ranks"
        in result.stderr
    )


@pytest.mark.parametrize("body, reason", [(CRASHING_AT_EXIT, "crashed with SIGABRT"), (EMPTY, "ran no test")])
def test_trouble_outside_any_test_is_a_failure(run_tests, body, reason):
    result = run_tests({"a_test": body})
    assert last_line(result).endswith(" passed, 1 failed")
    assert reason in result.stdout
    assert result.returncode == 1


def test_program_that_hangs_is_ended(run_tests):
    result = run_tests({"a_test": HANGING}, "--timeout", "1")
    assert last_line(result) == "0 passed, 1 failed"
    assert "ran out of time" in result.stdout


@pytest.mark.parametrize(
    "body, leftover", [(LITTERING, "left litter-"), (LEAVING_A_PROCESS, "left the process sleep 1234")]
)
def test_a_program_that_leaves_something_behind_has_failed(run_tests, body, leftover):
    result = run_tests({"a_test": body, "b_test": PASSING})
    assert last_line(result) == "2 passed, 1 failed, 1 skipped"
    assert f"FAILED a_test: (a_test {leftover}" in result.stdout
    assert result.returncode == 1


KEYBOARD = (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP)  # the last one: of a terminal that closes


@pytest.fixture
def shared_memory_entry():
    """An entry that comes while a program runs, under a name that is looked for; and a process that has it mapped."""
    path = Path("/dev/shm") / f"fsdp-run-tests-{os.getpid()}"
    holder = subprocess.Popen([sys.executable, "-c", HOLDING_SHARED_MEMORY, path], stdin=subprocess.PIPE)
    try:
        yield path, holder
    finally:
        holder.communicate()
        path.unlink(missing_ok=True)


def test_shared_memory_that_is_left_has_failed_but_not_that_of_other_programs(run_tests, shared_memory_entry):
    path, holder = shared_memory_entry
    making = f"open({str(path)!r}, 'wb').write(bytes(4096))\n" + PASSING
    waiting = making + f"\nwhile {str(path)!r} not in open('/proc/{holder.pid}/maps').read(): time.sleep(0.01)"
    result = run_tests({"a_test": waiting})
    assert result.returncode == 0, result.stdout
    holder.communicate()
    path.unlink()
    result = run_tests({"a_test": making})
    assert result.returncode == 1 and f"FAILED left {path.name} in /dev/shm" in result.stdout


def test_a_semaphore_of_another_program_is_in_use_under_its_second_name(run_tests, shared_memory_entry):
    path, holder = shared_memory_entry
    making = (
        f"""open({str(path)!r}, 'wb').write(bytes(4096))
while {str(path)!r} not in open('/proc/{holder.pid}/maps').read(): time.sleep(0.01)
os.link({str(path)!r}, {str(path) + "-second"!r})
os.remove({str(path)!r})
"""
        + PASSING
    )
    result = run_tests({"a_test": making})
    path.with_name(path.name + "-second").unlink()
    assert result.returncode == 0, result.stdout


def test_programs_heed_the_keyboards_signals_in_the_background_too(run_tests):
    body = """import signal
names = ("SIGINT", "SIGQUIT", "SIGHUP")
ignored = [name for name in names if signal.getsignal(getattr(signal, name)) == signal.SIG_IGN]
failures = {"failures": [{"failure": str(ignored)}]} if ignored else {}
report([("One", {"result": "COMPLETED", **failures})])"""
    before = [signal.signal(signum, signal.SIG_IGN) for signum in KEYBOARD]
    try:
        result = run_tests({"a_test": body})
    finally:
        for signum, handler in zip(KEYBOARD, before):
            signal.signal(signum, handler)
    assert last_line(result) == "1 passed, 0 failed"


def test_a_new_build_starts_with_what_costs_most(run_tests, tmp_path):
    saying = {name: f'open({str(tmp_path / "order")!r}, "a").write("{name} ")\n' for name in ("free", "cheap", "dear")}
    bodies = {f"{name}_test": body + PASSING for name, body in saying.items()}
    result = run_tests(bodies, "--jobs", "1", costs={"cheap_test": 2, "dear_test": 30})
    assert result.returncode == 0, result.stdout
    assert (tmp_path / "order").read_text().split() == ["dear", "cheap", "free"]


def test_what_took_longest_the_last_time_starts_first(run_tests, tmp_path):
    slow = f'open({str(tmp_path / "order")!r}, "a").write("slow ")\ntime.sleep(0.5)\n' + PASSING
    quick = f'open({str(tmp_path / "order")!r}, "a").write("quick ")\n' + PASSING
    new = f'open({str(tmp_path / "order")!r}, "a").write("new ")\n' + PASSING

    def order(*programs):
        (tmp_path / "order").write_text("")
        result = run_tests(dict(programs), "--jobs", "1")
        assert result.returncode == 0, result.stdout
        return (tmp_path / "order").read_text().split()

    known = [("a_test", quick), ("b_test", slow)]
    assert order(*known) == ["quick", "slow"]
    assert order(*known) == ["slow", "quick"]
    assert order(*known, ("c_test", new)) == ["new", "slow", "quick"]
    (tmp_path / "test_durations.json").write_text("[torn")
    assert order(*known) == ["quick", "slow"]


def test_python_tests_are_counted_with_the_programs(run_tests, tmp_path):
    folder = tmp_path / "python"
    folder.mkdir()
    (folder / "test_some.py").write_text(
        "import pytest\n@pytest.mark.parametrize('value', [1, 2])\ndef test_small(value): assert value < 2\n"
    )
    (folder / "test_package_some.py").write_text("def test_of_package(): pass\ndef test_wrong(): assert False\n")
    result = run_tests({"a_test": PASSING}, "--pytest", folder)
    assert last_line(result) == "3 passed, 2 failed, 1 skipped"
    assert "test_small[2]" in result.stdout and "pytest_package: 1 passed, 1 failed" in result.stdout


@pytest.mark.parametrize(
    "said, counts",
    [
        ("2 passed, 0 failed", "2 passed, 0 failed"),
        ("seed 7 failed: hang\n1 passed, 1 failed", "1 passed, 1 failed"),
        ("1 passed, 1 failed", "0 passed, 1 failed"),
        ("nothing", "0 passed, 1 failed"),
    ],
)
def test_programs_that_are_not_googletests_run_as_they_stand(run_tests, tmp_path, said, counts):
    result = run_tests({"a_test": f"print({said!r}, end='')"}, arguments='"--seeds" "1..2"')
    assert last_line(result) == counts
    assert result.returncode == (0 if counts.endswith(" 0 failed") else 1)
    if "seed" in said:
        assert "FAILED a_test: seed 7" in result.stdout


def test_fuzz_targets_are_counted_with_the_programs(run_tests, tmp_path):
    targets = tmp_path / "fuzz"
    (targets / "seeds/a_fuzz").mkdir(parents=True)
    (targets / "a_fuzz").write_text(f"#!{sys.executable}\nprint('stat::number_of_executed_units: 1')")
    (targets / "b_fuzz").write_text(f"#!{sys.executable}\nraise SystemExit('a finding')")
    for name in ("a_fuzz", "b_fuzz"):
        (targets / name).chmod(0o755)
    result = run_tests({"a_test": PASSING}, "--fuzz-dir", targets)
    assert last_line(result) == "2 passed, 1 failed, 1 skipped"
    assert "FAILED fuzz: fuzz.b_fuzz" in result.stdout
    assert "a finding" in result.stdout


@pytest.mark.parametrize(
    ("label", "counts"),
    [("python", "4 passed, 0 failed"), ("ranks", "4 passed, 0 failed"), ("unit", "0 passed, 0 failed, 4 skipped")],
)
def test_two_programs_that_wait_take_the_place_of_one(run_tests, label, counts):
    programs = {f"{name}_test": MEETING for name in "abcd"}
    result = run_tests(programs, "--jobs", "2", labels=dict.fromkeys(programs, label))
    assert last_line(result) == counts
