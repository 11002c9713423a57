// Writes the contents of a source as a folder of each kind.
#pragma once

#include <filesystem>

#include "convert/convert.h"
#include "convert/source.h"

namespace fsdp::convert {

// The arguments of all writers; `companions` is the source folder of config.json and tokenizer files.
struct Job {
  Source& source;
  std::filesystem::path companions;
  std::filesystem::path target;
  const ConvertOptions& options;
  Converted& result;
};

void write_hugging_face(const Job& job);
void write_training(const Job& job);
void write_dcp(const Job& job);

}  // namespace fsdp::convert
