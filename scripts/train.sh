#!/usr/bin/env bash
# train.sh: makes model and text ready, fine-tunes over RANKS ranks (2) with CONFIG, and shows what came of it.
source "$(dirname "$0")/common.sh"
cd "$ROOT"
ranks=${RANKS:-2}
config=${CONFIG:-examples/smollm2.json}

"$PYTHON" scripts/prepare_model.py --output data/smollm2
"$PYTHON" scripts/prepare_text.py --model data/smollm2 --output data

say "Training: build/fsdp train --config-path $config --nproc-per-node $ranks --save-config"
"$BUILD_DIR/fsdp" train --config-path "$config" --nproc-per-node "$ranks" --save-config ||
  die "the training run failed" "What it said is above."
"$PYTHON" scripts/show_run.py "$config"
