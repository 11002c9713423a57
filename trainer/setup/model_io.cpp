#include "setup/model_io.h"

#include <ATen/core/grad_mode.h>

#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/check.h"

namespace fsdp::trainer {

namespace fs = std::filesystem;

void check_can_save(const fs::path& path) {
  if (!fs::exists(path)) return;
  FSDP_CHECK_WITH(FileError, fs::is_directory(path) && (fs::is_empty(path) || fs::exists(path / "config.json")),
                  path.string(),
                  ": the trained model is to be saved there, but it is not a model folder; remove it or set "
                  "another output_dir");
}

void load_into_shards(const models::PretrainedWeights& weights, const ShardedModule& sharded) {
  const at::NoGradGuard no_grad;
  for (const ShardSlice& slice : sharded.shard_slices()) {
    if (slice.begin < slice.end) weights.read_range(slice.fqn, slice.begin, slice.end, slice.data);
    sharded.page_out();
  }
}

void load_buffers(const models::PretrainedWeights& weights, const torch::nn::Module& model) {
  const at::NoGradGuard no_grad;
  for (const auto& buffer : model.named_buffers()) {
    weights.read_range(buffer.key(), 0, buffer.value().numel(), buffer.value().view(-1));
  }
}

void read_whole(const models::PretrainedWeights& weights, const torch::nn::Module& model, Options& options) {
  // The parameters of each module, each under its first name only.
  std::unordered_map<const torch::nn::Module*, std::vector<std::pair<std::string, at::Tensor>>> parameters;
  std::unordered_set<const at::TensorImpl*> known;
  for (const auto& module : model.named_modules("", /*include_self=*/false)) {
    for (const auto& parameter : module.value()->named_parameters(/*recurse=*/false)) {
      if (known.insert(parameter.value().unsafeGetTensorImpl()).second) {
        parameters[module.value().get()].emplace_back(module.key() + "." + parameter.key(), parameter.value());
      }
    }
  }
  options.param_init_fn = [&weights, parameters = std::move(parameters)](torch::nn::Module& module) {
    for (const auto& [name, value] : parameters.at(&module)) weights.read_range(name, 0, value.numel(), value.view(-1));
  };
}

}  // namespace fsdp::trainer
