"""Experiment 6 of benchmarks/compare: the memory of all ranks of a host, groups that are measured together, its
page."""

import os
import subprocess
import sys

from conftest import SOURCE_DIR

sys.path.insert(0, str(SOURCE_DIR / "benchmarks"))
from comparison import host_memory, jobs, network, runner
from comparison.experiments import one_host
from test_compare import row

# Two processes: one maps memory, both write to all of it, and say so.
MAPS = """
import mmap, os, sys
size, kind = int(sys.argv[1]), sys.argv[2]
memory = mmap.mmap(-1, size, getattr(mmap, "MAP_" + kind))
child = os.fork()
for begin in range(0, size, mmap.PAGESIZE):
    memory[begin] = 1
os.write(1, b"%d\\n" % os.getpid())
os.read(0, 1)
if child:
    os.waitpid(child, 0)
"""


def mapped_by_two(kind, size):
    """Bytes that both have together."""
    with subprocess.Popen(
        [sys.executable, "-c", MAPS, str(size), kind], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as parent:
        processes = [int(parent.stdout.readline()) for _ in range(2)]
        found = sum(map(host_memory.pss_bytes, processes))
        parent.communicate(b"  ")
    assert [host_memory.pss_bytes(process) for process in processes] == [0, 0], "they have ended"
    return found


def test_memory_that_two_processes_share_counts_once():
    size = 96 << 20
    shared, private = (mapped_by_two(kind, size) for kind in ("SHARED", "PRIVATE"))
    assert size <= shared < size + (40 << 20), "and two interpreters"
    assert 2 * size <= private < 2 * size + (40 << 20)


def test_watch_looks_at_all_processes_half_of_the_time(monkeypatch):
    now = [100.0]

    def pss_bytes(process):
        now[0] += 0.5
        return process

    monkeypatch.setattr(host_memory.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(host_memory, "pss_bytes", pss_bytes)
    watch = host_memory.Watch()
    watch.look([1, 2])  # takes a second
    for moment in (101.5, 101.9, 102.0):
        now[0] = moment
        watch.look([10, 20])
    assert watch.samples == [(100.0, 3), (102.0, 30)]


def test_peak_of_the_host_is_of_the_steps_that_count():
    """What was loaded before them, and ranks that have ended, do not count."""
    watch = host_memory.Watch()
    watch.samples = [(1.0, 900), (7.9, 800), (8.5, 300), (9.0, 400), (9.5, 0)]
    rank = {"steps": [{"step": {"seconds": 1.0}}, {"step": {"seconds": 1.0}}]}
    assert runner.host_peak(watch, [rank, {"steps": rank["steps"] * 4}], 10.0) == 400
    assert runner.host_peak(watch, [{"steps": []}], 10.0) is None


class Runs:
    """In place of runner.run_variant: ours has wrong losses with two ranks, and in the runs that measure memory with
    three."""

    def __init__(self):
        self.timed, self.watched = [], []

    def __call__(self, setting, variant, job, place):
        (self.watched if place.watched else self.timed).append((variant.name, place.ranks))
        parts = {part: {"seconds": 1.0, "blocked": 0.0, "cpu": 1.0} for part in runner.PARTS}
        wrong = variant.side == jobs.OURS and (place.ranks == 2 or (place.ranks == 3 and place.watched))
        rank = {"steps": [parts], "losses": [9.0 if wrong else place.ranks], "parameters": 1, "allocated": 0}
        if place.watched:
            rank["host"] = place.ranks << 20 if variant.side == jobs.OURS else None
        return [rank] * place.ranks


def measured_together(monkeypatch, folder, counts, **settings):
    runs, variants = Runs(), (jobs.variant(jobs.OURS), jobs.variant(jobs.FSDP2))
    monkeypatch.setattr(runner, "run_variant", runs)
    groups = [
        runner.Group(f"{ranks}", variants, jobs.Job("m", "s"), network.Place(ranks), **settings) for ranks in counts
    ]
    with open(os.devnull, "w") as log:
        return runner.measure_groups(runner.Setting(folder, folder, 8, 1, 1, None, log=log), groups), runs


def test_groups_that_are_measured_together_take_turns(monkeypatch, tmp_path):
    """Their losses are compared within each."""
    rows, runs = measured_together(monkeypatch, tmp_path, (1, 2))
    assert [(each["group"], each["ranks"], each["status"]) for each in rows] == [
        ("1", 1, "measured"),
        ("1", 1, "measured"),
        ("2", 2, "void"),
        ("2", 2, "measured"),
    ]
    rounds = [runs.timed[begin : begin + 4] for begin in range(0, 32, 4)]
    assert not runs.watched and all(len(set(each)) == 4 for each in rounds) and len(set(map(tuple, rounds))) > 1
    assert any(each[0][1] != each[1][1] != each[2][1] for each in rounds), "groups are mixed"


def test_memory_of_the_host_has_runs_of_its_own(monkeypatch, tmp_path):
    """Which have to train the same as well."""
    rows, runs = measured_together(monkeypatch, tmp_path, (1, 3), host_memory=True)
    assert runs.watched == runs.timed and len(runs.timed) == 32
    assert [[figures.get("host_mib") for figures in each["rounds"]] for each in rows] == [
        [1] * 8,
        [None] * 8,
        [3] * 8,
        [None] * 8,
    ]
    assert [each["status"] for each in rows] == ["measured", "measured", "void", "measured"]


def test_what_is_allocated_is_left_out_over_shared_memory():
    rows = [
        {"job": {"backend": backend}, "rounds": [{"allocated_mib": 1.0, "host_mib": 2.0}]}
        for backend in ("gloo", "shm")
    ]
    assert [row["rounds"][0].keys() for row in one_host.without_uncounted(rows)] == [
        {"allocated_mib", "host_mib"},
        {"host_mib"},
    ]


def test_ranks_of_one_host_are_divided_by_fsdp2_by_processes_apart_and_by_one_alone():
    """The first two with as many ranks."""

    def of(ranks, variant, *losses, group="together", **more):
        return {**row(variant, *losses, group=f"{group} {ranks}", **more), "ranks": ranks}

    rows = [
        of(1, "PyTorch alone", seconds=(1.0, 2.0), host_mib=100.0),
        of(2, "fsdp.cpp shared memory", seconds=(2.0, 4.0), host_mib=150.0),
        of(2, "FSDP2", seconds=(4.0, 16.0), host_mib=300.0),
        of(2, "fsdp.cpp Gloo", [[9.0, 9.0]], status="void"),
        of(4, "FSDP2", seconds=(50.0, 25.0)),
        of(2, "PyTorch apart", seconds=(1.6, 3.2), group="apart"),
        of(4, "PyTorch apart", seconds=(10.0, 10.0), group="apart"),
    ]
    page = one_host.report(rows)
    pairs = (f"s a step / {base} | host MiB / {base}" for base in ("FSDP2", "PyTorch apart", "PyTorch alone"))
    assert page.count(f"| {' | '.join(pairs)} |") == 5
    lines = [line.strip(" |").split(" | ") for line in page.splitlines() if line.startswith("| ")]
    cells = {name: [line[-6:] for line in lines if line[0] == name] for name, *_ in lines}
    same = "1.00 (1.00–1.00)"
    assert cells["PyTorch alone"] == [["–", "–", "–", "–", same, same]]
    assert cells["fsdp.cpp shared memory"] == [
        ["0.38 (0.25–0.50)", "0.50 (0.50–0.50)", "1.25 (1.25–1.25)", "–", "2.00 (2.00–2.00)", "1.50 (1.50–1.50)"]
    ]
    assert cells["fsdp.cpp Gloo (**void**)"] == [["–"] * 6]
    assert cells["PyTorch apart"] == [
        ["0.30 (0.20–0.40)", "–", same, "–", "1.60 (1.60–1.60)", "–"],
        ["0.30 (0.20–0.40)", "–", same, "–", "7.50 (5.00–10.00)", "–"],
    ]
