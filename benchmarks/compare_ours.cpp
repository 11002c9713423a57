// This library's side of the training runs of benchmarks/compare: one rank, with the environment of torchrun.
// Usage: compare_ours JOB, where JOB is a file with the JSON of training_job.h. Prints one JSON object.
#include <ATen/Parallel.h>
#include <c10/util/Exception.h>

#include <cstdio>
#include <exception>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "base/error_message.h"
#include "formats/hugging_face/hf_folder.h"
#include "formats/safetensors/safetensors.h"
#include "fsdp/backends.h"
#include "fsdp/fully_shard.h"
#include "models/pretrained.h"
#include "optim/clip_scale.h"
#include "optim/fused_adamw.h"
#include "process_use.h"
#include "setup/transformer_policy.h"
#include "support/memory/counting_allocator.h"
#include "tasks/trained_model.h"
#include "training_job.h"

namespace {

using fsdp::benchmarks::PartClock;
using fsdp::benchmarks::PartTime;
using fsdp::benchmarks::TrainingJob;
using fsdp::models::PretrainedModel;
using fsdp::trainer::Batch;
using fsdp::trainer::Config;
using fsdp::trainer::TrainedModel;
using nlohmann::json;

// The samples that this rank trains on, step by step. They start again from the first when all were used.
class Samples {
 public:
  Samples(const TrainingJob& job, const fsdp::Communicator& ranks)
      : file_(job.samples), batch_(job.batch), rank_(ranks.rank()), size_(ranks.size()) {}

  // Returns images and classes, a table and its labels, or tokens and their labels. If the file has no labels, the
  // inputs are the labels.
  Batch batch(int64_t step) const {
    if (are_tabular()) {
      return {.inputs = of("numeric", step), .labels = of("labels", step), .categorical = of("categorical", step)};
    }
    const at::Tensor inputs = of(are_images() ? "pixel_values" : "input_ids", step);
    return {.inputs = inputs, .labels = file_.contains("labels") ? of("labels", step) : inputs};
  }
  // The trainer's config for these samples.
  Config config() const {
    Config config;
    if (are_tabular()) return config;
    const Batch first = batch(0);
    if (are_images()) {
      config.data.image_size = first.inputs.size(2);
    } else {
      config.data.max_seq_length = first.inputs.size(1);
      if (file_.contains("labels")) config.data.max_target_length = first.labels.size(1);
    }
    return config;
  }

 private:
  bool are_tabular() const { return file_.contains("categorical"); }
  bool are_images() const { return file_.contains("pixel_values"); }
  // Returns this rank's batch of tensor `name` for a step.
  at::Tensor of(const char* name, int64_t step) const {
    const at::Tensor all = file_.tensor(name);
    TORCH_CHECK(all.size(0) >= batch_ * size_, file_.path().string(), ": ", all.size(0),
                " samples are fewer than a step's");
    const int64_t steps = all.size(0) / (batch_ * size_);
    return all.narrow(0, ((step % steps) * size_ + rank_) * batch_, batch_);
  }

  fsdp::formats::SafetensorsFile file_;
  int64_t batch_, rank_, size_;
};

fsdp::Options options_of(const TrainingJob& job, const PretrainedModel& model,
                         const std::shared_ptr<fsdp::Communicator>& communicator) {
  fsdp::Options options;
  if (job.sharding_factor) options.mesh = fsdp::make_mesh(communicator, *job.sharding_factor);
  options.communicator = communicator;
  options.sharding_strategy = job.strategy;
  options.backward_prefetch = job.backward_prefetch;
  options.forward_prefetch = job.forward_prefetch;
  options.limit_all_gathers = job.limit_all_gathers;
  options.keep_memory = job.keep_memory;
  if (job.bf16) {
    options.param_dtype = at::kBFloat16;
    options.reduce_dtype = at::kFloat;
  }
  if (job.offload) options.offload_path = job.model + "/offload";
  if (job.auto_units) {
    options.auto_units.emplace();
  } else {
    options.auto_wrap_policy = fsdp::trainer::transformer_policy(model);
  }
  return options;
}

class Training {
 public:
  Training(const TrainingJob& job, const std::shared_ptr<fsdp::Communicator>& communicator)
      : job_(job), samples_(job, *communicator) {
    const fsdp::formats::HfFolder folder(job.model);
    model_ = fsdp::trainer::make_trained_model(
        fsdp::models::load_pretrained<PretrainedModel>(folder, at::kFloat, at::kCPU), samples_.config());
    PretrainedModel& module = model_->module();
    std::set<const at::TensorImpl*> seen;  // tied parameters have several names
    for (const at::Tensor& parameter : module.parameters()) {
      if (seen.insert(parameter.unsafeGetTensorImpl()).second) parameters_ += parameter.numel();
    }
    separate_ = model_->separate_parameters();
    if (separate_) separate_->make(communicator, at::kCPU, std::nullopt);
    if (job.checkpointing) module.set_activation_checkpointing(fsdp::CheckpointPolicy::full());
    sharded_ = fsdp::fully_shard(module, options_of(job, module, communicator));
    sharded_->set_reductions_see_norm(true);
    optimizer_ = std::make_unique<fsdp::optim::FusedAdamW>(
        sharded_->parameters(), fsdp::optim::FusedAdamWOptions{.learning_rate = job.learning_rate});
    if (job.offload) optimizer_->after_each_part([this] { sharded_->page_out(); });
  }

  void step(int64_t number) {
    parts_.clear();
    const double cpu_before = fsdp::benchmarks::process_cpu_seconds();
    const PartClock whole;
    sharded_->zero_grad();
    if (separate_) separate_->zero_grad();
    at::Tensor loss;
    note("forward", [&] { loss = model_->loss(samples_.batch(number)); });
    note("backward", [&] { loss.backward(); });
    double scale = 1.0;
    note("clip",
         [&] { scale = fsdp::optim::clip_scale(job_.clip_grad_norm, sharded_->reduced_grad_norm().item<double>()); });
    note("optimizer", [&] {
      sharded_->with_offloaded_memory([&] { optimizer_->step(scale); });
      if (separate_) separate_->step(separate_->learning_rate(), /*gradient_scale=*/1.0);
    });
    parts_["step"] = as_json(whole.elapsed());
    parts_["step"]["cpu"] = fsdp::benchmarks::process_cpu_seconds() - cpu_before;
    losses_.push_back(loss.item<double>());
  }

  const json& parts() const { return parts_; }
  const std::vector<double>& losses() const { return losses_; }
  // The FLOPs of forward and backward over one batch without recomputation, and the FLOPs that recomputation adds.
  double flops() const { return static_cast<double>(job_.batch) * work().flops; }
  double recomputed_flops() const { return static_cast<double>(job_.batch) * work().recomputed_flops; }
  int64_t parameters() const { return parameters_; }
  fsdp::EngineStats stats() const { return sharded_->diagnostics().stats(); }
  // The engine's peaks by category, and the size of the optimizer's state, in bytes.
  json memory() const {
    json peaks{{"optimizer state", optimizer_->state_nbytes()}};
    for (const fsdp::MemoryCategory& category : sharded_->diagnostics().memory()) peaks[category.name] = category.peak;
    return peaks;
  }

 private:
  fsdp::trainer::SampleWork work() const { return model_->sample_work(samples_.batch(0)); }
  static json as_json(const PartTime& time) { return {{"seconds", time.seconds}, {"blocked", time.blocked}}; }
  template <typename Part>
  void note(const char* name, const Part& part) {
    const PartClock clock;
    part();
    parts_[name] = as_json(clock.elapsed());
  }

  TrainingJob job_;
  Samples samples_;
  std::unique_ptr<TrainedModel> model_;
  fsdp::trainer::SeparateParameters* separate_ = nullptr;  // null if the model has none
  std::shared_ptr<fsdp::ShardedModule> sharded_;
  std::unique_ptr<fsdp::optim::FusedAdamW> optimizer_;
  std::vector<double> losses_;
  int64_t parameters_ = 0;
  json parts_;
};

// Limits the memory of the process to job.memory_limit bytes in addition to its memory after a small training step,
// like torch_training.py. Returns the memory after that step, or null if there is no limit.
json limit_memory(const TrainingJob& job, fsdp::Communicator& communicator) {
  if (!job.memory_limit) return nullptr;
  const at::Tensor weight = at::ones({64}).requires_grad_();
  at::mm(at::ones({2, 8}), weight.view({8, 8})).sum().backward();
  communicator.all_reduce(weight.grad(), weight.grad(), {}, {"a small step", 0, fsdp::Pass::kUser})->wait();
  fsdp::optim::FusedAdamW({weight}, fsdp::optim::FusedAdamWOptions{.learning_rate = 0.0}).step();
  return fsdp::benchmarks::limit_memory(*job.memory_limit);
}

json run(const TrainingJob& job) {
  at::set_num_threads(job.threads);
  const fsdp::RankEnvironment place = fsdp::rank_environment();
  const auto communicator =
      job.shares_memory ? fsdp::make_shm_communicator(place) : fsdp::make_gloo_communicator(place);
  const json base = limit_memory(job, *communicator);
  fsdp::testing::CountedMemory memory;
  Training training(job, communicator);
  json steps = json::array();
  uint64_t network_before = 0, payload_before = 0;
  for (int64_t step = 0; step < job.warm_up + job.steps; ++step) {
    if (step == job.warm_up) {
      memory.reset_peak();
      fsdp::benchmarks::reset_peak_resident();
      communicator->barrier({"steps that count", 0, fsdp::Pass::kUser});
      network_before = fsdp::benchmarks::network_bytes_sent();
      payload_before = communicator->bytes_sent();
      communicator->barrier({"counters were read", 0, fsdp::Pass::kUser});
    }
    training.step(step);
    if (step >= job.warm_up) steps.push_back(training.parts());
  }
  const uint64_t payload = communicator->bytes_sent() - payload_before;
  communicator->barrier({"steps have ended", 0, fsdp::Pass::kUser});
  const uint64_t network = fsdp::benchmarks::network_bytes_sent() - network_before;
  communicator->barrier({"counters were read", 1, fsdp::Pass::kUser});
  return {{"rank", communicator->rank()},
          {"losses", training.losses()},
          {"steps", steps},
          {"flops", training.flops()},
          {"recomputed_flops", training.recomputed_flops()},
          {"parameters", training.parameters()},
          {"units", training.stats().units},
          {"base", base},
          {"allocated", memory.peak_bytes()},
          {"memory", training.memory()},
          {"resident", fsdp::benchmarks::peak_resident_bytes()},
          {"network_bytes", network},
          {"payload_bytes", payload}};
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: compare_ours JOB\n");
    return 2;
  }
  try {
    std::ifstream file(argv[1]);
    std::stringstream text;
    text << file.rdbuf();
    TORCH_CHECK(file, argv[1], " cannot be read");
    std::printf("%s\n", run(fsdp::benchmarks::read_training_job(text.str())).dump().c_str());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", fsdp::base::message_of(error).c_str());
    return 1;
  }
  return 0;
}
