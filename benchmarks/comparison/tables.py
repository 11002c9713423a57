"""Markdown tables of rows."""

from comparison import spread

MARKS = {"void": "**void**", "failed": "failed", "out of memory": "out of memory", "not run": "not run"}


def table(header, lines):
    ruled = [header, ["---", *["---:"] * (len(header) - 1)], *lines]
    return "\n".join(f"| {' | '.join(str(cell).replace('|', '/') for cell in line)} |" for line in ruled)


def groups_of(rows):
    groups = {}
    for row in rows:
        groups.setdefault(row["group"], []).append(row)
    return groups


def cell(row, name, form):
    figures = row["figures"].get(name)
    return spread.shown(figures, form) if figures else "–"


def against(row, base, name):
    """How many times the base's median this row's is, by rounds where both have all of them."""
    if base is None or row["status"] == "void" or name not in row["figures"] or name not in base["figures"]:
        return "–"
    if len(row["rounds"]) == len(base["rounds"]):
        values = spread.ratios(
            [figures[name] for figures in row["rounds"]], [figures[name] for figures in base["rounds"]]
        )
        return spread.shown(spread.summary(values), "{:.2f}")
    return f"{row['figures'][name]['median'] / base['figures'][name]['median']:.2f}"


def base_of(row, rows):
    """The row of fsdp.cpp that another one is compared with: the first of the same strategy, or else the first."""
    ours = [other for other in rows if other["side"] == "fsdp.cpp" and other["status"] == "measured"]

    def strategy(other):
        return other.get("job", {}).get("strategy")

    return next((other for other in ours if strategy(other) == strategy(row)), ours[0] if ours else None)


def group_table(rows, columns, compared, bases=(("fsdp.cpp", base_of),)):
    """columns: (heading, figure, format). compared: headings and figures that are divided by those of each base: a
    name, and what finds a row's base among the rows."""
    header = [
        "variant",
        *(heading for heading, _, _ in columns),
        *(f"{heading} / {base}" for base, _ in bases for heading, _ in compared),
    ]
    lines = []
    for row in rows:
        mark = f" ({MARKS[row['status']]})" if row["status"] in MARKS else ""
        values = [cell(row, name, form) for _, name, form in columns]
        ratios = [against(row, find(row, rows), name) for _, find in bases for _, name in compared]
        lines.append([row["variant"] + mark, *values, *ratios])
    return table(header, lines)


def crowded(rows):
    return ["More ranks than cores: times are indicative."] if any(row.get("indicative") for row in rows) else []


def notes(rows):
    """Why rows were not measured or do not count."""
    return [f"* {row['variant']}: {row['status']}. {row['reason']}" for row in rows if row["reason"]]
