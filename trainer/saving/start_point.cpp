#include "saving/start_point.h"

#include <c10/util/StringUtil.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <system_error>

#include "config/errors.h"
#include "formats/own/checkpoint_folder.h"
#include "fsdp/errors.h"
#include "saving/checkpoint_list.h"
#include "saving/run_record.h"
#include "setup/training_inputs.h"
#include "state/together.h"

namespace fsdp::trainer {

namespace {

namespace fs = std::filesystem;

constexpr const char* kLatest = "latest";

[[noreturn]] void refuse(const Config& config, const std::string& what) {
  throw ConfigError(
      "key \"resume_from_checkpoint\": " +
      (config.checkpoints.resume_from_checkpoint ? "\"" + *config.checkpoints.resume_from_checkpoint + "\"" : "null") +
      ": " + what);
}

// Returns advice that is appended to an error about a checkpoint.
std::string advice_on(const fs::path& checkpoint) {
  const auto sound = newest_sound_beside(checkpoint);
  return sound ? "; " + sound->string() + " next to it is intact" : "";
}

int64_t step_of(const Config& config, const fs::path& path) {
  try {
    const formats::CheckpointFolder folder(path);
    return read_run_record(folder.manifest().state, path.string()).step;
  } catch (const c10::Error& error) {
    refuse(config, error.what_without_backtrace() + advice_on(path));
  }
}

void check_nothing_later(const Config& config, int64_t step) {
  if (!config.checkpoints.save_steps) return;
  const auto saved = saved_checkpoints(config.output.output_dir);
  if (saved.empty() || saved.back().step <= step) return;
  const std::string found = saved.back().path.string();
  refuse(config,
         c10::str("training would resume after step ", step, ", but ", found,
                  " is there, and the checkpoints of both runs would mix in output_dir; accepted: \"latest\", which "
                  "resumes from it, or another output_dir; or remove it"));
}

// Whether `checkpoint` lies directly in `folder`, with links resolved, however the paths are written.
bool is_in(const fs::path& folder, const fs::path& checkpoint) {
  std::error_code ignored;
  return fs::equivalent(folder, fs::canonical(checkpoint).parent_path(), ignored);
}

// Handles a run that does not continue the run in output_dir: results of an earlier run there are replaced or removed
// only if the config says so.
void clear_output_dir(const Config& config, StartPoint& start) {
  std::vector<std::string> found;
  for (const SavedCheckpoint& saved : saved_checkpoints(config.output.output_dir)) {
    start.overwritten.push_back(saved.path);
    found.push_back(saved.path.filename().string());
  }
  const bool replaces_final = config.output.save_final && fs::exists(final_folder(config.output));
  if (replaces_final) found.push_back(final_folder(config.output).filename().string());
  if (found.empty() || config.output.overwrite_output_dir) return;
  refuse(config,
         c10::str("output_dir ", config.output.output_dir, " has ", c10::Join(", ", found),
                  " of an earlier run; accepted: \"latest\", which goes on from the newest checkpoint, or "
                  "another output_dir, or \"overwrite_output_dir\": true, which removes checkpoints and replaces "
                  "the rest"));
}

void note_folders_without_manifest(const Config& config, StartPoint& start) {
  for (const fs::path& folder : folders_without_manifest(config.output.output_dir)) {
    start.texts.push_back("resume_from_checkpoint: " + folder.string() +
                          " is ignored: it has no manifest.json, so it is not a checkpoint");
  }
}

// Starts at the newest sound checkpoint.
StartPoint start_at_latest(const Config& config) {
  StartPoint start;
  note_folders_without_manifest(config, start);
  std::string faults;
  const auto saved = saved_checkpoints(config.output.output_dir);
  for (auto it = saved.rbegin(); it != saved.rend() && !start.checkpoint; ++it) {
    const std::string fault = fault_of(it->path);
    if (fault.empty()) {
      start.checkpoint = it->path;
      continue;
    }
    start.damaged.push_back(it->path);
    start.texts.push_back("DAMAGED: " + fault);
    faults += (faults.empty() ? "" : "; ") + fault;
  }
  if (!start.checkpoint && !saved.empty()) {
    refuse(config, "no checkpoint is intact: " + faults + "; remove the damaged ones to start from the beginning");
  }
  if (!start.checkpoint) {
    start.texts.push_back(c10::str("resume_from_checkpoint: there is no checkpoint in ", config.output.output_dir,
                                   " yet: training starts from the beginning"));
    clear_output_dir(config, start);
    return start;
  }
  step_of(config, *start.checkpoint);
  if (!start.damaged.empty()) start.texts.push_back("resuming from " + start.checkpoint->string() + " instead");
  return start;
}

// Called on rank 0, before this run writes anything.
void make_room(StartPoint& start) {
  for (const fs::path& damaged : start.damaged) {
    start.texts.push_back(damaged.string() + " is set aside as " + set_aside(damaged).string());
  }
  for (const fs::path& overwritten : start.overwritten) {
    remove_checkpoint(overwritten);
    start.texts.push_back("overwrite_output_dir: removed " + overwritten.string());
  }
}

StartPoint start_of_rank_0(Communicator& communicator, const std::function<StartPoint()>& choose) {
  const std::string found = state::together(communicator, "choosing where training starts", [&] {
    if (communicator.rank() != 0) return std::string();
    StartPoint start = choose();
    make_room(start);
    return nlohmann::json{{"checkpoint", start.checkpoint.value_or("").string()}, {"texts", start.texts}}.dump();
  })[0];
  const auto json = nlohmann::json::parse(found);
  const std::string path = json.at("checkpoint");
  return {.checkpoint = path.empty() ? std::nullopt : std::optional<fs::path>(path), .texts = json.at("texts")};
}

}  // namespace

StartPoint choose_start(const Config& config) {
  if (config.checkpoints.resume_from_checkpoint == kLatest) return start_at_latest(config);
  StartPoint start;
  if (!config.checkpoints.resume_from_checkpoint) {
    clear_output_dir(config, start);
    return start;
  }
  start.checkpoint = *config.checkpoints.resume_from_checkpoint;
  const int64_t step = step_of(config, *start.checkpoint);
  if (!is_in(config.output.output_dir, *start.checkpoint)) {
    clear_output_dir(config, start);
  } else if (config.output.overwrite_output_dir) {
    refuse(config, "lies in output_dir, which \"overwrite_output_dir\" would clear; set only one of the two keys");
  } else {
    check_nothing_later(config, step);
  }
  return start;
}

StartPoint agree_on_start(const Config& config, Communicator& communicator) {
  return start_of_rank_0(communicator, [&] { return choose_start(config); });
}

StartPoint agree_on_start_instead(const Config& config, Communicator& communicator, const fs::path& checkpoint,
                                  const StepFailed& error) {
  const std::string message = error.what_without_backtrace();
  const c10::SourceLocation here{__func__, __FILE__, __LINE__};
  const auto give_up = [&] { throw ErrorOfAllRanks(here, message + advice_on(checkpoint)); };
  if (config.checkpoints.resume_from_checkpoint != kLatest) give_up();
  const auto outcomes = state::together(communicator, "looking for damage", [&] {
    if (communicator.rank() != 0) return std::string();
    try {
      formats::CheckpointFolder(checkpoint).verify();
    } catch (const c10::Error& fault) {
      return std::string(fault.what_without_backtrace());
    }
    return std::string();
  });
  if (outcomes[0].empty()) give_up();
  return start_of_rank_0(communicator, [&] {
    const fs::path aside = set_aside(checkpoint);
    StartPoint start = start_at_latest(config);
    if (!start.checkpoint) refuse(config, "no checkpoint is intact: " + outcomes[0] + ", now " + aside.string());
    start.texts.insert(start.texts.begin(),
                       {"DAMAGED: " + outcomes[0], checkpoint.string() + " is set aside as " + aside.string()});
    start.texts.push_back("resuming from " + start.checkpoint->string() + " instead");
    return start;
  });
}

}  // namespace fsdp::trainer
