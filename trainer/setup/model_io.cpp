#include "setup/model_io.h"

#include <ATen/core/grad_mode.h>

#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/check.h"
#include "state/together.h"

namespace fsdp::trainer {

namespace {

namespace fs = std::filesystem;

std::vector<formats::TensorInfo> tensors_of(const ShardedModule& sharded, const torch::nn::Module& model) {
  std::vector<formats::TensorInfo> tensors;
  for (const ShardSlice& slice : sharded.shard_slices()) {
    tensors.push_back({slice.fqn, slice.data.scalar_type(), slice.sizes});
  }
  for (const auto& buffer : model.named_buffers()) {
    tensors.push_back({buffer.key(), buffer.value().scalar_type(), buffer.value().sizes().vec()});
  }
  return tensors;
}

// Writes into rank 0's folder while it still has its temporary name.
void save_separate(const SeparateParameters& separate, const fs::path& folder_of_rank_0, Communicator& ranks) {
  const auto folder = ranks.all_gather_bytes(folder_of_rank_0.string(), {.name = "final_folder"}).at(0);
  state::together(ranks, "saving the model", [&] {
    separate.save(folder);
    return std::string();
  });
}

}  // namespace

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

void read_on_rank_0(const models::PretrainedWeights& weights, const torch::nn::Module& model, Options& options) {
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
  options.sync_module_states = true;
  options.param_init_fn = [&weights, parameters = std::move(parameters)](torch::nn::Module& module) {
    for (const auto& [name, value] : parameters.at(&module)) weights.read_range(name, 0, value.numel(), value.view(-1));
  };
}

void save_folder(const fs::path& path, const nlohmann::json& config, const TrainedModel& model, ShardedModule& sharded,
                 Communicator& ranks, const formats::HfFolderWriterOptions& options) {
  std::optional<formats::HfFolderWriter> writer;
  const torch::nn::Module& module = model.module();
  if (ranks.rank() == 0) writer.emplace(path, config, tensors_of(sharded, module), options);
  sharded.for_each_full_parameter([&](const std::string& fqn, const at::Tensor& full) {
    if (writer) writer->write(fqn, full.cpu());
  });
  if (const auto* separate = model.separate_parameters()) {
    save_separate(*separate, writer ? writer->unfinished() : fs::path(), ranks);
  }
  if (!writer) return;
  for (const auto& buffer : module.named_buffers()) writer->write(buffer.key(), buffer.value().cpu());
  writer->finish();
}

}  // namespace fsdp::trainer
