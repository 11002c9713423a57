#!/usr/bin/env python3
"""Runs the fuzz targets of a build folder, each for some seconds, and counts their inputs.

A finding (a crash, an error of a sanitizer, too much memory or time) ends a target; its input is kept in the build
folder's findings/ and is run again with TARGET FILE. The exit status is 0 only when there was none.
"""

import argparse
import concurrent.futures
import os
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DICTIONARIES = {
    "pickle_fuzz": "pickle",
    "dcp_metadata_fuzz": "pickle",
    "dcp_folder_fuzz": "pickle",
    "torch_archive_fuzz": "pickle",
    "zip_archive_fuzz": "zip",
}
LIMITS = ["-timeout=30", "-rss_limit_mb=2048", "-malloc_limit_mb=64"]


def environment(files):
    """Sanitizers that end the process at the first error; `files`: where targets write the files that they read."""
    suppressions = ROOT / "scripts" / "lsan.supp"
    return os.environ | {
        "TMPDIR": str(files),
        "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
        "LSAN_OPTIONS": f"suppressions={suppressions}:print_suppressions=0",
    }


def command(options, target, new_inputs):
    dictionary = ROOT / "fuzz" / "dictionaries" / f"{DICTIONARIES.get(target, 'json')}.dict"
    amount = f"-runs={options.runs}" if options.runs else f"-max_total_time={options.seconds}"
    findings = options.build_dir / "findings"
    findings.mkdir(exist_ok=True)
    return [
        options.build_dir / target,
        amount,
        *LIMITS,
        f"-dict={dictionary}",
        f"-artifact_prefix={findings}/{target}-",
        "-print_final_stats=1",
        new_inputs,
        options.build_dir / "seeds" / target,
    ]


def new_inputs_folder(options, target, files):
    """Inputs that reached new code: kept with --keep, where the next run begins with them."""
    folder = (options.build_dir / "corpus" if options.keep else files) / target
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def run_target(options, target, files):
    """Returns (inputs, finding): how many were run, and the log of the last one if it is a finding, else None."""
    with tempfile.TemporaryDirectory(dir=files) as scratch:
        new_inputs = new_inputs_folder(options, target, Path(scratch))
        ran = subprocess.run(
            command(options, target, new_inputs),
            env=environment(scratch),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
    log = ran.stdout.decode(errors="replace")
    count = re.search(r"^stat::number_of_executed_units: (\d+)$", log, re.M)
    inputs = int(count.group(1)) if count else 0
    failed = ran.returncode != 0 or inputs == 0
    return inputs, (log[-20000:] or "no output") if failed else None


def write_report(path, findings):
    """JUnit's XML; `findings`: by target, None where there was none."""
    suite = ElementTree.Element("testsuite", name="fuzz")
    for target, finding in findings.items():
        case = ElementTree.SubElement(suite, "testcase", classname="fuzz", name=target)
        if finding is not None:
            ElementTree.SubElement(case, "failure", message="finding")
    if not findings:
        case = ElementTree.SubElement(suite, "testcase", classname="fuzz", name="targets")
        ElementTree.SubElement(case, "skipped", message="not built: clang++ with libFuzzer is missing")
    ElementTree.ElementTree(suite).write(path)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build-dir", type=Path, required=True)
    parser.add_argument("--seconds", type=int, default=1, help="for each target")
    parser.add_argument("--runs", type=int, default=0, help="inputs for each target, instead of seconds")
    parser.add_argument("--jobs", type=int, default=1, help="targets at a time")
    parser.add_argument("--only", default="", metavar="REGEX", help="only targets whose name matches")
    parser.add_argument("--keep", action="store_true", help="keep inputs that reached new code in corpus/")
    parser.add_argument("--report", type=Path, help="write a JUnit XML report to this file")
    return parser.parse_args()


def main():
    options = parse_arguments()
    targets = sorted(
        path.name for path in options.build_dir.glob("*_fuzz") if path.is_file() and re.search(options.only, path.name)
    )
    findings, total = {}, 0
    memory = Path("/dev/shm")
    with (
        tempfile.TemporaryDirectory(prefix="fsdp-fuzz-", dir=memory if os.access(memory, os.W_OK) else None) as files,
        concurrent.futures.ThreadPoolExecutor(options.jobs) as pool,
    ):
        started = {pool.submit(run_target, options, target, files): target for target in targets}
        for finished in concurrent.futures.as_completed(started):
            target = started[finished]
            inputs, findings[target] = finished.result()
            total += inputs
            print(
                f"{target}: {inputs} inputs" + ("" if findings[target] is None else f", FINDING\n{findings[target]}"),
                flush=True,
            )
    if options.report:
        write_report(options.report, findings)
    failed = sum(finding is not None for finding in findings.values())
    print(
        f"{len(findings)} targets, {total} inputs, {failed} with findings"
        if targets
        else f"no fuzz targets in {options.build_dir}"
    )
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
