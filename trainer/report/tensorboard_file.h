// Event files for TensorBoard: records of the TFRecord format, each one a serialized Event protocol buffer.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "report/appended_file.h"

namespace fsdp::trainer {

// One event file in `folder`, which is created. TensorBoard treats the files of one folder as one run and reads them in
// the order of their names; the name of this file sorts after all existing ones.
class TensorBoardFile {
 public:
  // Starts the file so that TensorBoard discards events of earlier files for steps after `step`, from which training
  // continues.
  TensorBoardFile(const std::string& folder, int64_t step, AppendedFile::Say say = say_on_stderr);

  // Appends the numbers of a line of metrics.jsonl as scalars "train/loss", "train/grad_norm", …, "eval/loss", through
  // AppendedFile.
  void write(const nlohmann::json& line);
  const std::string& path() const { return file_->path(); }
  // Calls AppendedFile::finish.
  std::string finish() { return file_->finish(); }

 private:
  std::unique_ptr<AppendedFile> file_;
};

}  // namespace fsdp::trainer
