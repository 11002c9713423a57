#include "setup/model_saver.h"

#include <algorithm>
#include <functional>
#include <optional>

#include "state/held_part.h"
#include "state/stage_exchange.h"
#include "state/together.h"

namespace fsdp::trainer {

namespace {

namespace fs = std::filesystem;

// The tensors of a part of the model that are saved: of a tied parameter, the copy of the first stage.
class SavedTensors {
 public:
  SavedTensors(const ShardedPart& part, const std::vector<std::string>& tied) : part_(part), tied_(tied) {}

  void describe(std::vector<state::StageTensor>& tensors) const {
    for (const state::HeldPart& whole : state::whole_parameters(*part_.sharded)) {
      if (saves(whole.fqn)) tensors.push_back({{whole.fqn}, {whole.dtype(), whole.sizes, {}}});
    }
    for (const auto& buffer : part_.model.module().named_buffers()) {
      tensors.push_back({{buffer.key()}, {buffer.value().scalar_type(), buffer.value().sizes().vec(), {}}});
    }
  }

  // Gathers the parameters one unit at a time. Collective over the ranks that shard the part.
  void visit(const state::StageExchange::Take& take) const {
    part_.sharded->for_each_full_parameter([&](const std::string& fqn, const at::Tensor& full) {
      if (saves(fqn)) take({fqn}, full);
    });
    for (const auto& buffer : part_.model.module().named_buffers()) take({buffer.key()}, buffer.value());
  }

 private:
  bool saves(const std::string& fqn) const {
    return part_.stage == 0 || std::find(tied_.begin(), tied_.end(), fqn) == tied_.end();
  }

  const ShardedPart& part_;
  const std::vector<std::string>& tied_;
};

std::vector<formats::TensorInfo> infos_of(const std::vector<state::StageTensor>& tensors) {
  std::vector<formats::TensorInfo> infos;
  for (const auto& [names, tensor] : tensors) infos.push_back({names.front(), tensor.dtype, tensor.sizes});
  return infos;
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

void save_folder(const fs::path& path, const SavedModel& model, RankGroups& groups, c10::Device device,
                 const formats::HfFolderWriterOptions& options) {
  std::vector<SavedTensors> own;
  std::vector<state::StageTensor> tensors;
  for (const ShardedPart& part : model.parts) own.emplace_back(part, model.tied).describe(tensors);
  std::optional<state::StageExchange> stages;
  if (groups.mesh && groups.mesh->size("pp") > 1 && groups.is_first_of_stage()) {
    tensors = stages.emplace(*groups.mesh->group("pp"), device, tensors).all();
  }
  std::optional<formats::HfFolderWriter> writer;
  if (groups.world->rank() == 0) writer.emplace(path, model.config, infos_of(tensors), options);
  const auto visit_own = [&](const state::StageExchange::Take& take) {
    for (const SavedTensors& part : own) part.visit(take);
  };
  const auto write = [&](const std::vector<std::string>& names, const at::Tensor& tensor) {
    if (writer) writer->write(names.front(), tensor.cpu());
  };
  stages ? stages->to_rank_0(visit_own, write) : visit_own(write);
  if (const auto* separate = model.parts.front().model.separate_parameters()) {
    save_separate(*separate, writer ? writer->unfinished() : fs::path(), *groups.world);
  }
  if (writer) writer->finish();
}

}  // namespace fsdp::trainer
