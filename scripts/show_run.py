#!/usr/bin/env python3
"""Shows the results of a training run: its loss curve, the saved folder, and texts by the model before and after it."""

import argparse
import json
import os
import sys
from pathlib import Path

PROMPTS = ("The secret of a happy life", "Love is", "A computer")


def read_steps(path):
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    steps = [(row["step"], row["loss"]) for row in rows if "loss" in row]
    return steps or sys.exit(f"error: {path} holds no training step")


def averaged(values, count):
    """At most `count` means of neighbouring values."""
    edges = [round(index * len(values) / min(count, len(values))) for index in range(min(count, len(values)) + 1)]
    return [sum(values[begin:end]) / (end - begin) for begin, end in zip(edges, edges[1:])]


def plot(values, width=64, height=12):
    """A curve in text; a column is the mean of neighbouring values where there are more values than columns."""
    columns = averaged(values, width)
    top, bottom = max(columns), min(columns)
    scale = (height - 1) / (top - bottom) if top > bottom else 0
    rows = [[" "] * len(columns) for _ in range(height)]
    for column, value in enumerate(columns):
        rows[round((top - value) * scale)][column] = "*"
    return "\n".join(f"{top - row / scale if scale else top:8.3f} |{''.join(line)}" for row, line in enumerate(rows))


def list_folder(folder):
    for file in sorted(folder.iterdir()):
        print(f"  {file.stat().st_size:>11,} {file.name}")


def continuation(folder, prompts):
    """What the model in `folder` writes after each prompt: its likeliest tokens, up to the end of the quotation."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    separator = tokenizer.convert_tokens_to_ids("<|endoftext|>")
    for prompt in prompts:
        ids = tokenizer(f"<|endoftext|>{prompt}", add_special_tokens=False, return_tensors="pt").input_ids
        written = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=32,
            do_sample=False,
            repetition_penalty=1.15,
            eos_token_id=separator,
            pad_token_id=separator,
        )
        yield tokenizer.decode(written[0, 1:], skip_special_tokens=True).strip()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("config", type=Path, help="the config file of the run")
    parser.add_argument("--no-sample", action="store_true", help="do not generate texts")
    options = parser.parse_args()
    config = json.loads(options.config.read_text())
    output = Path(config.get("output_dir", "output"))
    steps = read_steps(output / "metrics.jsonl")

    print(f"\nLoss over {steps[-1][0]} steps, from {steps[0][1]:.3f} to {steps[-1][1]:.3f} ({output}/metrics.jsonl)")
    print(plot([loss for _, loss in steps]))
    final = output / "final"
    if not final.exists():
        return
    print(f"\nThe trained model, a Hugging Face folder: {final}")
    list_folder(final)
    if options.no_sample or "model_path" not in config:
        return
    os.environ["TQDM_DISABLE"] = "1"
    texts = zip(continuation(config["model_path"], PROMPTS), continuation(final, PROMPTS))
    for before, after in texts:
        print(f"\nbefore: {before}\nafter:  {after}")


if __name__ == "__main__":
    main()
