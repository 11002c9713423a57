"""Where fsdp.cpp is not the fastest or the smallest."""

from comparison import tables

MARGIN = 1.02  # less is no difference
NAMES = {
    "step_seconds": ("seconds a step", "{:.3f}"),
    "cpu_seconds": ("CPU seconds a step", "{:.3f}"),
    "allocated_mib": ("allocated MiB", "{:.1f}"),
    "host_mib": ("MiB of the host", "{:.0f}"),
}


def lagging(rows):
    """A line for each group, strategy and figure in which the best of our rows is behind the best of PyTorch's."""
    found = []
    for group, members in tables.groups_of(
        [row for row in rows if row["status"] == "measured" and "job" in row]
    ).items():
        for strategy in dict.fromkeys(row["job"]["strategy"] for row in members):
            for name in NAMES:
                found += compare(group, strategy, name, [row for row in members if row["job"]["strategy"] == strategy])
    return found


def compare(group, strategy, name, rows):
    best = {}
    for ours in (True, False):
        sided = [row for row in rows if (row["side"] == "fsdp.cpp") == ours and name in row["figures"]]
        best[ours] = min(sided, key=lambda row: row["figures"][name]["median"], default=None)
    if None in best.values():
        return []
    own, other = (best[ours]["figures"][name]["median"] for ours in (True, False))
    if own <= MARGIN * other:
        return []
    label, form = NAMES[name]
    return [f"* {group}, {strategy}: {label} {form.format(own)}, {best[False]['variant']} {form.format(other)}"]


def section(rows):
    lines = lagging(rows)
    if not any("job" in row for row in rows):
        return ""
    text = "\n".join(lines) or "Nowhere, by the medians."
    return f"### Where the best of fsdp.cpp's variants is behind PyTorch's best by more than 2 %\n\n{text}"
