// Trains a small Llama on one mesh, for benchmarks/meshes.py, which starts it once for each rank with the environment
// of torchrun. Usage: meshes PP DP TP SEQUENCE_PARALLEL COMMUNICATOR STEPS. COMMUNICATOR: shm or gloo. Each rank prints
// JSON: the losses that it has, the seconds of each step, the bytes that it has sent in a step, and the peak of tensors
// in a step.
#include <torch/optim/adamw.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "fsdp/backends.h"
#include "fsdp/deferred_init.h"
#include "fsdp/fsdp.h"
#include "fsdp/pipeline.h"
#include "models/staged_lm.h"
#include "support/memory/counting_allocator.h"

namespace fsdp::benchmarks {
namespace {

using models::CausalLM;
using models::StageBatch;
using models::StagedLM;
using models::StagePart;

constexpr int64_t kLayers = 8, kLength = 512, kVocabulary = 2048;
constexpr int kSequences = 8;  // of a step, on all ranks together; each is a micro-batch

struct Setting {
  int pipeline = 1, data = 1, tensor = 1;
  bool sequence_parallel = false;
  std::string communicator;
  int steps = 3;
};

nlohmann::json llama() {
  return {{"model_type", "llama"},
          {"architectures", {"LlamaForCausalLM"}},
          {"vocab_size", kVocabulary},
          {"hidden_size", 256},
          {"intermediate_size", 688},
          {"num_hidden_layers", kLayers},
          {"num_attention_heads", 8},
          {"num_key_value_heads", 4},
          {"max_position_embeddings", kLength}};
}

StageBatch batch_of(const Setting& setting, int step, int micro_batch, int data_rank) {
  const int number = micro_batch + data_rank * kSequences / setting.data;
  const at::Tensor ids = torch::arange(kLength).mul(7 + 2 * number).add(step).remainder(kVocabulary).view({1, kLength});
  return {ids, ids, 1.0 * setting.data / kSequences};
}

std::shared_ptr<CausalLM> make_part(const StagePart& part) {
  torch::manual_seed(0);
  auto model = deferred_init([] {
    auto made = models::make_causal_lm(llama(), at::kFloat, at::kCPU);
    made->initialize();
    return made;
  });
  models::staged_lm(*model).keep(part);
  return model;
}

std::shared_ptr<ShardedModule> shard(const Setting& setting, CausalLM& model, DeviceMesh& mesh) {
  Options options;
  options.mesh = mesh.data_parallel();
  options.sharding_strategy = ShardingStrategy::kShardGradOp;
  options.auto_wrap_policy = [](const WrapCandidate& candidate) {
    return module_class_name(candidate.module) == "DecoderLayer";
  };
  if (setting.tensor > 1) options.tensor_parallel = model.split_over(mesh.group("tp"), setting.sequence_parallel);
  return fully_shard(model, options);
}

// Returns the function that runs forward and backward of all micro-batches of a step, and returns their losses.
std::function<std::vector<double>(int step)> passes_of(const Setting& setting, CausalLM& model, const StagePart& part,
                                                       const std::shared_ptr<ShardedModule>& sharded,
                                                       DeviceMesh& mesh) {
  const int micro_batches = kSequences / setting.data, data_rank = mesh.rank("dp_shard");
  const auto number = std::make_shared<int>(0);
  const auto batch = [=](int micro_batch) { return batch_of(setting, *number, micro_batch, data_rank); };
  const auto forward = models::stage_forward(models::staged_lm(model), part, batch);
  if (setting.pipeline == 1) {
    return [=](int step) {
      *number = step;
      std::vector<double> losses;
      for (int i = 0; i < micro_batches; ++i) {
        sharded->set_requires_gradient_sync(i + 1 == micro_batches);
        const at::Tensor loss = forward({}, i).front();
        loss.backward();
        losses.push_back(loss.item<double>());
      }
      return losses;
    };
  }
  const PipelineSchedule schedule = make_pipeline_schedule("1F1B", setting.pipeline, 1, micro_batches);
  const auto pipeline =
      std::make_shared<Pipeline>(mesh, schedule, std::vector<PipelineStage>{{mesh.rank("pp"), sharded, forward}});
  return [=](int step) {
    *number = step;
    std::vector<double> losses;
    for (const auto& outputs : pipeline->step()) losses.push_back(outputs.front().item<double>());
    return losses;
  };
}

uint64_t bytes_sent(DeviceMesh& mesh) {
  uint64_t sum = 0;
  for (const char* dim : {"pp", "dp_shard", "tp"}) sum += mesh.group(dim)->bytes_sent();
  return sum;
}

int run(const Setting& setting) {
  const RankEnvironment environment = rank_environment();
  const std::shared_ptr<Communicator> world = setting.communicator == "gloo"
                                                  ? make_gloo_communicator(environment)
                                                  : make_cpu_communicator(environment).communicator;
  DeviceMesh mesh =
      DeviceMesh::make(world, {{"pp", setting.pipeline}, {"dp_shard", setting.data}, {"tp", setting.tensor}});
  const StagePart part = models::stage_parts(kLayers, setting.pipeline)[static_cast<size_t>(mesh.rank("pp"))];
  testing::CountedMemory memory;
  const auto model = make_part(part);
  const auto sharded = shard(setting, *model, mesh);
  const auto run_passes = passes_of(setting, *model, part, sharded, mesh);
  torch::optim::AdamW optimizer(sharded->parameters(), torch::optim::AdamWOptions(1e-3));
  nlohmann::json losses = nlohmann::json::array(), seconds = nlohmann::json::array();
  uint64_t sent = 0;
  for (int step = 0; step < setting.steps; ++step) {
    if (step == 1) memory.reset_peak();  // the first step allocates
    world->barrier({"step", static_cast<uint64_t>(step), Pass::kUser});
    sent = bytes_sent(mesh);
    const auto begun = std::chrono::steady_clock::now();
    sharded->zero_grad();
    losses.push_back(run_passes(step));
    optimizer.step();
    world->barrier({"end of step", static_cast<uint64_t>(step), Pass::kUser});
    seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count());
  }
  const nlohmann::json result{{"losses", losses},
                              {"seconds", seconds},
                              {"bytes_sent", bytes_sent(mesh) - sent},
                              {"peak_bytes", memory.peak_bytes()}};
  std::printf("%s\n", result.dump().c_str());
  return 0;
}

}  // namespace
}  // namespace fsdp::benchmarks

int main(int argc, char** argv) {
  if (argc != 7) {
    std::fprintf(stderr, "usage: meshes PP DP TP SEQUENCE_PARALLEL COMMUNICATOR STEPS\n");
    return 2;
  }
  at::set_num_threads(1);
  const auto number = [&](int i) { return std::atoi(argv[i]); };
  try {
    return fsdp::benchmarks::run({number(1), number(2), number(3), number(4) != 0, argv[5], number(6)});
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
