// A folder of one kind written as one of another kind.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "convert/folder_kind.h"
#include "convert/source.h"

namespace fsdp::convert {

struct ConvertOptions {
  SourceOptions source{};
  int64_t max_file_bytes = 5'000'000'000;  // a file is ended before it gets larger, where tensors allow it
  bool replace = false;                    // a folder of the target's kind that is there; otherwise it is an error
  // For a Hugging Face target: its config.json, beside which tokenizer files are looked for; empty: the source's.
  std::filesystem::path config{};
  // For a target of torch.distributed.checkpoint: before the model's names (unset: "model"), and whether parameter
  // groups are laid out by parameter, as flatten_optimizer_state_dict does it, or by group.
  std::optional<std::string> target_model_prefix{};
  bool flatten_optimizer = false;
};

struct Converted {
  size_t tensors = 0;
  int64_t bytes = 0;
  Notes notes;  // what was left out, found out or assumed
};

// The target appears under its name, whole, on return; after an error what was there is as it was. What the target
// cannot hold is left out, and named in the notes. Memory: some tens of MiB, and whole tensors where they do not lie
// row-major in the source. Errors: those of the readers and writers; two folders that are the same; a target that is
// there (ConvertOptions::replace) or is of another kind; a Hugging Face target without a config.json.
Converted convert(const std::filesystem::path& source, const std::filesystem::path& target, FolderKind kind,
                  const ConvertOptions& options = {});

}  // namespace fsdp::convert
