#include "saving/start_point.h"

#include <c10/util/StringUtil.h>

#include <nlohmann/json.hpp>

#include "checkpoint/checkpoint_folder.h"
#include "config/errors.h"
#include "saving/checkpoint_list.h"
#include "saving/run_record.h"
#include "state/together.h"

namespace fsdp::trainer {

namespace {

namespace fs = std::filesystem;

constexpr const char* kLatest = "latest";

[[noreturn]] void refuse(const Config& config, const std::string& what) {
  throw ConfigError("key \"resume_from_checkpoint\": " +
                    (config.resume_from_checkpoint ? "\"" + *config.resume_from_checkpoint + "\"" : "null") + ": " +
                    what);
}

int64_t step_of(const Config& config, const fs::path& path) {
  try {
    const checkpoint::CheckpointFolder folder(path);
    return read_run_record(folder.manifest().state, path.string()).step;
  } catch (const c10::Error& error) {
    refuse(config, error.what_without_backtrace());
  }
}

void check_nothing_later(const Config& config, int64_t step) {
  if (!config.save_steps) return;
  const auto saved = saved_checkpoints(config.output_dir);
  if (saved.empty() || saved.back().step <= step) return;
  const std::string found = saved.back().path.string();
  refuse(config,
         c10::str("training would begin at step ", step, ", but ", found,
                  " is there, and its checkpoints would mix with those of this run; accepted: \"latest\", which "
                  "goes on from it, or another output_dir, or remove it"));
}

StartPoint start_at_latest(const Config& config) {
  const auto saved = saved_checkpoints(config.output_dir);
  if (saved.empty()) {
    return {std::nullopt, c10::str("resume_from_checkpoint: no checkpoint is in ", config.output_dir,
                                   " yet: training starts from the beginning")};
  }
  step_of(config, saved.back().path);
  return {saved.back().path, ""};
}

}  // namespace

StartPoint choose_start(const Config& config) {
  if (config.resume_from_checkpoint == kLatest) return start_at_latest(config);
  if (!config.resume_from_checkpoint) {
    check_nothing_later(config, 0);
    return {};
  }
  const fs::path path = *config.resume_from_checkpoint;
  check_nothing_later(config, step_of(config, path));
  return {path, ""};
}

StartPoint agree_on_start(const Config& config, Communicator& communicator) {
  const std::string found = together(communicator, "choosing where training starts", [&] {
    if (communicator.rank() != 0) return std::string();
    const StartPoint start = choose_start(config);
    return nlohmann::json{{"checkpoint", start.checkpoint.value_or("").string()}, {"text", start.text}}.dump();
  })[0];
  const auto json = nlohmann::json::parse(found);
  const std::string path = json.at("checkpoint");
  return {path.empty() ? std::nullopt : std::optional<fs::path>(path), json.at("text")};
}

}  // namespace fsdp::trainer
