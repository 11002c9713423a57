#!/usr/bin/env bash
# train.sh: makes model and data that CONFIG names ready, trains over RANKS ranks (2), and shows what came of it.
source "$(dirname "$0")/common.sh"
cd "$ROOT"
ranks=${RANKS:-2}
config=${CONFIG:-examples/smollm2.json}

names() { grep -q "\"data/$1" "$config"; }
[[ -f $config ]] || die "$config is missing" "CONFIG names a config file: make train CONFIG=examples/mnist.json"

if names smollm2 || names fortunes; then "$PYTHON" scripts/prepare_model.py --output data/smollm2; fi
if names fortunes; then "$PYTHON" scripts/prepare_text.py --model data/smollm2 --output data; fi
if names mnist; then "$PYTHON" scripts/prepare_images.py --output data; fi
if names adult; then "$PYTHON" scripts/prepare_tabular.py --output data; fi

# What an earlier `make train` has left in the same folder is replaced.
arguments=(--config-path "$config" --nproc-per-node "$ranks" --save-config --set overwrite_output_dir=true)
say "Training: build/fsdp train ${arguments[*]}"
"$BUILD_DIR/fsdp" train "${arguments[@]}" ||
  die "the training run failed" "What it said is above."
"$PYTHON" scripts/show_run.py "$config"
