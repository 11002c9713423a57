"""Whether variants have trained the same: their losses, step by step."""

# Relative to the reference's loss. fp32: what another order of additions becomes through some steps of AdamW, whose
# first updates have the size of the learning rate however small a gradient is. bf16: three digits a product.
TOLERANCE = {"fp32": 1e-3, "bf16": 3e-2}


def difference(losses, reference):
    """The largest relative one of any step; infinite where one of them is not a number or has other steps."""
    if len(losses) != len(reference) or not reference:
        return float("inf")
    worst = 0.0
    for loss, other in zip(losses, reference):
        apart = abs(loss - other) / max(abs(other), 1e-12)
        worst = max(worst, apart if apart == apart else float("inf"))
    return worst


def void_rows(rows):
    """Marks those of a group's rows whose losses are not those of the first row of PyTorch's that was measured (of the
    first row, where there is none). Returns the name of that reference."""
    measured = [row for row in rows if row["status"] == "measured" and row["losses"]]
    if not measured:
        return None
    reference = next((row for row in measured if row["side"] != "fsdp.cpp"), measured[0])
    for row in measured:
        limit = TOLERANCE[row["dtype"]]
        apart = max(difference(losses, reference["losses"][0]) for losses in row["losses"])
        row["loss_difference"] = apart
        if not apart <= limit:
            row["status"] = "void"
            row["reason"] = (
                f"losses differ from those of {reference['variant']} by {apart:.2g} of their size, more than {limit:g}"
            )
    return reference["variant"]
