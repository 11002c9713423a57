// Converts a folder of one kind to another kind.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "convert/folder_kind.h"
#include "convert/source.h"

namespace fsdp::convert {

struct ConvertOptions {
  SourceOptions source{};
  int64_t max_file_bytes = 5'000'000'000;  // a new file begins before a file exceeds this, if the tensors allow it
  bool replace = false;                    // replaces an existing folder of the target's kind; if false, it is an error
  // For a Hugging Face target: the path of its config.json, in whose folder tokenizer files are looked for; empty: the
  // source's config.json and tokenizer files.
  std::filesystem::path config{};
  // For a target of torch.distributed.checkpoint: the prefix of the model's names (unset: "model"), and whether
  // parameter groups are laid out by parameter, as flatten_optimizer_state_dict does, or by group.
  std::optional<std::string> target_model_prefix{};
  bool flatten_optimizer = false;
};

struct Converted {
  size_t tensors = 0;
  int64_t bytes = 0;
  Notes notes;  // what was left out, detected or assumed
};

// Converts `source` into a folder `target` of this kind. The complete target appears under its name on return; after an
// error, an existing target is unchanged. Contents that the target cannot store are left out and named in the notes.
// Memory: some tens of MiB, plus whole tensors if they are not row-major in the source. Errors: those of the readers
// and writers; source and target are the same folder; the target exists (see ConvertOptions::replace) or is of another
// kind; a Hugging Face target has no config.json.
Converted convert(const std::filesystem::path& source, const std::filesystem::path& target, FolderKind kind,
                  const ConvertOptions& options = {});

}  // namespace fsdp::convert
