#include "testing/whole_run.h"

#include <cstdio>
#include <nlohmann/json.hpp>
#include <sstream>

#include "support/ranks/thread_ranks.h"

namespace fsdp::trainer {

namespace {

std::map<std::string, std::string> metrics_that_count(const std::string& text) {
  std::map<std::string, std::string> metrics;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    auto values = nlohmann::json::parse(line);
    for (const char* key : {"samples_per_second", "tokens_per_second", "tflops", "hardware_tflops", "peak_memory_bytes",
                            "mapped_file_bytes"})
      values.erase(key);
    char step[32];
    std::snprintf(step, sizeof(step), "%05d", values.at("step").get<int>());
    metrics[values.contains("eval_loss") ? "eval" : step] = values.dump();
  }
  return metrics;
}

}  // namespace

Config small_run(const testing::TemporaryFolder& folder) {
  Config config;
  config.model.path = folder.path("model");
  config.data.dataset = "dummy:40";
  config.data.eval_dataset = "dummy:7";
  config.data.max_seq_length = 9;
  config.data.train_batch_size = 2;
  config.steps.max_steps = 4;
  config.optimizer.learning_rate = 1e-2;
  config.optimizer.weight_decay = 0.1;
  config.steps.clip_grad_norm = 0.5;
  config.precision.dtype = c10::kFloat;
  config.output.do_eval = true;
  config.output.save_final = true;
  return config;
}

Left run_whole(Config config, const testing::TemporaryFolder& folder, const std::string& name, int world_size,
               const std::function<c10::Device(int rank)>& device_of) {
  config.output.output_dir = folder.path(name);
  Left left;
  // Opens the inputs one after the other: opening a model with new weights seeds generators, which threads share.
  std::vector<TrainingInputs> inputs;
  for (int rank = 0; rank < world_size; ++rank) inputs.push_back(open_training_inputs(config, world_size));
  testing::run_ranks(world_size, [&](std::shared_ptr<Communicator> world) {
    TrainingInputs& own = inputs[static_cast<size_t>(world->rank())];
    const RunEnd end = train_at(config, std::move(own), {device_of(world->rank()), world, ""}, {});
    if (world->rank() == 0) left.end = end;
  });
  left.metrics = metrics_that_count(folder.read(name + "/metrics.jsonl"));
  left.weights = folder.read(name + "/final/model.safetensors");
  return left;
}

std::string run_in_turns(const std::vector<RunOnRanks>& configs, const testing::TemporaryFolder& folder) {
  std::string checkpoint, name;
  for (size_t step = 1; step <= configs.size(); ++step) {
    Config config = configs[step - 1].config;
    config.steps.max_steps = static_cast<int64_t>(step);
    config.checkpoints.save_steps = 1;
    config.checkpoints.async_save = step % 2 == 0;
    if (!checkpoint.empty()) config.checkpoints.resume_from_checkpoint = checkpoint;
    name = "part" + std::to_string(step);
    run_whole(config, folder, name, configs[step - 1].ranks);
    checkpoint = folder.path(name + "/checkpoint-" + std::to_string(step));
  }
  return name;
}

}  // namespace fsdp::trainer
