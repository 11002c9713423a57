#include "saving/run_checkpoints.h"

#include <ATen/Context.h>

#include <algorithm>

#include "config/config_reader.h"
#include "data/data_checksum.h"
#include "fsdp/errors.h"
#include "saving/checkpoint_list.h"
#include "saving/random_state.h"
#include "state/together.h"
#include "state/training_state.h"

namespace fsdp::trainer {

namespace fs = std::filesystem;

namespace {

// Returns a seed such that a run that continues with another number of ranks repeats no earlier random numbers.
uint64_t fresh_seed(const Config& config, int rank, int64_t step) {
  return static_cast<uint64_t>(config.steps.seed) + static_cast<uint64_t>(rank) + (static_cast<uint64_t>(step) << 32);
}

}  // namespace

RunCheckpoints::RunCheckpoints(const RunParts& parts)
    : parts_(parts), optimizer_(parts.run.optimizer_state()), saver_(parts.communicator) {
  if (parts.config.checkpoints.save_steps) stop_signal_.emplace();
}

state::TrainingState RunCheckpoints::state() const {
  return {
      .parts = parts_.model, .optimizer = optimizer_.get(), .split = parts_.run.split_tensors(), .tied = parts_.tied};
}

// ---------------------------------------------------------------- loading

int64_t RunCheckpoints::load(const fs::path& checkpoint) {
  // The config's optimizer options apply, even if they were different when the checkpoint was saved.
  const state::LoadedTrainingState loaded =
      state::load_training_state(checkpoint, state(), *parts_.communicator, {.optimizer_options = false});
  const RunRecord record = read_run_record(loaded.state, checkpoint.string());
  parts_.report.say(c10::str("resumed from ", checkpoint.string(), ", saved after step ", record.step));
  parts_.run.set_progress({.updates = record.updates, .loss_scaling = record.loss_scaling});
  if (record.is_foreign) {
    begin_rest(record, options_of_groups(loaded.state));
    return record.step;
  }
  const std::string changed = changed_keys(record, parts_.config);
  if (!changed.empty()) parts_.report.say("changed since it was saved: " + changed);
  restore(record);
  restore_random_state(record, loaded.of_rank);
  return record.step;
}

void RunCheckpoints::restore(const RunRecord& record) {
  parts_.report.set_skipped_steps(record.skipped_steps);
  const std::string difference =
      data_difference(record, parts_.config, parts_.dataset.size(), data_checksum_of_rank_0());
  if (!difference.empty()) {
    parts_.report.say("the training data differs from the checkpoint's (" + difference +
                      "): training continues at its first sample");
    return;
  }
  const int64_t left_out = parts_.batches.seek(record.position);
  if (left_out == 0) return;
  parts_.report.say(c10::str(left_out, " samples of epoch ", record.position.epoch,
                             " are skipped, because the global batch differs from the checkpoint's"));
}

void RunCheckpoints::begin_rest(const RunRecord& record, const std::string& options) {
  const auto say = [&](const std::string& text) { parts_.report.say(text); };
  say("not saved by fsdp train: it has weights and optimizer state; the rest starts anew or comes from the config:");
  say("  data: not in the checkpoint, starts at the first sample");
  say("  random numbers: not in the checkpoint, seeded anew");
  say(c10::str("  learning rate: that of the config's schedule after ", record.updates, " steps"));
  if (!options.empty()) say("  optimizer options: the config's; those of its parameter groups were " + options);
  if (uses_fp16(parts_.config.precision)) say("  loss scale: not in the checkpoint, starts at fp16_init_scale");
  seed_anew(record);
}

void RunCheckpoints::seed_anew(const RunRecord& record) {
  at::manual_seed(fresh_seed(parts_.config, parts_.communicator->rank(), record.step));
}

void RunCheckpoints::restore_random_state(const RunRecord& record, const std::map<std::string, at::Tensor>& state) {
  if (!state.empty()) {
    set_random_state(state, parts_.device);
    return;
  }
  seed_anew(record);
  parts_.report.say(
      c10::str("the checkpoint was saved by ", record.world_size, " rank(s): random numbers are seeded anew"));
}

// ---------------------------------------------------------------- saving

bool RunCheckpoints::after_step(int64_t step) {
  const Config& config = parts_.config;
  if (!config.checkpoints.save_steps) return false;
  attempt([&] {
    if (const auto saved = saver_.advance()) note_saved(*saved);
  });
  const std::string signal = signal_of_any_rank();
  const bool stop = !signal.empty();
  if (stop || step == config.steps.max_steps || step % *config.checkpoints.save_steps == 0) save(step);
  if (!stop) return false;
  finish();
  if (!last_failure_.empty()) throw ErrorOfAllRanks({__func__, __FILE__, __LINE__}, last_failure_);
  parts_.report.say(c10::str(signal, ": stopping after step ", step, "; resume_from_checkpoint \"latest\" continues"));
  return true;
}

void RunCheckpoints::finish() {
  attempt([&] {
    if (const auto saved = saver_.finish()) note_saved(*saved);
  });
}

std::string RunCheckpoints::signal_of_any_rank() {
  const auto ranks = parts_.communicator->all_gather_bytes(stop_signal_->received(), {"signals", 0, Pass::kUser});
  const auto told = std::find_if(ranks.begin(), ranks.end(), [](const std::string& name) { return !name.empty(); });
  return told == ranks.end() ? "" : *told;
}

void RunCheckpoints::save(int64_t step) {
  const fs::path path = checkpoint_path(parts_.config.output.output_dir, step);
  state::TrainingState saved = state();
  saved.of_rank = random_state(parts_.device);
  finish();  // if the previous save failed, this one may still succeed
  attempt([&] {
    if (parts_.config.checkpoints.async_save) {
      saver_.save(path, saved, to_json(record(step)));
    } else {
      state::save_training_state(path, saved, to_json(record(step)), *parts_.communicator);
      note_saved(path);
    }
  });
}

void RunCheckpoints::note_saved(const fs::path& path) {
  last_failure_.clear();
  parts_.report.say("saved the checkpoint " + path.string());
  if (parts_.communicator->rank() != 0 || !parts_.config.checkpoints.save_total_limit) return;
  try {
    keep_newest(parts_.config.output.output_dir, *parts_.config.checkpoints.save_total_limit);
  } catch (const c10::Error& error) {
    parts_.report.say(std::string("an old checkpoint stays: ") + error.what_without_backtrace());
  }
}

void RunCheckpoints::attempt(const std::function<void()>& part_of_save) {
  try {
    part_of_save();
  } catch (const StepFailed& error) {
    last_failure_ = error.what_without_backtrace();
    parts_.report.say(last_failure_ + "; existing checkpoints are kept");
  }
}

// Uses the checksum of rank 0, so that all ranks decide alike.
const std::string& RunCheckpoints::data_checksum_of_rank_0() {
  if (data_checksum_.empty()) {
    data_checksum_ = state::together(*parts_.communicator, "looking at the training data", [&] {
      return parts_.communicator->rank() == 0 ? data_checksum(parts_.dataset) : std::string();
    })[0];
  }
  return data_checksum_;
}

RunRecord RunCheckpoints::record(int64_t step) {
  const TrainingRun::Progress progress = parts_.run.progress();
  return {.step = step,
          .updates = progress.updates,
          .skipped_steps = parts_.report.skipped_steps(),
          .loss_scaling = progress.loss_scaling,
          .position = parts_.batches.position(),
          .dataset_samples = parts_.dataset.size(),
          .data_checksum = data_checksum_of_rank_0(),
          .world_size = parts_.communicator->size(),
          .config = to_json(parts_.config)};
}

}  // namespace fsdp::trainer
