"""What `benchmarks/compare` is made of: fsdp.cpp beside PyTorch's DDP, FSDP1 and FSDP2, on the same model, weights,
samples, threads, ranks and backend."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
for folder in ("benchmarks", "tests/python/support"):
    if str(ROOT / folder) not in sys.path:
        sys.path.insert(0, str(ROOT / folder))
