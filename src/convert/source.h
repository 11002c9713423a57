// The contents of a folder of any kind, in a common form, and its tensors' elements.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "convert/folder_kind.h"
#include "formats/common/tensor_info.h"

namespace fsdp::convert {

struct StateTensor {
  enum class Role : uint8_t { kParameter, kBuffer, kOptimizer };
  Role role = Role::kParameter;
  std::string fqn;           // of the parameter or buffer
  std::string state;         // kOptimizer: "exp_avg", …
  formats::TensorInfo info;  // with its name in the folder
};

struct Contents {
  std::vector<StateTensor> tensors;
  // As in a training checkpoint's manifest: the numbers of each parameter's optimizer state, and parameter groups with
  // the options of LibTorch's optimizers.
  nlohmann::json leaves = nlohmann::json::object();
  nlohmann::json groups = nlohmann::json::array();
  nlohmann::json user;  // null if none

  bool has_optimizer() const;
  int64_t nbytes() const;
};

// Messages for the user about what was detected, assumed or left out, one line each.
using Notes = std::vector<std::string>;

struct SourceOptions {
  // Prefixes of names in checkpoints of torch.distributed.checkpoint: "model", "app.optim". Unset: detected.
  std::optional<std::string> model_prefix{}, optimizer_prefix{};
  // Shell patterns for names of buffers, for folders that do not say which tensors are buffers.
  std::vector<std::string> buffers{};
};

// A folder that is read. Errors name the file and the tensor. Used by one thread.
class Source {
 public:
  virtual ~Source() = default;
  const Contents& contents() const { return contents_; }
  // Copies elements [begin, end) of one of the tensors, in row-major order, into `out`: 1-D, contiguous, on the CPU, of
  // the tensor's dtype.
  virtual void read(const StateTensor& tensor, int64_t begin, int64_t end, const at::Tensor& out) = 0;

 protected:
  Contents contents_;
};

std::unique_ptr<Source> open_source(const std::filesystem::path& folder, const SourceOptions& options, Notes& notes);

// Throws unless another checkpoint can store this optimizer state and these parameter groups. Errors begin with
// `where`.
void check_optimizer(const Contents& contents, const std::string& where);

// Whether a name matches one of the patterns.
bool matches(const std::string& name, const std::vector<std::string>& patterns);

}  // namespace fsdp::convert
