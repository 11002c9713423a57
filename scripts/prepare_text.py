#!/usr/bin/env python3
"""Turns the quotations of Debian's package fortunes into token files for training and for evaluation.

A token file is the ids one after the other, uint16 where the vocabulary allows it and uint32 otherwise. Quotations are
separated by the tokenizer's document separator; every twentieth one is kept for evaluation.
"""

import argparse
import hashlib
import json
import random
import re
import sys
from pathlib import Path

import numpy

FORTUNES = Path("/usr/share/games/fortunes")
TOPICS = ("computers", "humorists", "literature", "people", "platitudes", "science", "wisdom")
EVAL_EVERY = 20


def read_sources(texts):
    files = texts or [FORTUNES / topic for topic in TOPICS]
    missing = [str(file) for file in files if not file.exists()]
    if missing:
        sys.exit(
            f"error: no such text: {', '.join(missing)}: apt-get install fortunes, or name other files with --text"
        )
    return [file.read_text(encoding="utf-8", errors="replace") for file in files]


def split_quotations(text):
    """The quotations of one fortune file: a line that is a lone % ends one. Authors get a line of one form."""
    for quotation in re.split(r"^%$", text, flags=re.M):
        quotation = re.sub(r"^\s*-- ?", "    -- ", quotation.expandtabs(4).strip("\n"), flags=re.M)
        if quotation.strip():
            yield quotation + "\n"


def tokenize(model, quotations):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    separator = tokenizer.convert_tokens_to_ids("<|endoftext|>")
    if separator is None or separator < 0:
        separator = tokenizer.eos_token_id
    ids = tokenizer(quotations, add_special_tokens=False)["input_ids"]
    width = numpy.uint16 if len(tokenizer) <= 1 << 16 else numpy.uint32
    return [numpy.array([separator] + one, dtype=width) for one in ids]


def fingerprint(sources, model):
    """What the token files depend on."""
    digest = hashlib.sha256(Path(__file__).read_bytes())
    for part in [*(source.encode() for source in sources), (model / "tokenizer.json").read_bytes()]:
        digest.update(hashlib.sha256(part).digest())
    return digest.hexdigest()


def write(path, pieces):
    temporary = path.with_name(path.name + ".part")
    numpy.concatenate(pieces).tofile(temporary)
    temporary.replace(path)
    print(f"Wrote {path}: {sum(map(len, pieces))} tokens of {len(pieces)} quotations", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, default=Path("data/smollm2"), help="folder with the tokenizer")
    parser.add_argument("--output", type=Path, default=Path("data"))
    parser.add_argument("--text", type=Path, action="append", help="a text file in place of the fortunes")
    options = parser.parse_args()
    train, evaluation, stamp = (
        options.output / name for name in ("fortunes_train.bin", "fortunes_eval.bin", "fortunes.json")
    )
    sources = read_sources(options.text)
    made_of = {"fingerprint": fingerprint(sources, options.model)}
    if train.exists() and evaluation.exists() and stamp.exists() and json.loads(stamp.read_text()) == made_of:
        return
    options.output.mkdir(parents=True, exist_ok=True)
    quotations = [quotation for source in sources for quotation in split_quotations(source)]
    random.Random(0).shuffle(quotations)
    pieces = tokenize(options.model, quotations)
    write(evaluation, pieces[::EVAL_EVERY])
    write(train, [piece for index, piece in enumerate(pieces) if index % EVAL_EVERY])
    stamp.write_text(json.dumps(made_of))


if __name__ == "__main__":
    main()
