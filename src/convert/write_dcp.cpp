#include <ATen/ops/full.h>

#include "convert/companions.h"
#include "convert/dcp_layout.h"
#include "convert/dcp_source.h"
#include "convert/param_groups.h"
#include "convert/slices.h"
#include "convert/targets.h"
#include "formats/dcp/dcp_folder_writer.h"
#include "formats/pickle/pickle_writer.h"

namespace fsdp::convert {
namespace {

using formats::DcpFolderWriter;
using formats::DcpKey;
using formats::TensorInfo;
using nlohmann::json;
using Role = StateTensor::Role;
using Path = std::vector<DcpKey>;

// A name consists of the keys on its path in nested dicts, joined by dots.
std::string joined(const Path& path) {
  std::string name;
  for (const DcpKey& key : path) {
    name += (name.empty() ? "" : ".") +
            (key.index() == 0 ? std::get<std::string>(key) : std::to_string(std::get<int64_t>(key)));
  }
  return name;
}

class DcpTarget {
 public:
  explicit DcpTarget(const Job& job) : job_(job), writer_(job.target, {.max_file_bytes = job.options.max_file_bytes}) {
    const std::string prefix = job.options.target_model_prefix.value_or("model");
    if (!prefix.empty()) model_.emplace_back(prefix.back() == '.' ? prefix.substr(0, prefix.size() - 1) : prefix);
  }

  void write() {
    for (const StateTensor& tensor : job_.source.contents().tensors) write_tensor(tensor);
    write_scalars();
    write_groups();
    write_others();
    copy_companions(job_.companions, writer_.folder());
    writer_.finish();
  }

 private:
  Path model_path(const std::string& fqn) const {
    Path path = model_;
    path.emplace_back(fqn);
    return path;
  }
  Path state_path(const std::string& fqn, const std::string& state) const {
    if (job_.options.flatten_optimizer) return {"optim", "state." + fqn + "." + state};
    return {"optim", "state", fqn, state};
  }

  void write_tensor(const StateTensor& tensor) {
    const Path path = tensor.role == Role::kOptimizer ? state_path(tensor.fqn, tensor.state) : model_path(tensor.fqn);
    writer_.begin({joined(path), tensor.info.dtype, tensor.info.shape}, path);
    copy_tensor(job_.source, tensor, job_.result, [&](const at::Tensor& slice) { writer_.append(slice); });
  }

  // Writes scalars as torch.optim stores them: fp32 tensors without dimensions.
  void write_scalars() {
    for (const auto& [fqn, scalars] : job_.source.contents().leaves.items()) {
      for (const auto& [name, value] : scalars.items()) {
        const Path path = state_path(fqn, name);
        writer_.begin({joined(path), at::kFloat, {}}, path);
        writer_.append(at::full({1}, value.get<double>(), at::kFloat));
      }
    }
  }

  void write_groups() {
    int64_t number = 0;
    for (const json& group : job_.source.contents().groups) {
      const PythonOptions options = to_python(group.at("options"), job_.result.notes);
      if (job_.options.flatten_optimizer) {
        for (const json& fqn : group.at("parameters")) {
          write_options(options, [&](const std::string& option) {
            return Path{"optim", "param_groups." + fqn.get<std::string>() + "." + option};
          });
        }
        continue;
      }
      const auto path = [&](const std::string& option) { return Path{"optim", "param_groups", number, option}; };
      write_options(options, path);
      write_value(path("params"), formats::pickled::value_of(group.at("parameters")));
      ++number;
    }
  }

  template <typename PathOf>
  void write_options(const PythonOptions& options, const PathOf& path_of) {
    for (const auto& [name, value] : options) {
      write_value(path_of(name), value.is_array() ? tuple_of(value) : formats::pickled::value_of(value));
    }
  }
  static std::string tuple_of(const json& values) {
    std::vector<std::string> items;
    for (const json& value : values) items.push_back(formats::pickled::value_of(value));
    return formats::pickled::tuple(items);
  }

  void write_others() {
    const Contents& contents = job_.source.contents();
    json buffers = json::array();
    for (const StateTensor& tensor : contents.tensors) {
      if (tensor.role == Role::kBuffer) buffers.push_back(tensor.fqn);
    }
    if (!buffers.empty()) write_value({"fsdp", "buffers"}, formats::pickled::value_of(buffers));
    if (!contents.user.is_null()) write_value({kUserKey}, formats::pickled::value_of(contents.user));
  }

  void write_value(const Path& path, const std::string& opcodes) { writer_.add_value(joined(path), path, opcodes); }

  const Job& job_;
  DcpFolderWriter writer_;
  Path model_;
};

}  // namespace

void write_dcp(const Job& job) { DcpTarget(job).write(); }

}  // namespace fsdp::convert
