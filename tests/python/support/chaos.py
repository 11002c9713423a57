"""Kills a training again and again, resumes it each time, and compares what it leaves with a run that nobody killed.

  python tests/python/support/chaos.py --program build/fsdp --rounds 200 --seed 1

Each round lets the job run for a drawn time, then sends SIGKILL to a rank, to the process that started the ranks, or
SIGTERM; saves are synchronous or not, with one to three checkpoints kept. Losses, norms and the final model must be
those of the undisturbed run, to the bit.
"""

import argparse
import collections
import contextlib
import os
import random
import shutil
import signal
import tempfile
import time
from pathlib import Path

from resume_support import Job, write_model

RANKS = 2


def ranks_of(process):
    try:
        return [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]
    except FileNotFoundError:
        return []


def disturb(process, draw):
    """Ends the job the hard way; returns how."""
    how = draw.choice(["rank", "rank", "launcher", "SIGTERM"])
    ranks = ranks_of(process)
    if how == "rank" and ranks:
        kill(draw.choice(ranks), signal.SIGKILL)
    else:
        kill(process.pid, signal.SIGTERM if how == "SIGTERM" else signal.SIGKILL)
    process.communicate(timeout=120)
    wait_for_the_dead(ranks)
    return how


def kill(pid, number):
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def wait_for_the_dead(pids):
    """Ranks of a launcher that was killed die with it, a moment later."""
    for pid in pids:
        while Path(f"/proc/{pid}").exists():
            time.sleep(0.01)


def disturbed_rounds(job, draw, rounds):
    """Runs the job until it has been ended that often, or is done; returns the ends."""
    ends = []
    while len(ends) < rounds:
        overrides = [f"async_save={draw.choice(['true', 'false'])}", f"save_total_limit={draw.randint(1, 3)}"]
        process = job.start(ranks=RANKS, overrides=overrides)
        time.sleep(draw.uniform(0.2, 1.2))
        if process.poll() is not None:
            out, err = process.communicate()
            assert process.returncode == 0, out + err
            break
        ends.append(disturb(process, draw))
    return ends


def run_chaos(program, folder, rounds, seed, steps_per_round=12):
    """Returns how often each kind of end was brought about, for the log. A job that is done before it has been ended
    often enough is compared, too, and another one begins: each round is an end."""
    draw = random.Random(seed)
    folder = Path(folder)
    model = write_model(folder / "model")
    config = {"max_steps": max(12, rounds * steps_per_round), "save_steps": 3}
    want = Job(program, model, folder / "undisturbed", **{**config, "save_steps": None}).finish(ranks=RANKS)
    ends = []
    while len(ends) < rounds:
        job = Job(program, model, folder / f"disturbed-{len(ends)}", **config)
        ends += disturbed_rounds(job, draw, rounds - len(ends))
        metrics, weights = job.finish(ranks=RANKS)
        assert metrics == want[0], "the losses differ"
        assert weights == want[1], "the weights differ"
        assert job.leftovers() == [], job.leftovers()
        shutil.rmtree(job.folder)
    return dict(collections.Counter(ends))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default="build/fsdp")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        ends = run_chaos(arguments.program, folder, arguments.rounds, arguments.seed)
    print(f"{arguments.rounds} rounds, seed {arguments.seed}: {ends}; losses and weights equal to the bit")


if __name__ == "__main__":
    main()
