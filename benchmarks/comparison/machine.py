"""What a result was measured on, and with what."""

import datetime
import os
import platform
import shlex
import subprocess
from pathlib import Path

from comparison import ROOT
from comparison.runner import versions


def processor():
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def memory_gib():
    return round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1)


def commit():
    done = subprocess.run(
        ["git", "-C", str(ROOT), "describe", "--always", "--dirty"], capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or "unknown"


def about(arguments, threads):
    """load: the mean number of processes that were ready to run in the minute before; with more than a few tenths the
    machine was busy with something else."""
    return {
        "command": shlex.join(["benchmarks/compare", *arguments]),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "commit": commit(),
        "machine": {
            "processor": processor(),
            "cores": os.cpu_count(),
            "memory_gib": memory_gib(),
            "system": platform.release(),
            "load": round(os.getloadavg()[0], 2),
        },
        "threads": threads,
        "versions": versions(),
    }


def in_words(about):
    machine, versions_ = about["machine"], about["versions"]
    names = ", ".join(f"{name} {version}" for name, version in versions_.items())
    busy = machine["load"] > 0.5
    return (
        f"`{about['command']}`, {about['date']}, on {machine['cores']} cores ({machine['processor']}), "
        f"{machine['memory_gib']} GiB, {about['threads']} thread(s) a rank; fsdp.cpp at {about['commit']}; {names}."
        + (
            f" Preliminary: the machine was busy (load {machine['load']} before the first run); ratios of variants that"
            " take turns remain usable, times do not."
            if busy
            else ""
        )
    )
