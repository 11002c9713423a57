"""Images of rows, each as PNG and as SVG."""

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402

from comparison import tables  # noqa: E402

COLORS = {"fsdp.cpp": "#1b6ca8", "DDP": "#999999", "FSDP1": "#e08e45", "FSDP2": "#b5543c", "PyTorch": "#cccccc"}
HATCHES = {"full_shard": "", "shard_grad_op": "//", "no_shard": "..", "hybrid_shard": "xx"}


def save(figure, path):
    """Returns the image's name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.tight_layout()
    figure.savefig(path.with_suffix(".png"), dpi=80)
    figure.savefig(path.with_suffix(".svg"), metadata={"Date": None})
    plt.close(figure)
    return path.name


def panels(rows, height=0.28):
    """A figure with a panel for each group, one below the other."""
    groups = tables.groups_of(rows)
    heights = [len(members) for members in groups.values()]
    figure, axes = plt.subplots(len(groups), 1, figsize=(8, sum(heights) * height + 0.9 * len(groups)), squeeze=False,
                                gridspec_kw={"height_ratios": heights})
    return figure, list(zip(axes[:, 0], groups.items()))


def bars(rows, name, label, path):
    """The median of a figure for each variant, with its range; what was not measured is named without a bar."""
    figure, parts = panels(rows)
    for axis, (group, members) in parts:
        for place, row in enumerate(members):
            found = row["figures"].get(name) if row["status"] == "measured" else None
            if found:
                error = [[found["median"] - found["min"]], [found["max"] - found["median"]]]
                axis.barh(place, found["median"], xerr=error, color=COLORS.get(row["side"]), edgecolor="white",
                          hatch=HATCHES.get(row.get("job", {}).get("strategy"), ""))
            else:
                axis.text(0, place, f" {row['status']}", va="center")
        axis.set_yticks(range(len(members)), [row["variant"] for row in members])
        axis.invert_yaxis()
        axis.set_title(group, fontsize=10, loc="left")
        axis.set_xlim(left=0)
    parts[-1][0].set_xlabel(label)
    return save(figure, path)


SPLIT = (("forward", "forward_seconds", "#7fb069"), ("backward", "backward_seconds", "#1b6ca8"),
         ("clip", "clip_seconds", "#e6aa68"), ("optimizer", "optimizer_seconds", "#ca3c25"))


def split(rows, path):
    """What a step consists of; beside it the time in which the training thread was blocked."""
    figure, parts = panels(rows)
    for axis, (group, members) in parts:
        for place, row in enumerate(members):
            left = 0.0
            for label, name, color in SPLIT if row["status"] == "measured" else ():
                width = row["figures"][name]["median"]
                axis.barh(place, width, left=left, color=color, label=label if place == 0 else None)
                left += width
            if row["status"] == "measured":
                exposed = row["figures"]["exposed_seconds"]["median"]
                axis.barh(place + 0.3, exposed, height=0.15, color="black", label="exposed" if place == 0 else None)
        axis.set_yticks(range(len(members)), [row["variant"] for row in members])
        axis.invert_yaxis()
        axis.set_title(group, fontsize=10, loc="left")
    parts[0][0].legend(fontsize=7, ncols=5, loc="lower right", bbox_to_anchor=(1, 1), frameon=False)
    parts[-1][0].set_xlabel("seconds of a step")
    return save(figure, path)


def lines(series, labels, path, mark=None):
    """series: by name, pairs of x and y; labels: of x and y. Both axes are logarithmic. mark: an x to point out."""
    figure, axis = plt.subplots(figsize=(8, 4.5))
    for name, points in series.items():
        axis.plot(*zip(*points), marker="o", markersize=3, label=name)
    if mark:
        axis.axvline(mark[0], color="black", linestyle=":", label=mark[1])
    axis.set(xscale="log", yscale="log", xlabel=labels[0], ylabel=labels[1])
    axis.legend(fontsize=8)
    return save(figure, path)
