#!/usr/bin/env python3
"""Draws some units of one step of a trace (`trace_path`): computation of units, their all-gathers and reduce-scatters,
and where the computing thread waited. Writes PATH.png and PATH-dark.png.

    build/fsdp train --config-path examples/smollm2.json --nproc-per-node 2 --set max_steps=5 --set trace_steps=1 \\
      --set trace_path=trace.json
    benchmarks/draw_timeline.py trace.json docs/benchmarks/step-timeline
"""

import argparse
import json
from pathlib import Path

from comparison import plots

ROWS = {"compute": "computation", "gather": "all-gather", "reduce": "reduce-scatter"}
COLORS = {"compute": "#8b949e", "gather": "#2f81d7", "reduce": "#d9822b", "wait": "#c0504d"}
LEAST_WAIT = 0.01  # of the panel's width: shorter ones would not be seen


def ranges_of(trace, rank):
    """What a rank did: (kind, unit, pass, begin and end in milliseconds)."""
    for event in json.loads(trace.read_text())["traceEvents"]:
        if event["ph"] == "X" and event["pid"] == rank:
            begin = event["ts"] / 1e3
            yield event["cat"], event["args"]["unit"], event["args"]["pass"], begin, begin + event["dur"] / 1e3


def window(ranges, phase, units):
    """From the middle of a pass: when the computation of so many units begins and ends."""
    computed = [one for one in ranges if one[0] == "compute" and one[2] == phase and one[1] != "root"]
    first = max(0, (len(computed) - units) // 2)
    chosen = computed[first : first + units]
    return chosen[0][3], chosen[-1][4]


def short(unit):
    return unit.rpartition(".")[2]


def lanes_of(ranges):
    """Ranges of one row that overlap get lanes of their own: (range, lane)."""
    ends = []
    for one in sorted(ranges, key=lambda one: one[3]):
        lane = next((number for number, end in enumerate(ends) if end <= one[3]), len(ends))
        ends[lane : lane + 1] = [one[4]]
        yield one, lane


def draw_panel(axis, ranges, phase, begin, end):
    seen = [one for one in ranges if one[4] > begin and one[3] < end]
    labels, place = [], 0
    for kind, title in ROWS.items():
        laned = list(lanes_of([one for one in seen if one[0] == kind]))
        if not laned:
            continue
        lanes = 1 + max(lane for _, lane in laned)
        for (_, unit, _, since, until), lane in laned:
            left, right = max(since, begin), min(until, end)
            axis.barh(
                place + lane,
                right - left,
                left=left - begin,
                height=0.8,
                color=COLORS[kind],
                edgecolor=axis.get_facecolor(),
            )
            if right - left > 0.04 * (end - begin):
                axis.text(
                    (left + right) / 2 - begin, place + lane, short(unit), ha="center", va="center", color="white"
                )
        labels.append((place + (lanes - 1) / 2, title))
        place += lanes
    for kind, _, _, since, until in seen:
        if kind == "wait" and until - since > LEAST_WAIT * (end - begin):
            axis.barh(
                0, min(until, end) - max(since, begin), left=max(since, begin) - begin, height=0.8, color=COLORS[kind]
            )
    axis.set_yticks([at for at, _ in labels], [title for _, title in labels])
    axis.tick_params(axis="y", length=0)
    axis.invert_yaxis()
    axis.set_xlim(0, end - begin)
    axis.set_xlabel("ms")
    axis.set_title(f"{phase}: units by number; waits in red", loc="left")


@plots.both_grounds
def draw(trace, rank, units):
    ranges = list(ranges_of(trace, rank))
    figure, axes = plots.plt.subplots(
        2, 1, figsize=(plots.PIXELS_WIDE / plots.DOTS_PER_INCH, 3.6), layout="constrained"
    )
    for axis, phase in zip(axes, ("forward", "backward")):
        draw_panel(axis, ranges, phase, *window(ranges, phase, units))
    return figure


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path)
    parser.add_argument("path", type=Path, help="of the images, without an ending")
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--units", type=int, default=6, help="of each pass, from its middle")
    options = parser.parse_args()
    draw(options.trace, options.rank, options.units, path=options.path)


if __name__ == "__main__":
    main()
