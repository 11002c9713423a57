"""Each command in a fenced block of the documents runs, on a small model where it would take long. A command that
nothing here knows how to run is a failure; so is a rule that no command needs."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from resume_support import write_model

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted(
    path
    for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("examples/**/*.md"))
    if path.name != "CHANGELOG.md"
)

# In place of what SmolLM2 needs.
SMALL = {
    "max_steps": 1,
    "dataset": "dummy:40",
    "eval_dataset": "dummy:20",
    "max_seq_length": 9,
    "train_batch_size": 2,
    "overwrite_output_dir": "true",
}

# What runs elsewhere: a pattern, and the test that runs it.
ELSEWHERE = {
    r"srun ": "test_slurm.py",
    r"MASTER_ADDR=\S+ MASTER_PORT=\S+ mpirun": "test_several_hosts.py",
    r"torchrun .*--nnodes 2": "test_several_hosts.py",
    r"accelerate launch ": "test_package_accelerate.py",
    r"torchrun --nproc-per-node 2 examples/python/": "test_package_examples.py",
    r"cmake ": "test_setup_consumer.py",
    r"pip install ": "test_python_build.py",
    r"fsdp --help": "test_python_wheel.py",
    r"fsdp train --config-path config.json": "test_gpt2.py",
    r"fsdp train --config-path examples/mnist.json": "test_image_models.py",
    r"fsdp train --config-path examples/adult.json": "test_tabular.py",
}


def commands_of(text):
    """The commands of a document's blocks, without remarks; lines that go on are joined."""
    for block in re.findall(r"^```sh\n(.*?)^```", text, flags=re.M | re.S):
        for line in block.replace("\\\n", " ").splitlines():
            command = re.sub(r"\s+", " ", re.sub(r"(^|\s)#.*$", "", line)).strip()
            if command:
                yield command


COMMANDS = sorted({command for path in DOCUMENTS for command in commands_of(path.read_text())})


class Place:
    """A folder in which commands run, with the names of the repository's root in it."""

    def __init__(self, folder, build_dir, model):
        self.folder, self.build_dir, self.model = folder, build_dir, model
        for name in ("examples", "data"):
            if (ROOT / name).exists():
                (folder / name).symlink_to(ROOT / name)

    def run(self, words, timeout=300):
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        }
        result = subprocess.run(
            list(map(str, words)),
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        assert result.returncode == 0, f"{words}:\n{result.stdout}{result.stderr}"
        return result.stdout

    def words(self, command):
        """Of the shell; programs are those of this build, and torchrun takes a port that is free."""
        words = [
            str(self.build_dir / word.removeprefix("build/")) if word.startswith("build/") else word
            for word in shlex.split(command)
        ]
        if words[0] == "torchrun":
            words[1:1] = [
                "--rdzv-backend",
                "c10d",
                "--rdzv-endpoint",
                "localhost:0",
                "--log-dir",
                self.folder / "torchrun",
            ]
        return words

    def small(self, output):
        settings = {**SMALL, "model_path": self.model, "output_dir": self.folder / output}
        return [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]


@pytest.fixture(scope="module")
def place(tmp_path_factory, build_dir):
    return Place(tmp_path_factory.mktemp("place"), build_dir, write_model(tmp_path_factory.mktemp("model") / "small"))


def run_make(place, command):
    """The target exists; what it does is this suite, or takes hours."""
    words = shlex.split(command)
    assert re.search(rf"^{words[1]}:.*## ", (ROOT / "Makefile").read_text(), flags=re.M), f"no target {words[1]}"
    for variable in (word.partition("=")[0] for word in words[2:]):
        assert variable in (ROOT / "Makefile").read_text() + (ROOT / "scripts/fuzz.sh").read_text(), variable


def run_as_it_stands(place, command):
    assert place.run(place.words(command)).strip()


def run_fewer_seeds(place, command):
    fewer = re.sub(r"--seconds \d+", "--seconds 1", re.sub(r"--seeds 1\.\.\d+", "--seeds 1..3", command))
    assert fewer != command
    assert " 0 failed" in place.run(place.words(fewer))


def run_small_training(place, command):
    assert "step 1/1" in place.run([*place.words(command), *place.small("output/smollm2")])


def run_report(place, command):
    words = place.words(command)
    for folder in words[2:]:
        place.run([place.build_dir / "fsdp", "train", "--config-path", "examples/smollm2.json", *place.small(folder)])
    place.run(words)


def run_plan(place, command):
    words = place.words(command)
    result = subprocess.run(words, cwd=place.folder, capture_output=True, text=True, check=False)
    assert result.returncode in (0, 3, 4), result.stderr
    # The document shows parts of what the program prints: of a search, not the time that it took.
    shown = next(text for text in PLANS if text.startswith(result.stdout.splitlines()[0]))
    for part in shown.split("…\n"):
        assert part in result.stdout


def compare_planned_times(place, command):
    """The page has the figures of this build."""
    page = place.folder / "planned-times.md"
    place.run([ROOT / command, "--build-dir", place.build_dir, "--output", page])
    assert page.read_text() == (ROOT / "docs/benchmarks/planned-times.md").read_text()


def compare_drawing(place, command):
    """The command draws the picture in the documents, and prints the text there."""
    words = place.words(command)
    picture = Path(words[words.index("--svg") + 1])
    (place.folder / picture).parent.mkdir(parents=True, exist_ok=True)
    printed = place.run(words)
    assert (place.folder / picture).read_text() == (ROOT / picture).read_text()
    for shown in SCHEDULES:
        assert not shown.startswith(printed.splitlines()[0]) or shown == printed


SCHEDULES = [
    block
    for block in re.findall(r"^```text\n(.*?)^```", (ROOT / "docs/parallelism.md").read_text(), flags=re.M | re.S)
    if "in flight" in block
]


PLANS = [
    block
    for path in DOCUMENTS
    for block in re.findall(r"^```text\n(.*?)^```", path.read_text(), flags=re.M | re.S)
    if any(mark in block for mark in ("memory of a device", "none of these is beaten", "ranks of the pipeline"))
]


def compare_with_help(place, command):
    """A synopsis: each option that it names is one of the program's."""
    words = shlex.split(command)
    known = place.run([place.build_dir / "fsdp", words[1], "--help"])
    for option in re.findall(r"--[a-z-]+", command):
        assert option in known, option


RULES = {
    r"make ": run_make,
    r"build/schedule_test ": run_as_it_stands,
    r"build/fuzz_training (--seed |--case )": run_as_it_stands,
    r"build/fuzz_training (--seeds |--seconds )": run_fewer_seeds,
    r"torchrun --no-python --nproc-per-node 2 build/shard_your_model": run_as_it_stands,
    r"(torchrun --no-python --nproc-per-node 2 )?"
    r"build/fsdp train --config-path examples/smollm2.json": run_small_training,
    r"build/fsdp report ": run_report,
    r"build/fsdp plan --print-cluster ": run_as_it_stands,
    r"build/fsdp plan (?!--print)": run_plan,
    r"build/fsdp schedule .* --svg ": compare_drawing,
    r"fsdp (plan|convert|inspect|schedule) ": compare_with_help,
    r"benchmarks/planned_times.py": compare_planned_times,
}


def rules_for(command):
    return [pattern for pattern in (*RULES, *ELSEWHERE) if re.match(pattern, command)]


@pytest.mark.parametrize(
    "command", [one for one in COMMANDS if not any(re.match(pattern, one) for pattern in ELSEWHERE)]
)
def test_command(place, command):
    rules = rules_for(command)
    assert len(rules) == 1, f"{command!r}: add a rule to this file"
    RULES[rules[0]](place, command)


def test_each_rule_is_needed():
    unused = [
        pattern for pattern in (*RULES, *ELSEWHERE) if not any(re.match(pattern, command) for command in COMMANDS)
    ]
    assert unused == []
    assert all((ROOT / "tests/python" / test).exists() for test in ELSEWHERE.values())


def test_each_shown_schedule_is_printed_by_a_command():
    titles = [command.split()[2] for command in COMMANDS if command.startswith("build/fsdp schedule ")]
    assert SCHEDULES and all(text.split(":")[0] in titles for text in SCHEDULES)


def test_remarks_and_line_ends_are_left_out():
    text = "```sh\nmake x   # why\n# only a remark\nrun a \\\n    --b '#1'\n```\n```text\nnot this\n```\n"
    assert list(commands_of(text)) == ["make x", "run a --b '#1'"]
