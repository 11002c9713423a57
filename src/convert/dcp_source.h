// Reads a checkpoint of torch.distributed.checkpoint as a source.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "convert/dcp_layout.h"
#include "convert/source.h"
#include "formats/dcp/dcp_folder.h"

namespace fsdp::convert {

// The names under which a checkpoint that this program wrote stores contents that torch's checkpoints do not have.
constexpr const char* kUserKey = "user";             // the caller's data of a training checkpoint
constexpr const char* kBuffersKey = "fsdp.buffers";  // a list of the buffers among the model's names

class DcpSource final : public Source {
 public:
  DcpSource(const std::filesystem::path& folder, const SourceOptions& options, Notes& notes);
  void read(const StateTensor& tensor, int64_t begin, int64_t end, const at::Tensor& out) override;

 private:
  void add_model(const SourceOptions& options, Notes& notes);
  void add_optimizer(Notes& notes);
  void add_state(const std::string& name, const formats::TensorInfo& info, const std::string& rest);
  void add_values(std::map<std::string, nlohmann::json>& groups, Notes& notes);
  double number(const std::string& name) const;

  formats::DcpFolder folder_;
  DcpLayout layout_;
  std::vector<std::string> fqns_;  // of parameters
};

}  // namespace fsdp::convert
