#include "saving/checkpoint_list.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>

#include "base/check.h"
#include "formats/common/file_system.h"
#include "formats/common/output_file.h"
#include "formats/own/checkpoint_folder.h"
#include "formats/own/manifest.h"

namespace fsdp::trainer {

namespace {

namespace fs = std::filesystem;

constexpr std::string_view kCheckpointPrefix = "checkpoint-";

// Returns the step in a folder name that checkpoint_path makes, or nothing for other names.
std::optional<int64_t> step_of(std::string_view name) {
  if (name.substr(0, kCheckpointPrefix.size()) != kCheckpointPrefix) return std::nullopt;
  const std::string_view digits = name.substr(kCheckpointPrefix.size());
  int64_t step = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), step);
  const bool all = error == std::errc() && end == digits.data() + digits.size();
  return all && step > 0 && digits.front() != '0' ? std::optional(step) : std::nullopt;
}

// Recognizes names that formats::temporary_sibling makes for checkpoints: ".checkpoint-20.tmp-4711-0".
bool is_leftover(std::string_view name) {
  const size_t end = name.find(".tmp-");
  return !name.empty() && name.front() == '.' && end != std::string_view::npos &&
         step_of(name.substr(1, end - 1)).has_value();
}

void remove_folder(const fs::path& path, const fs::path& name) {
  FSDP_CHECK_WITH(FileError, formats::remove_tree(path), name.string(), ": cannot be removed: ", std::strerror(errno));
}

void rename_folder(const fs::path& from, const fs::path& to, const char* what) {
  const auto rename = [&] { return formats::file_system().rename(from.c_str(), to.c_str()); };
  FSDP_CHECK_WITH(FileError, formats::uninterrupted(rename) == 0, from.string(), ": ", what, ": ",
                  std::strerror(errno));
  formats::sync_folder(from.parent_path());
}

template <typename Entry>
void for_each_entry(const fs::path& folder, const Entry& entry) {
  std::error_code missing;
  for (const auto& each : fs::directory_iterator(folder, missing)) entry(each.path());
}

}  // namespace

fs::path checkpoint_path(const fs::path& output_dir, int64_t step) {
  return output_dir / (std::string(kCheckpointPrefix) + std::to_string(step));
}

std::vector<SavedCheckpoint> saved_checkpoints(const fs::path& output_dir) {
  std::vector<SavedCheckpoint> saved;
  for_each_entry(output_dir, [&](const fs::path& path) {
    const auto step = step_of(path.filename().string());
    if (step && fs::exists(path / formats::kManifestName)) saved.push_back({*step, path});
  });
  std::sort(saved.begin(), saved.end(), [](const auto& a, const auto& b) { return a.step < b.step; });
  return saved;
}

std::vector<fs::path> folders_without_manifest(const fs::path& output_dir) {
  std::vector<fs::path> folders;
  for_each_entry(output_dir, [&](const fs::path& path) {
    const bool is_named_so = step_of(path.filename().string()).has_value();
    if (is_named_so && !fs::exists(path / formats::kManifestName)) folders.push_back(path);
  });
  std::sort(folders.begin(), folders.end());
  return folders;
}

std::string fault_of(const fs::path& checkpoint) {
  try {
    formats::CheckpointFolder folder(checkpoint);
    return "";
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
}

std::optional<fs::path> newest_sound_beside(const fs::path& checkpoint) {
  const fs::path path = checkpoint.has_filename() ? checkpoint : checkpoint.parent_path();
  const std::vector<SavedCheckpoint> saved =
      saved_checkpoints(path.has_parent_path() ? path.parent_path() : fs::path("."));
  for (auto it = saved.rbegin(); it != saved.rend(); ++it) {
    if (it->path.filename() != path.filename() && fault_of(it->path).empty()) return it->path;
  }
  return std::nullopt;
}

fs::path set_aside(const fs::path& checkpoint) {
  const std::string name = "damaged-" + checkpoint.filename().string();
  fs::path aside = checkpoint.parent_path() / name;
  for (int number = 2; fs::exists(aside); ++number) {
    aside = checkpoint.parent_path() / (name + "-" + std::to_string(number));
  }
  rename_folder(checkpoint, aside, "cannot be set aside");
  return aside;
}

void remove_checkpoint(const fs::path& path) {
  const fs::path nameless = formats::temporary_sibling(path);
  rename_folder(path, nameless, "cannot be removed");
  remove_folder(nameless, path);
}

void keep_newest(const fs::path& output_dir, int64_t limit) {
  const std::vector<SavedCheckpoint> saved = saved_checkpoints(output_dir);
  for (size_t i = 0; i + static_cast<size_t>(limit) < saved.size(); ++i) remove_checkpoint(saved[i].path);
}

void remove_leftovers(const fs::path& output_dir) {
  std::vector<fs::path> leftovers;
  for_each_entry(output_dir, [&](const fs::path& path) {
    if (is_leftover(path.filename().string())) leftovers.push_back(path);
  });
  for (const fs::path& path : leftovers) remove_folder(path, path);
}

}  // namespace fsdp::trainer
