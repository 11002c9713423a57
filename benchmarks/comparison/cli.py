"""The command line of `benchmarks/compare`."""

import argparse
import os
import signal
import sys
from pathlib import Path

from comparison import ROOT, machine, report, results
from comparison.experiments import EXPERIMENTS
from comparison.runner import Setting
from comparison.torch_ranks import TorchRanks
from comparison.workbench import MODELS, Call

PROGRAMS = ("compare_ours", "compare_gathers", "host_time", "checkpoint_bench", "libcounted_memory.so")


# Counted for the settings named; seconds of a run on two cores that had no other work.
TIME = (
    "time: experiments 1 to 5 with the defaults (small, ranks 2 4, 3 rounds) are 700 runs of some 4 seconds on two "
    "cores, an hour;\n"
    "with --ranks 2 --rounds 1 150 runs, ten minutes. Twice the ranks on the same cores take about twice as long a "
    "run.\n"
    "Experiment 6, of a larger model, has 84 runs of some 25 seconds with the defaults, 40 minutes. Experiment 7 has "
    "72 of some 10.\n"
    "--budget smoke takes 2 to 4 seconds a run, so with --ranks 2 --rounds 1 five minutes. full takes minutes a run."
)


def parser():
    listed = "\n".join(f"  {number}  {module.TITLE}" for number, module in EXPERIMENTS.items())
    result = argparse.ArgumentParser(
        prog="benchmarks/compare",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Measures fsdp.cpp beside PyTorch's DDP, FSDP1 and FSDP2 in one run: the same model, weights, "
        "samples, threads,\nranks and backend (Gloo; in 6 ours over shared memory as well). Leaves experiment-N.json "
        "(rows with all rounds),\n"
        "experiment-N.md and plots.\n\n"
        f"experiments, after the figures of the FSDP paper:\n{listed}",
        epilog="A network namespace for each run (root, iproute2) counts traffic; experiment 3 needs them for its link."
        f"\n\n{TIME}",
    )
    result.add_argument(
        "--experiment",
        nargs="+",
        default=["all"],
        choices=[*EXPERIMENTS, "all"],
        metavar="N",
        help=f"{', '.join(EXPERIMENTS)} or all (default)",
    )
    result.add_argument("--rounds", type=positive, default=3, help="of all variants, in another order each (default 3)")
    result.add_argument("--ranks", type=positive, nargs="+", default=[2, 4], help="numbers of ranks (default 2 4)")
    result.add_argument(
        "--budget",
        choices=tuple(MODELS),
        default="small",
        help="sizes: smoke (to see that it works), small (minutes an experiment; default), full (hours)",
    )
    result.add_argument("--threads", type=positive, default=1, help="of each rank, on all sides (default 1)")
    result.add_argument("--timeout", type=positive, default=600, help="seconds that one run may take (default 600)")
    result.add_argument(
        "--out", type=Path, default=ROOT / "docs/benchmarks", help="where results go (default docs/benchmarks)"
    )
    result.add_argument(
        "--folder", type=Path, default=ROOT / "output/compare", help="where models and samples are made"
    )
    result.add_argument("--build-dir", type=Path, default=Path(os.environ.get("BUILD_DIR", ROOT / "build")))
    result.add_argument(
        "--report-only", action="store_true", help="measure nothing: Markdown and plots again, from the JSON files"
    )
    return result


def positive(text):
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not positive")
    return value


def chosen(names):
    return list(EXPERIMENTS) if "all" in names else list(dict.fromkeys(names))


def main(arguments):
    options = parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("error: ended by SIGTERM"))  # which removes namespaces and ranks
    if not options.report_only:
        check_programs(options.build_dir)
        options.folder.mkdir(parents=True, exist_ok=True)
        measure(options, arguments)
    for experiment in chosen(options.experiment):
        try:
            print(report.write(options.out, experiment))
        except (FileNotFoundError, ValueError) as error:
            sys.exit(f"error: {error}")


def measure(options, arguments):
    with TorchRanks(kinds_of_models(options)) as torch_ranks:
        setting = Setting(
            options.build_dir, options.folder, options.rounds, options.threads, options.timeout, torch_ranks
        )
        call = Call(setting, options.budget, tuple(sorted(set(options.ranks))))
        # Before the first run: this program's own load does not count.
        about = machine.about(arguments, options.threads)
        for experiment in chosen(options.experiment):
            results.write(options.out, experiment, EXPERIMENTS[experiment].run(call), about)


def kinds_of_models(options):
    """Of all runs but those of single experiments' odd models, which import their code themselves."""
    decoders = EXPERIMENTS["7"].MODELS[options.budget] if "7" in chosen(options.experiment) else ()
    return [*MODELS[options.budget], *(spec.kind for spec in decoders)]


def check_programs(build_dir):
    missing = [name for name in PROGRAMS if not (build_dir / name).exists()]
    if missing:
        sys.exit(f"error: {build_dir} lacks {', '.join(missing)}: run make build")
