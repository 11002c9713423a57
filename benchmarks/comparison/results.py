"""Rows with their summaries, and the file that holds them."""

import json
from pathlib import Path

from comparison import spread

SCHEMA_VERSION = 1


def summarise(rows):
    """Adds `figures`: of each figure that all of a row's rounds have, median, smallest and largest."""
    for row in rows:
        if row["rounds"]:
            names = [name for name in row["rounds"][0] if all(name in figures for figures in row["rounds"])]
            row["figures"] = {name: spread.summary([figures[name] for figures in row["rounds"]]) for name in names}
    return rows


def write(folder, experiment, rows, about):
    """experiment-N.json; `about`: command, machine, versions. Returns its path."""
    path = Path(folder) / f"experiment-{experiment}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        json.dumps({"schema_version": SCHEMA_VERSION, "experiment": experiment, **about, "rows": rows}, indent=1) + "\n"
    )
    return path


def read(path):
    document = json.loads(Path(path).read_text())
    if document.get("schema_version") != SCHEMA_VERSION:
        raise ValueError(
            f"{path}: schema_version is {document.get('schema_version')}; this program reads {SCHEMA_VERSION}"
        )
    return document
