// Writes what a source holds as a folder of each kind.
#pragma once

#include <filesystem>

#include "convert/convert.h"
#include "convert/source.h"

namespace fsdp::convert {

// What all of them need; `companions` is the folder that config.json and tokenizer files come from.
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
