"""experiment-N.md beside experiment-N.json, with plots."""

from pathlib import Path

from comparison import lag, machine, plots, results
from comparison.experiments import EXPERIMENTS

HOW = (
    "Variants take turns, in another order in each round; a number is the median over the rounds, in brackets the "
    "smallest and\n"
    'largest. Columns "/ fsdp.cpp" divide round by round, by fsdp.cpp\'s first row of the same strategy. A row whose '
    "losses are not those of PyTorch's first row is void. Step: from\n"
    "zero_grad to the end of the optimizer's step, of the slowest rank; exposed: time of forward, backward and "
    "clipping in which its\n"
    "training thread was neither running nor ready to run; busy: the rest of the step's, as a share. CPU: processor "
    "time of all ranks'\n"
    "threads, which other programs on the machine change little. Allocated: peak bytes of all\n"
    "tensors of a rank in the steps that count; resident: of the process, PyTorch's with the interpreter and its "
    "libraries. Sent: bytes\n"
    "a step that all ranks send together, headers included."
)


def write(folder, experiment):
    """Writes what the JSON file holds as Markdown and plots; returns the Markdown's path."""
    folder = Path(folder)
    document = results.read(folder / f"experiment-{experiment}.json")
    module, rows = EXPERIMENTS[experiment], document["rows"]
    images = module.plot(rows, folder)
    parts = [
        f"# Experiment {experiment}: {module.TITLE}",
        machine.in_words(document),
        HOW,
        lag.section(rows),
        module.report(rows),
    ]
    parts += [plots.picture(name) for name in images]
    path = folder / f"experiment-{experiment}.md"
    path.write_text("\n\n".join(part for part in parts if part) + "\n")
    return path
