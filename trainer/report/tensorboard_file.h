// Event files that TensorBoard reads: records of the TFRecord format, each one Event message of its protocol buffers.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "report/appended_file.h"

namespace fsdp::trainer {

// One event file in `folder`, which is created. Files of one folder are one run for TensorBoard, read in the order of
// their names: this one's comes behind those that are there.
class TensorBoardFile {
 public:
  // What the folder's earlier files say of steps after `step` no longer counts, as training goes on from there.
  TensorBoardFile(const std::string& folder, int64_t step, AppendedFile::Say say = say_on_stderr);

  // The numbers of a line of metrics.jsonl, as scalars "train/loss", "train/grad_norm", …, "eval/loss", appended as
  // AppendedFile does.
  void write(const nlohmann::json& line);
  const std::string& path() const { return file_->path(); }
  // AppendedFile::finish.
  std::string finish() { return file_->finish(); }

 private:
  std::unique_ptr<AppendedFile> file_;
};

}  // namespace fsdp::trainer
