// The kinds of folders that hold a model or a checkpoint.
#pragma once

#include <cstdint>
#include <filesystem>

namespace fsdp::convert {

enum class FolderKind : uint8_t {
  kHuggingFace,  // checkpoint/hf_folder.h
  kTraining,     // checkpoint/checkpoint_folder.h
  kDcp,          // checkpoint/dcp_folder.h
};

// By the files in it: .metadata, manifest.json, or safetensors of a model (a checkpoint may have a config.json, too).
// An error for a folder that is not there, is none of these, or both kinds of checkpoints.
FolderKind kind_of(const std::filesystem::path& folder);

// "Hugging Face model", "training checkpoint" or "checkpoint of torch.distributed.checkpoint".
const char* kind_name(FolderKind kind);

}  // namespace fsdp::convert
