"""Images of rows: small multiples in one figure, on a light and on a dark ground."""

import math

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from comparison import tables

# A system has one colour in all images, which stands out on both grounds.
COLORS = {
    "fsdp.cpp": "#2f81d7",
    "DDP": "#8b949e",
    "FSDP1": "#d9822b",
    "FSDP2": "#c0504d",
    "DCP": "#c0504d",
    "PyTorch": "#b0b7bf",
}
GROUNDS = {"": ("#ffffff", "#1f2328"), "-dark": ("#0d1117", "#e6edf3")}
PIXELS_WIDE, DOTS_PER_INCH = 880, 110
BAR, HEAD, MOST_COLUMNS = 0.18, 0.45, 4  # inches: a bar, a panel's title and axis


def both_grounds(draw):
    """Makes of a function that draws one that takes path= besides, leaves PATH.png and PATH-dark.png, and returns the
    name of both, without an ending."""

    def drawn(*arguments, path, **options):
        path.parent.mkdir(parents=True, exist_ok=True)
        for suffix, (ground, ink) in GROUNDS.items():
            style = {
                "figure.facecolor": ground,
                "axes.facecolor": ground,
                "savefig.facecolor": ground,
                "font.size": 7.5,
                "axes.spines.top": False,
                "axes.spines.right": False,
                "axes.titlesize": 8,
                "hatch.color": ground,
                **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), ink),
            }
            with plt.rc_context(style):
                figure = draw(*arguments, **options)
                figure.savefig(path.with_name(f"{path.name}{suffix}.png"), dpi=DOTS_PER_INCH)
                plt.close(figure)
        return path.name

    return drawn


def picture(name, folder=""):
    """The image in Markdown, as the reader's page is light or dark."""
    return (
        f'<picture><source media="(prefers-color-scheme: dark)" srcset="{folder}{name}-dark.png">'
        f'<img alt="{name}" src="{folder}{name}.png"></picture>'
    )


def arranged(groups):
    """Rows of panels: groups that differ in what follows their first comma stand side by side where there are as many
    of each kind. Else few groups stand below one another, and more in pairs."""
    kinds = {}
    for name in groups:
        kinds.setdefault(name.split(",")[0], []).append(name)
    lengths = {len(names) for names in kinds.values()}
    if len(kinds) > 1 and len(lengths) == 1 and lengths <= set(range(2, MOST_COLUMNS + 1)):
        return list(kinds.values())
    names, columns = list(groups), 1 if len(groups) < 4 else 2
    return [names[begin : begin + columns] for begin in range(0, len(names), columns)]


def panels(rows):
    """A figure with a panel for each group: (figure, [[(axis, members)]]), panels of one horizontal scale together:
    those in a row, or all where they stand below one another. Panels in a row share their bars' names where these are
    the same."""
    groups = tables.groups_of(rows)
    layout = arranged(groups)
    columns = max(map(len, layout))
    heights = [max(len(groups[name]) for name in line) * BAR + HEAD for line in layout]
    figure = plt.figure(figsize=(PIXELS_WIDE / DOTS_PER_INCH, sum(heights) + 0.2), layout="constrained")
    grid = figure.add_gridspec(len(layout), columns, height_ratios=heights)
    found = []
    for place, line in enumerate(layout):
        found.append([])
        for column, name in enumerate(line):
            axis = figure.add_subplot(grid[place, column])
            variants = [row["variant"] for row in groups[name]]
            repeated = column > 0 and variants == [row["variant"] for row in groups[line[0]]]
            axis.set_yticks(range(len(variants)), [] if repeated else variants)
            axis.set_ylim(len(variants) - 0.4, -0.6)
            axis.tick_params(axis="y", length=0)
            axis.set_title(name, loc="left", fontweight="bold")
            found[-1].append((axis, groups[name]))
    return figure, found if columns > 1 else [sum(found, [])]


def number(value):
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


@both_grounds
def bars(rows, name, label):
    """The median of a figure for each variant, with its range; what was not measured is named without a bar."""
    figure, parts = panels(rows)
    for line in parts:
        most = max(draw_bars(axis, members, name) for axis, members in line)
        for axis, _ in line:
            axis.set_xlim(0, most * 1.2 or 1)
    figure.supxlabel(label, fontsize=8)
    return figure


def draw_bars(axis, members, name):
    """Returns the largest value."""
    most = 0.0
    for place, row in enumerate(members):
        found = row["figures"].get(name) if row["status"] == "measured" else None
        if not found:
            axis.text(0, place, f" {row['status'] if row['status'] != 'measured' else 'not counted'}", va="center")
            continue
        axis.barh(place, found["median"], height=0.75, color=COLORS[row["side"]])
        axis.plot([found["min"], found["max"]], [place, place], color=plt.rcParams["text.color"], linewidth=0.8)
        end = max(found["median"], found["max"])
        axis.annotate(number(found["median"]), (end, place), xytext=(3, 0), textcoords="offset points", va="center")
        most = max(most, end)
    return most


SPLIT = (
    ("forward", "forward_seconds", "#6aa84f"),
    ("backward", "backward_seconds", "#2f81d7"),
    ("clipping", "clip_seconds", "#d9822b"),
    ("optimizer", "optimizer_seconds", "#c0504d"),
)


@both_grounds
def split(rows):
    """What a step consists of; below it the time in which the training thread was blocked."""
    figure, parts = panels(rows)
    handles = {}
    for axis, members in sum(parts, []):
        for place, row in enumerate(members):
            left = 0.0
            if row["status"] != "measured":
                axis.text(0, place, f" {row['status']}", va="center")
                continue
            for label, name, color in SPLIT:
                width = row["figures"][name]["median"]
                handles[label] = axis.barh(place, width, left=left, height=0.5, color=color)
                left += width
            exposed = row["figures"]["exposed_seconds"]["median"]
            handles["exposed communication"] = axis.barh(place + 0.36, exposed, height=0.16, color="#8b949e")
        axis.set_xlim(left=0)
    figure.legend(handles.values(), handles.keys(), ncols=len(handles), loc="outside upper left", frameon=False)
    figure.supxlabel("seconds of a step", fontsize=8)
    return figure


@both_grounds
def lines(series, labels, mark=None):
    """series: by name, pairs of x and y; labels: of x and y. Both axes are logarithmic. mark: an x to point out. A line
    is named at its end."""
    figure, axis = plt.subplots(figsize=(PIXELS_WIDE / DOTS_PER_INCH, 4), layout="constrained")
    ends = []
    for name, points in series.items():
        (line,) = axis.plot(*zip(*points), marker="o", markersize=3)
        ends.append([points[-1][0], points[-1][1], name, line.get_color()])
    axis.set(xscale="log", yscale="log", xlabel=labels[0], ylabel=labels[1])
    axis.margins(x=0.02)
    name_ends(axis, ends)
    if mark:
        axis.axvline(mark[0], color="#8b949e", linestyle=":")
        axis.annotate(
            mark[1],
            (mark[0], 0.98),
            xycoords=("data", "axes fraction"),
            xytext=(3, 0),
            textcoords="offset points",
            va="top",
            color="#8b949e",
        )
    return figure


def name_ends(axis, ends):
    """Names at the right of the axes, at the height of their line's end or as near as there is room."""
    (bottom, top), room = axis.get_ylim(), 0.045
    places = []
    for _, y, name, color in sorted(ends, key=lambda end: end[1]):
        place = math.log(y / bottom) / math.log(top / bottom)
        places.append(max(place, places[-1] + room) if places else place)
        axis.annotate(
            name, (1.01, places[-1]), xycoords="axes fraction", color=color, va="center", annotation_clip=False
        )
