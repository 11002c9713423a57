// The kinds of folders that contain a model or a checkpoint.
#pragma once

#include <cstdint>
#include <filesystem>

namespace fsdp::convert {

enum class FolderKind : uint8_t {
  kHuggingFace,  // formats/hugging_face/hf_folder.h
  kTraining,     // formats/own/checkpoint_folder.h
  kDcp,          // formats/dcp/dcp_folder.h
};

// Detects the kind by the files in the folder: .metadata, manifest.json, or safetensors of a model (a checkpoint may
// also have a config.json). Throws if the folder does not exist, is of no kind, or is of both kinds of checkpoints.
FolderKind kind_of(const std::filesystem::path& folder);

// "Hugging Face model", "training checkpoint" or "checkpoint of torch.distributed.checkpoint".
const char* kind_name(FolderKind kind);

}  // namespace fsdp::convert
