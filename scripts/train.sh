#!/usr/bin/env bash
# train.sh: installs what is missing, builds the program, makes model and data that CONFIG names ready, trains over RANKS
# ranks (2), and shows what came of it.
source "$(dirname "$0")/common.sh"
cd "$ROOT"
ranks=${RANKS:-2}
config=${CONFIG:-examples/smollm2.json}
[[ -f $config ]] || die "$config is missing" "CONFIG names a config file: make train CONFIG=examples/mnist.json"

names() { grep -q "\"data/$1" "$config"; }

python_packages() {
  scripts/setup.sh python train
  if names adult; then scripts/setup.sh tables; fi
}

build() { BUILD_TESTS=OFF BUILD_TARGETS=fsdp_program scripts/build.sh; }

prepare() {
  if names smollm2 || names fortunes; then "$PYTHON" scripts/prepare_model.py --output data/smollm2; fi
  if names fortunes; then "$PYTHON" scripts/prepare_text.py --model data/smollm2 --output data; fi
  if names mnist; then "$PYTHON" scripts/prepare_images.py --output data; fi
  if names adult; then "$PYTHON" scripts/prepare_tabular.py --output data; fi
}

# What an earlier `make train` has left in the same folder is replaced.
train() {
  local arguments=(--config-path "$config" --nproc-per-node "$ranks" --save-config --set overwrite_output_dir=true)
  echo "      ${BUILD_DIR#"$ROOT"/}/fsdp train ${arguments[*]}"
  "$BUILD_DIR/fsdp" train "${arguments[@]}" || die "the training run failed: its output is above"
}

show() { "$PYTHON" scripts/show_run.py "$config"; }

list_folders() {
  local folder
  echo "These folders can be deleted:"
  for folder in "$BUILD_DIR" "$VENV" data output; do
    if [[ -d $folder ]]; then printf '%s\t%s\n' "$(du -sh "$folder" | cut -f1)" "${folder#"$ROOT"/}"; fi
  done | awk '{ printf "  %6s  %s\n", $1, $2 }'
}

run_steps "System packages" "scripts/setup.sh packages train" \
  "Python packages" python_packages \
  "Building the program" build \
  "Model and data" prepare \
  "Training over $ranks ranks" train \
  "Results" show
list_folders
