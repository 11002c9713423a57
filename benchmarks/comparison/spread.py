"""Figures of several rounds."""

import statistics


def summary(values):
    """Median, smallest and largest."""
    if not values:
        raise ValueError("there are no values to summarise")
    return {"median": statistics.median(values), "min": min(values), "max": max(values), "rounds": len(values)}


def ratios(values, base):
    """Of each round; the two were measured in the same rounds, so what slows a whole round falls out."""
    if len(values) != len(base):
        raise ValueError(f"{len(values)} rounds cannot be compared with {len(base)}")
    return [value / other for value, other in zip(values, base)]


def shown(figures, form="{:.3g}"):
    middle = form.format(figures["median"])
    if figures["rounds"] == 1:
        return middle
    return f"{middle} ({form.format(figures['min'])}–{form.format(figures['max'])})"
