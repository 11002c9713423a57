#!/usr/bin/env python3
"""Times of training steps in which attention sees whole samples, windows, or documents.

Trains a small decoder whose time passes mostly in attention, on one rank and one thread. The variants take turns, each
run in a process of its own. Prints a Markdown table: milliseconds of a step (the median over the runs of their medians,
in brackets the smallest and the largest), beside the number of pairs of queries and keys in a step.
"""

import argparse
import array
import json
import os
import statistics
import subprocess
import tempfile
from pathlib import Path

from run import ROOT, spread, table

EOS = 1
VOCABULARY = 500
MODEL = {
    "model_type": "mistral",
    "vocab_size": VOCABULARY,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 1 << 20,
    "sliding_window": None,
    "eos_token_id": EOS,
    "tie_word_embeddings": False,
}


def variants(options):
    """By name: changes of the model, changes of the config, and pairs of queries and keys of a sample."""
    length, window, document = options.length, options.window, options.document
    within = window * (window + 1) // 2 + (length - window) * window
    return {
        "whole samples": ({}, {}, length * (length + 1) // 2),
        f"windows of {window} tokens": ({"sliding_window": window}, {}, within),
        f"documents of {document} tokens": (
            {},
            {"attn_mask_type": "block_causal"},
            length // document * (document * (document + 1) // 2),
        ),
    }


def write_tokens(file, options):
    """Random tokens, of which each document's last is the end of a text."""
    state, tokens = 7, array.array("H")
    for position in range(options.length * (options.steps + 1)):
        state = (1103515245 * state + 12345) % (1 << 31)
        is_end = (position + 1) % options.document == 0
        tokens.append(EOS if is_end else 2 + state // 65536 % (VOCABULARY - 2))
    file.write_bytes(tokens.tobytes())


def milliseconds(options, folder, model, changes):
    """The median step of a run."""
    config = {
        "model": {**MODEL, **model},
        "dataset": str(folder / "tokens.bin"),
        "max_seq_length": options.length,
        "train_batch_size": 1,
        "max_steps": options.steps,
        "dtype": "fp32",
        "device": "cpu",
        "output_dir": str(folder / "output"),
        "overwrite_output_dir": True,
        **changes,
    }
    (folder / "config.json").write_text(json.dumps(config))
    subprocess.run(
        [options.build_dir / "fsdp", "train", folder / "config.json"],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        check=True,
    )
    rows = [json.loads(line) for line in (folder / "output/metrics.jsonl").read_text().splitlines()]
    return statistics.median(1e3 / row["samples_per_second"] for row in rows[1:])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build-dir", type=Path, default=ROOT / "build")
    parser.add_argument("--length", type=int, default=4096, help="tokens of a sample")
    parser.add_argument("--window", type=int, default=256)
    parser.add_argument("--document", type=int, default=256, help="tokens of a document, a divisor of the sample's")
    parser.add_argument("--steps", type=int, default=6, help="of a run; the first is not counted")
    parser.add_argument("--turns", type=int, default=3)
    options = parser.parse_args()
    if options.steps < 2 or options.length % options.document:
        parser.error("--steps must be at least 2, and --document divide --length")
    times = {name: [] for name in variants(options)}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_tokens(folder / "tokens.bin", options)
        for _ in range(options.turns):
            for variant, (model, changes, _) in variants(options).items():
                times[variant].append(milliseconds(options, folder, model, changes))
    whole = statistics.median(times["whole samples"])
    pairs = {name: one[2] for name, one in variants(options).items()}
    rows = [
        (
            name,
            spread(values, "{:.0f}"),
            f"{statistics.median(values) / whole:.2f}",
            f"{pairs[name] / pairs['whole samples']:.3f}",
        )
        for name, values in times.items()
    ]
    print(table(("attention", "step, ms", "of whole samples", "pairs, of whole samples"), rows))


if __name__ == "__main__":
    main()
