// Event files that TensorBoard reads: records of the TFRecord format, each one Event message of its protocol buffers.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

namespace fsdp::trainer {

// One event file in `folder`, which is created. Files of one folder are one run for TensorBoard, read in the order of
// their names: this one's comes behind those that are there.
class TensorBoardFile {
 public:
  // What the folder's earlier files say of steps after `step` no longer counts, as training goes on from there.
  TensorBoardFile(const std::string& folder, int64_t step);
  ~TensorBoardFile();
  TensorBoardFile(const TensorBoardFile&) = delete;
  TensorBoardFile& operator=(const TensorBoardFile&) = delete;

  // The numbers of a line of metrics.jsonl, as scalars "train/loss", "train/grad_norm", …, "eval/loss". Handed to the
  // operating system at once.
  void write(const nlohmann::json& line);
  const std::string& path() const { return path_; }

 private:
  void append(const std::string& event);

  std::string path_;
  int descriptor_;
};

}  // namespace fsdp::trainer
