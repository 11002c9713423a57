#!/usr/bin/env python3
"""Writes the result of `fsdp plan --paper` as a page: the statements of the FSDP paper's text beside plans, and the
bytes that ranks send beside its formulas."""

import argparse
import collections
import json
import subprocess
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def wrapped(text):
    return textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False)


def statements(document):
    lines = [
        "| figure | statement | | planned | accepted | the paper's text |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    keys = ("figure", "what", "agreement", "planned", "accepted", "paper")
    return lines + ["| " + " | ".join(check[key] for key in keys) + " |" for check in document["checks"]]


def volumes(document):
    lines = [
        "| strategy | GPUs | bytes | the paper's formula | the schedule's formula | planned |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for volume in document["volumes"]:
        of_schedule = "the same"
        if "schedule_formula" in volume:
            of_schedule = f"{volume['schedule_formula']} = {volume['schedule_bytes']:,}"
        planned = f"{volume['planned_bytes']:,}, {'exact' if volume['exact'] else 'differs'}"
        cells = (
            volume["strategy"],
            str(volume["gpus"]),
            volume["sent"],
            f"{volume['formula']} = {volume['formula_bytes']:,}",
            of_schedule,
            planned,
        )
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def page(document):
    count = collections.Counter(check["agreement"] for check in document["checks"])
    introduction = (
        f"Written by `benchmarks/planned_paper.py` from the {document['plans']} plans of `fsdp plan --paper`. Nothing "
        f"is measured. {count['agrees']} statements agree with plans, {count['differs']} differ, and "
        f"{count['not checked']} are not checked. What differs, and why: "
        "[how to plan a run](../planning.md#the-figures-of-the-paper)."
    )
    sent = (
        "T5-2B in bf16. M: bytes of all parameters; W: GPUs; G: GPUs of a host; K: bytes of the units that a step "
        "gathers once, since they are still gathered when backward begins."
    )
    lines = ["# The figures of the FSDP paper, planned", "", wrapped(introduction), ""]
    lines += [*statements(document), "", "## Bytes that each rank sends in a step", "", wrapped(sent), ""]
    return "\n".join([*lines, *volumes(document)]) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build-dir", type=Path, default=ROOT / "build")
    parser.add_argument("--output", type=Path, default=ROOT / "docs/benchmarks/paper-plans.md")
    options = parser.parse_args()
    command = [options.build_dir / "fsdp", "plan", "--paper", "--json"]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    options.output.write_text(page(json.loads(result.stdout)))


if __name__ == "__main__":
    main()
