#include "convert/folder_kind.h"

#include "base/check.h"
#include "formats/own/manifest.h"

namespace fsdp::convert {

namespace fs = std::filesystem;

FolderKind kind_of(const fs::path& folder) {
  std::error_code ignored;
  FSDP_CHECK_WITH(FileError, fs::is_directory(folder, ignored), folder.string(), ": no such folder");
  const auto holds = [&](const char* name) { return fs::exists(fs::symlink_status(folder / name, ignored)); };
  const bool is_dcp = holds(".metadata"), is_training = holds(formats::kManifestName);
  FSDP_CHECK_WITH(FileError, !is_dcp || !is_training, folder.string(), ": holds a .metadata and a ",
                  formats::kManifestName, ": two checkpoints are mixed");
  if (is_dcp || is_training) return is_dcp ? FolderKind::kDcp : FolderKind::kTraining;
  FSDP_CHECK_WITH(FileError, holds("model.safetensors") || holds("model.safetensors.index.json"), folder.string(),
                  ": holds no model.safetensors or model.safetensors.index.json (a Hugging Face model), no ",
                  formats::kManifestName, " (a training checkpoint) and no .metadata (torch.distributed.checkpoint)");
  return FolderKind::kHuggingFace;
}

const char* kind_name(FolderKind kind) {
  switch (kind) {
    case FolderKind::kHuggingFace:
      return "Hugging Face model";
    case FolderKind::kTraining:
      return "training checkpoint";
    case FolderKind::kDcp:
      return "checkpoint of torch.distributed.checkpoint";
  }
  return "";
}

}  // namespace fsdp::convert
