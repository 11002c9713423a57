"""The numbers that the C++ tests of ShardedGradScaler compare with are those of torch.amp.GradScaler.

`python tests/python/test_grad_scaler_reference.py` writes the file anew; the test checks that it is up to date.
"""

import json
from pathlib import Path

import torch

REFERENCE = Path(__file__).resolve().parents[2] / "src/optim/testing/grad_scaler_reference.json"

# What makes a gradient not finite, in turn.
BAD = (float("inf"), float("nan"), float("-inf"))
GRADIENT = (1.5, -3e-3, 0.0, 0.4375)

# name: options, dtype, and the steps: "." a good one, "x" one that overflows, a number a new scale.
SCENARIOS = {
    "defaults": ({}, "float32", "..x.x"),
    "growth": ({"init_scale": 4.0, "growth_interval": 3}, "float32", ".......x....x.x...."),
    "odd factors": (
        {"init_scale": 1000.0, "growth_factor": 1.7, "backoff_factor": 0.3, "growth_interval": 2},
        "float32",
        "....x..x......xx....",
    ),
    "each step": ({"init_scale": 1.0, "growth_interval": 1}, "float64", "...x..x."),
    "fp64": ({"init_scale": 3.0, "growth_factor": 1.1, "growth_interval": 1}, "float64", "....x."),
    "fp16": ({"init_scale": 4096.0, "growth_factor": 1.3, "growth_interval": 2}, "float16", ".x...x."),
    "bf16": ({"init_scale": 4096.0, "growth_factor": 1.3, "growth_interval": 2}, "bfloat16", ".x...x."),
    "stays within fp32": ({"init_scale": 1e38, "growth_interval": 2}, "float64", "........x..."),
    "new scales": ({"init_scale": 8.0, "growth_interval": 3}, "float32", ["..", 100.1, "..x", 0.5, "...."]),
}


class Scaler(torch.amp.GradScaler):
    """Takes gradients in fp16 too, as torch's ShardedGradScaler does."""

    def _unscale_grads_(self, optimizer, inv_scale, found_inf, allow_fp16):
        return super()._unscale_grads_(optimizer, inv_scale, found_inf, True)


class CountingSGD(torch.optim.SGD):
    calls = 0

    def step(self):
        self.calls += 1


def record(options, dtype, steps):
    scaler = Scaler("cpu", **options)
    parameter = torch.nn.Parameter(torch.zeros(len(GRADIENT), dtype=getattr(torch, dtype)))
    optimizer = CountingSGD([parameter], lr=1.0)
    gradient = torch.tensor(GRADIENT, dtype=parameter.dtype)
    rows = []
    for step in [step for part in steps for step in (part if isinstance(part, str) else [part])]:
        row = {"new_scale": step} if isinstance(step, float) else {"overflow": step == "x"}
        calls = optimizer.calls
        parameter.grad = scaler.scale(gradient).to(parameter.dtype)
        if "overflow" in row:
            if row["overflow"]:
                parameter.grad[len(rows) % len(GRADIENT)] = BAD[len(rows) % len(BAD)]
            scaler.unscale_(optimizer)
            row["gradient"] = parameter.grad.double().tolist() if not row["overflow"] else []
            scaler.step(optimizer)
            scaler.update()
        else:
            scaler.update(step)
        row.update(stepped=optimizer.calls > calls, scale=scaler.get_scale(), tracker=scaler._get_growth_tracker())
        rows.append(row)
    return {"options": options, "dtype": dtype, "rows": rows}


def reference():
    return {"gradient": list(GRADIENT), "scenarios": {name: record(*args) for name, args in SCENARIOS.items()}}


def test_reference_is_torchs_grad_scaler():
    assert json.loads(REFERENCE.read_text()) == reference()


if __name__ == "__main__":
    text = json.dumps(reference())
    REFERENCE.write_text(text.replace('"rows": [', '"rows": [\n').replace("}, {", "},\n{") + "\n")
