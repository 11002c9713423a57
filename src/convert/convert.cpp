#include "convert/convert.h"

#include <c10/util/Exception.h>

#include "base/check.h"
#include "convert/targets.h"
#include "formats/own/manifest.h"

namespace fsdp::convert {

namespace fs = std::filesystem;

namespace {

// Throws if the target already is a folder of this kind, which --force would replace. The writers refuse other
// contents.
void check_not_there(const fs::path& target, FolderKind kind) {
  std::error_code ignored;
  const auto holds = [&](const char* name) { return fs::exists(target / name, ignored); };
  const bool is_there = kind == FolderKind::kHuggingFace ? holds("config.json")
                        : kind == FolderKind::kTraining  ? holds(formats::kManifestName)
                                                         : holds(".metadata");
  FSDP_CHECK_WITH(FileError, !is_there, target.string(), ": already holds a ", kind_name(kind),
                  "; choose another folder, or replace it with --force");
}

}  // namespace

Converted convert(const fs::path& source, const fs::path& target, FolderKind kind, const ConvertOptions& options) {
  std::error_code ignored;
  TORCH_CHECK(!fs::equivalent(source, target, ignored), target.string(),
              ": is the source itself: choose another folder");
  if (!options.replace) check_not_there(target, kind);
  Converted result;
  const auto opened = open_source(source, options.source, result.notes);
  if (kind != FolderKind::kHuggingFace) check_optimizer(opened->contents(), source.string());
  const Job job{*opened, source, target, options, result};
  switch (kind) {
    case FolderKind::kHuggingFace:
      write_hugging_face(job);
      break;
    case FolderKind::kTraining:
      write_training(job);
      break;
    case FolderKind::kDcp:
      write_dcp(job);
      break;
  }
  return result;
}

}  // namespace fsdp::convert
