#include "convert/convert.h"

#include <c10/util/Exception.h>

#include "convert/targets.h"

namespace fsdp::convert {

namespace fs = std::filesystem;

Converted convert(const fs::path& source, const fs::path& target, FolderKind kind, const ConvertOptions& options) {
  std::error_code ignored;
  TORCH_CHECK(!fs::equivalent(source, target, ignored), target.string(),
              ": is the source itself: choose another folder");
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
