#!/usr/bin/env python3
"""Plans for ranks on CPUs beside real ranks: the peak of their tensors, and hard limits on their memory.

`peaks` compares `fsdp plan` with a count of all tensors of real ranks, in the cases of
trainer/planner/testing/memory_cases.json. `limits` trains with a limit on what each rank's process reserves for itself
(RLIMIT_DATA): its base and 3 % more than its tensors are planned to take have to be enough, its base and 5 % less have
to be too little. The base is what the process reserves beside tensors at the end of a run without a limit: libraries,
stacks, and the code that oneDNN makes. Memory that ranks share does not count under that limit, so ranks talk over
Gloo.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CASES = json.loads((ROOT / "trainer/planner/testing/memory_cases.json").read_text())
STEPS = 3
ENOUGH, TOO_LITTLE = 1.03, 0.95
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}
STATUS_OF_VERDICTS = (0, 3, 4)


def config_of(case):
    return {
        "model": CASES["models"][case["model"]],
        "device": "cpu",
        "comm_backend": "gloo",
        "check_memory": False,
        **CASES["keys"][case["model"].removeprefix("large ")],
        **case["set"],
    }


def planned(case, options, folder):
    path = folder / "config.json"
    path.write_text(json.dumps(config_of(case)))
    command = [options.build_dir / "fsdp", "plan", "--config-path", path, "--cluster", f"{case['ranks']}xcpu", "--json"]
    result = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    if result.returncode not in STATUS_OF_VERDICTS:
        sys.exit(f"{case['name']}: {result.stderr}")
    return json.loads(result.stdout)["memory"]["host"]


def real(case, options, folder, limits=None):
    """What each rank's process says of itself."""
    run = {"config": config_of(case), "ranks": case["ranks"], "steps": STEPS}
    if limits is not None:
        run["limits"] = limits
    path = folder / "runs.json"
    path.write_text(json.dumps([run]))
    command = [options.build_dir / "planner_counted_ranks", path]
    result = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=True)
    return json.loads(result.stdout)[0]


def mebibytes(count):
    return f"{count / 2**20:.2f}"


def write(options, part, title, lines):
    options.output.mkdir(parents=True, exist_ok=True)
    head = [f"# {title}", "", f"Written by `benchmarks/planned_memory.py {part}`, with one thread a rank.", ""]
    (options.output / f"planned-{part}.md").write_text("\n".join(head + lines) + "\n")
    print("\n".join(lines))


def deviations(case, options, folder):
    """Of the plan from what was counted, for each step."""
    plan = [moment["bytes"] for moment in planned(case, options, folder)["peak_of_step"]]
    counted = real(case, options, folder)[0]["steps"]
    return plan, counted, [p / c - 1 for p, c in zip(plan, counted, strict=True)]


def peaks(options, folder):
    lines = ["| case | ranks | counted, MiB | planned, MiB | deviation |", "| --- | --- | --- | --- | --- |"]
    worst = []
    for case in CASES["cases"]:
        plan, counted, of_steps = deviations(case, options, folder)
        step = max(range(STEPS), key=lambda i: abs(of_steps[i]))
        worst.append(abs(of_steps[step]))
        lines.append(
            f"| {case['name']} | {case['ranks']} | {mebibytes(counted[step])} | {mebibytes(plan[step])} | "
            f"{100 * of_steps[step]:+.2f} % |"
        )
        print(lines[-1], file=sys.stderr, flush=True)
    lines += [
        "",
        f"{len(worst)} cases; of each, the step with the largest deviation. Mean of the deviations "
        f"{100 * statistics.mean(worst):.2f} %, largest {100 * max(worst):.2f} %.",
    ]
    write(options, "peaks", "Planned peaks beside those of real ranks on CPUs", lines)


def trains(ranks):
    return all(len(rank.get("steps", [])) == STEPS for rank in ranks)


def limits(options, folder):
    lines = [
        "| case | ranks | planned, MiB | base, MiB | 3 % more | 5 % less |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    fits_falsely = refused_falsely = 0
    for case in CASES["limited"]:
        plan = planned(case, options, folder)["pageable"]
        bases = [rank["after"]["reserved"] - rank["after"]["tensors"] for rank in real(case, options, folder)]
        fits, refused = (
            trains(real(case, options, folder, [base + int(factor * plan) for base in bases]))
            for factor in (ENOUGH, TOO_LITTLE)
        )
        fits_falsely += not fits
        refused_falsely += refused
        lines.append(
            f"| {case['name'].removeprefix('large ')} | {case['ranks']} | {mebibytes(plan)} | {mebibytes(bases[0])} | "
            f"{'trains' if fits else 'fails'} | {'trains' if refused else 'fails'} |"
        )
        print(lines[-1], file=sys.stderr, flush=True)
    runs = 2 * len(CASES["limited"])
    lines += [
        "",
        f"{runs} runs of {STEPS} steps: {fits_falsely} do not fit where the plan says that they do, "
        f"{refused_falsely} fit where it says that they do not.",
    ]
    write(options, "limits", "Plans beside hard limits on real ranks on CPUs", lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=("peaks", "limits"), default=["peaks", "limits"])
    parser.add_argument("--build-dir", type=Path, default=ROOT / "build")
    parser.add_argument("--output", type=Path, default=ROOT / "output/planned_memory", help="folder of the tables")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for part in options.parts:
            {"peaks": peaks, "limits": limits}[part](options, Path(folder))


if __name__ == "__main__":
    main()
