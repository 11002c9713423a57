#!/usr/bin/env python3
"""The PyTorch side of the training benchmark: the config of an `fsdp train` run, trained by one of PyTorch's methods.

Prints one JSON object: losses, seconds of each step, peak memory of the rank that needed most.
"""

import argparse
import dataclasses
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests/python/support"))
import torch_fsdp_reference as reference


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config-path", type=Path, required=True)
    parser.add_argument("--method", choices=reference.METHODS, required=True)
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--prefetch", action="store_true", help="PyTorch's default prefetching for FSDP1; else none")
    options = parser.parse_args()
    run = reference.train(
        json.loads(options.config_path.read_text()),
        options.ranks,
        options.method,
        prefetch=options.prefetch,
        keep_weights=False,
    )
    print(json.dumps(dataclasses.asdict(run)))


if __name__ == "__main__":
    main()
