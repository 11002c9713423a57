#!/usr/bin/env python3
"""Runs the C++ test programs of a build and, with --pytest and --fuzz-dir, the Python tests and each fuzz target for a
moment; counts test cases over all of them.

What took longest the last time (test_durations.json in the build folder) starts first. Each program has a temporary
folder of its own; a file there, in shared memory, or a process that it leaves when it ends, counts as a failure.
A few tests that fail run once more by themselves, when all others have ended: tests that wait depend on how busy the
machine is. One that passes then is reported as unstable, and does not count as failed.
The last line reads "N passed, N failed", with ", N skipped" when any were. A program that crashes, runs out of time or
runs no test counts as failed. The exit status is 0 only when nothing failed.
"""

import argparse
import concurrent.futures
import contextlib
import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from left_behind import SHARED_MEMORY, Surroundings, entries_of_shared_memory, left_in_shared_memory
from test_reports import Outcome, parse_gtest_json, parse_gtest_output, parse_junit_xml, parse_last_line


@dataclasses.dataclass
class Program:
    name: str
    command: list
    report: Path
    parse: object  # (Path) -> Outcome
    environment: tuple = ()  # "NAME=value", beside this process's
    labels: tuple = ()
    cost: float = 0  # about how many seconds, for a build that has not been timed yet


@dataclasses.dataclass
class Run:
    program: Program
    outcome: Outcome
    output: str
    seconds: float


def registered_program(test, reports):
    """A test as CMake registered it: GoogleTest's writes a report, another one runs as it stands."""
    name, command = test["name"], test.get("command", ())
    properties = {one["name"]: one["value"] for one in test["properties"]}
    about = dict(
        environment=tuple(properties.get("ENVIRONMENT", ())),
        labels=tuple(properties.get("LABELS", ())),
        cost=properties.get("COST", 0),
    )
    if len(command) > 1 and not command[1].startswith("--gtest"):
        return Program(name, command, log_path(reports, name), parse_last_line, **about)
    report = reports / f"{name}.json"
    filters = [argument for argument in command if argument.startswith("--gtest_filter=")]
    command = [*command[:1], f"--gtest_output=json:{report}", *filters]
    return Program(name, command, report, parse_gtest_json, **about)


def registered_programs(build_dir, reports):
    """The test programs that CMake registered in this build."""
    listing = subprocess.run(
        ["ctest", "--test-dir", str(build_dir), "--show-only=json-v1"], capture_output=True, text=True, check=True
    )
    return [registered_program(test, reports) for test in json.loads(listing.stdout)["tests"]]


# The Python tests as programs that may run at the same time: those of the Python package, those of set-up, documents
# and comparisons, and the others. The first whose expression matches a file's name gets it.
PYTEST_PARTS = {
    "pytest_package": r"test_(package|adversarial)_",
    "pytest_project": r"test_(setup|docs|compare|plan|python|report|examples|third_party)",
    "pytest": r"test_",
}


def pytest_programs(folder, reports):
    parts = {name: [] for name in PYTEST_PARTS}
    for path in sorted(Path(folder).rglob("test_*.py")):
        part = next(name for name, pattern in PYTEST_PARTS.items() if re.match(pattern, path.name))
        parts[part].append(str(path))
    return [pytest_program(name, files, reports) for name, files in parts.items() if files]


def pytest_program(name, files, reports):
    report = reports / f"{name}.xml"
    command = [sys.executable, "-m", "pytest", *files, "-q", "-ra", f"--junitxml={report}", "--timeout=600"]
    return Program(name, command, report, parse_junit_xml, labels=("python",), cost=20 * len(files))


def fuzz_program(folder, reports):
    report = reports / "fuzz.xml"
    script = Path(__file__).resolve().with_name("run_fuzzers.py")
    command = [sys.executable, str(script), "--build-dir", str(folder), "--report", str(report)]
    return Program("fuzz", command, report, parse_junit_xml, labels=("fuzz",))


def end_group(process):
    """Ends a program and whatever it started, which lives in its process group."""
    for signum in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, signum)
        except ProcessLookupError:
            return
        time.sleep(1)


MOST_TO_REPEAT = 3  # failed tests of one program; more of them fail for a reason of their own


def repeated(run):
    """The program that runs the tests of a run again that failed; None if these are not a few tests that are known by
    name."""
    names, program = run.outcome.failed, run.program
    if not names or len(names) > MOST_TO_REPEAT or any(re.search(r"[\s()*:]", name) for name in names):
        return None
    if program.parse is parse_gtest_json:
        command = [*program.command[:2], "--gtest_filter=" + ":".join(names)]
    elif program.parse is parse_junit_xml and "python" in program.labels:
        first = next(i for i, argument in enumerate(program.command) if argument.endswith(".py"))
        last = max(i for i, argument in enumerate(program.command) if argument.endswith(".py"))
        by_module = {".".join(Path(file).with_suffix("").parts): file for file in program.command[first : last + 1]}
        modules = {name: next((m for m in by_module if name.startswith(m + ".")), None) for name in names}
        if None in modules.values():
            return None
        nodes = [f"{by_module[module]}::{name[len(module) + 1 :]}" for name, module in modules.items()]
        command = [*program.command[:first], *nodes, *program.command[last + 1 :]]
    else:
        return None
    return dataclasses.replace(program, name=f"{program.name}_again", command=command)


def repeat_failures(runs, timeout, reports):
    """Runs the few tests that failed again, one program after the other. Returns the names of those that passed then,
    which are taken out of their runs' failures."""
    unstable = []
    for run in runs:
        program = repeated(run)
        if not program:
            continue
        program.report.unlink(missing_ok=True)
        again = run_now(program, timeout, reports)
        report_run(again)
        if not again.outcome.failed and again.outcome.passed == len(run.outcome.failed):
            unstable += [f"{run.program.name}: {name}" for name in run.outcome.failed]
            run.outcome.passed += again.outcome.passed
            run.outcome.failed = []
    return unstable


# Ranks wait for one another, and Python tests for processes that start: two such programs take no more of the machine
# than one other.
LABELS_THAT_WAIT = {"python", "ranks", "processes"}


class Slots:
    """How many programs run at a time. They get their slots in the order in which they ask."""

    def __init__(self, jobs):
        self.size = self.free = 2 * jobs
        self.changed = threading.Condition()
        self.waiting = []

    def of(self, program):
        return 2 if LABELS_THAT_WAIT.isdisjoint(program.labels) else 1

    @contextlib.contextmanager
    def taken_by(self, program):
        count = self.of(program)
        with self.changed:
            self.waiting.append(program)
            self.changed.wait_for(lambda: self.waiting[0] is program and self.free >= count)
            self.waiting.pop(0)
            self.free -= count
            self.changed.notify_all()
        try:
            yield
        finally:
            with self.changed:
                self.free += count
                self.changed.notify_all()


def execute(command, environment, timeout, log):
    """Returns what went wrong with the program as a whole, or None."""
    with open(log, "wb") as sink:
        process = subprocess.Popen(
            command,
            env={**os.environ, **dict(one.split("=", 1) for one in environment)},
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired:
            end_group(process)
            process.wait()
            return f"ran out of time ({timeout} s)"
    if code < 0:
        return f"crashed with {signal.Signals(-code).name}"
    return f"exited with status {code}" if code else None


def log_path(reports, name):
    return reports / f"{name}.log"


def run_program(program, timeout, reports, slots):
    with slots.taken_by(program):
        return run_now(program, timeout, reports)


def run_now(program, timeout, reports):
    start = time.monotonic()
    log = log_path(reports, program.name)
    surroundings = Surroundings(program, reports)
    trouble = execute(program.command, (*surroundings.environment, *program.environment), timeout, log)
    output = log.read_text(errors="replace")
    try:
        outcome = program.parse(program.report)
    except (OSError, ValueError, KeyError, ElementTree.ParseError):
        trouble = trouble or "left no report"
        outcome = parse_gtest_output(output)
    if not trouble and outcome.total == 0:
        trouble = "ran no test"
    if trouble and not outcome.failed:
        outcome.failed.append(f"({program.name} {trouble})")
    elif trouble and not trouble.startswith("exited"):
        outcome.failed[-1] += f" ({program.name} {trouble})"
    outcome.failed += [f"({program.name} {leftover})" for leftover in surroundings.leftovers()]
    return Run(program, outcome, output, time.monotonic() - start)


def failing_part(output, limit=20000):
    """The output without the lines of tests that passed."""
    kept = re.sub(r"^\[ RUN      \] (\S+)\n(?:(?!\[ RUN      \]).*\n)*?\[       OK \] \1.*\n", "", output, flags=re.M)
    return kept if len(kept) <= limit else kept[: limit // 2] + "\n[…]\n" + kept[-limit // 2 :]


def report_run(run):
    outcome = run.outcome
    parts = [f"{outcome.passed} passed"]
    if outcome.failed:
        parts.append(f"{len(outcome.failed)} failed")
    if outcome.skipped:
        parts.append(f"{outcome.skipped} skipped")
    print(f"{run.program.name}: {', '.join(parts)} ({run.seconds:.1f} s)", flush=True)
    if outcome.failed:
        print(failing_part(run.output), flush=True)


def read_durations(path):
    """Seconds by name, of the runs before; nothing where there is no such file, or it is not one of ours."""
    try:
        return {str(name): float(seconds) for name, seconds in json.loads(path.read_text()).items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def longest_first(programs, durations):
    """What starts last should not be what takes longest. Programs without a duration come first, by their cost."""
    return sorted(programs, key=lambda program: (-durations.get(program.name, float("inf")), -program.cost))


def select(programs, pattern, label):
    chosen = [
        program for program in programs if re.search(pattern, program.name) and (not label or label in program.labels)
    ]
    for program in chosen:
        if len(program.command) == 1:
            sys.exit(f"error: the test program {program.name} is not built: run make build-all")
    wanted = f"{pattern!r}" + (f" with the label {label!r}" if label else "")
    return chosen or sys.exit(
        f"error: no test program matches {wanted}; there are: "
        + ", ".join(" ".join([program.name, *program.labels]) for program in programs)
    )


def heed_signals():
    """A run in the background of a script ignores the keyboard's signals, and one under nohup that of a closed
    terminal. Programs would inherit that, and tests of these signals would fail or wait for ever. Signals that are
    handled are not inherited, so that under nohup this script outlives its terminal still."""
    for signum in (signal.SIGINT, signal.SIGQUIT):
        if signal.getsignal(signum) == signal.SIG_IGN:
            signal.signal(signum, signal.SIG_DFL)
    if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda *_: None)


def main():
    heed_signals()
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--build-dir", type=Path, required=True)
    parser.add_argument("--pytest", metavar="FOLDER", help="also run the Python tests of this folder")
    parser.add_argument(
        "--fuzz-dir", metavar="FOLDER", type=Path, help="also run the fuzz targets of this build folder"
    )
    parser.add_argument("--only", metavar="REGEX", default="", help="only programs whose name matches")
    parser.add_argument(
        "--label", default="", help="only programs with this label: unit, ranks, processes, python, fuzz"
    )
    parser.add_argument(
        "--jobs",
        type=int,
        default=2,
        help="programs at a time; of those that wait for ranks or processes, twice as many",
    )
    parser.add_argument("--timeout", type=float, default=3600, help="seconds for one program")
    options = parser.parse_args()
    os.environ["FSDP_BUILD_DIR"] = str(options.build_dir.resolve())

    with tempfile.TemporaryDirectory(prefix="fsdp-tests-") as folder:
        reports = Path(folder)
        programs = pytest_programs(options.pytest, reports) if options.pytest else []
        programs += [fuzz_program(options.fuzz_dir, reports)] if options.fuzz_dir else []
        durations_path = options.build_dir / "test_durations.json"
        durations = read_durations(durations_path)
        programs = select(programs + registered_programs(options.build_dir, reports), options.only, options.label)
        programs = longest_first(programs, durations)
        runs = []
        shared_memory = entries_of_shared_memory()
        slots = Slots(options.jobs)
        with concurrent.futures.ThreadPoolExecutor(slots.size) as pool:
            started = [pool.submit(run_program, program, options.timeout, reports, slots) for program in programs]
            for finished in concurrent.futures.as_completed(started):
                runs.append(finished.result())
                report_run(runs[-1])
        unstable = repeat_failures(runs, options.timeout, reports)
        durations.update((run.program.name, round(run.seconds, 1)) for run in runs)
        durations_path.write_text(json.dumps(durations, indent=1, sort_keys=True) + "\n")

    failed = [f"{run.program.name}: {name}" for run in runs for name in run.outcome.failed]
    failed += [f"left {name} in {SHARED_MEMORY}" for name in left_in_shared_memory(shared_memory)]
    skipped = sum(run.outcome.skipped for run in runs)
    for name in unstable:
        print(f"UNSTABLE {name} failed beside other programs, and passed by itself")
    for name in failed:
        print(f"FAILED {name}")
    print(
        f"{sum(run.outcome.passed for run in runs)} passed, {len(failed)} failed"
        + (f", {skipped} skipped" if skipped else "")
    )
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
