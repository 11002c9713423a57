"""Collectives of ranks on one host: this library's through shared memory and over Gloo, c10d's over Gloo, and a copy of
as many bytes."""

import statistics

import ranks as rank_processes

COPY = "memcpy, on all ranks at a time"


def measure(build_dir, ranks, mebibytes, port=29960):
    """A dictionary a row of comm_bench."""
    return rank_processes.run([build_dir / "comm_bench", *mebibytes], ranks, port)


def table(rows):
    """A number is the median over the turns."""
    seconds = {(row["what"], row["mib"]): statistics.median(row["seconds"]) for row in rows}
    lines = [
        "| collective | MiB | ms | CPU ms | GB/s | c10d's time / this | memcpy's time / this |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in rows:
        mine, kind = seconds[row["what"], row["mib"]], row["what"].split(",")[0]
        bases = (seconds.get((f"{kind}, c10d", row["mib"])), seconds.get((COPY, row["mib"])))
        ratios = [f"{base / mine:.1f}" if base else "–" for base in bases]
        lines.append(
            f"| {row['what']} | {row['mib']:g} | {mine * 1e3:.3f} | {row['cpu_seconds'] * 1e3:.3f} "
            f"| {row['mib'] * 2**20 / mine / 1e9:.1f} | {' | '.join(ratios)} |"
        )
    return "\n".join(lines)


def report(build_dir, counts, mebibytes=(64,)):
    return "\n\n".join(
        f"#### {count} ranks\n\n{table(measure(build_dir, count, mebibytes))}" for count in counts if count > 1
    )
