// A program for tests and measurements: trains for some steps with each rank in a process of its own, and prints how
// much memory each takes.
//
//   planner_counted_ranks RUNS
//
// RUNS: a JSON file with a list of {"config", "ranks", "steps"} and, if memory is limited, "limits": for each rank, the
// bytes that its process may reserve for itself (RLIMIT_DATA). Memory that ranks share does not count there. Prints a
// JSON list, in it a list of the ranks of each run: "setup" and "steps" (peaks of the bytes that tensors take), and
// "before" and "after" (of the process, before it makes the model and after the last step: "reserved", what RLIMIT_DATA
// limits; "own", resident pages but those of files; "tensors"), or "error", or only "status" if the process did not end
// as it should.
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <malloc.h>
#include <pthread.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/error_message.h"
#include "comm/meeting/free_port.h"
#include "fsdp/backends.h"
#include "loop/training_run.h"
#include "loop/whole_passes.h"
#include "planner/testing/small_models.h"
#include "setup/sharding_options.h"
#include "setup/training_inputs.h"
#include "support/memory/counting_allocator.h"

namespace fsdp::planner {
namespace {

using nlohmann::json;

// Bytes of a line of /proc/self/status.
int64_t status_bytes(const std::string& name) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind(name + ":", 0) == 0) return std::stoll(line.substr(name.size() + 1)) * 1024;
  }
  throw std::runtime_error("/proc/self/status has no line " + name);
}

void limit_memory(int64_t bytes) {
  const rlimit limit{static_cast<rlim_t>(bytes), RLIM_INFINITY};
  if (setrlimit(RLIMIT_DATA, &limit) != 0) throw std::runtime_error("the memory cannot be limited");
}

json memory_of_process(const testing::CountedMemory& counted) {
  return {{"reserved", status_bytes("VmData")},
          {"own", status_bytes("RssAnon") + status_bytes("RssShmem")},
          {"tensors", counted.current_bytes()}};
}

std::shared_ptr<Communicator> connect(const trainer::Config& config, const RankEnvironment& environment) {
  if (config.communication.backend == "gloo") return make_gloo_communicator(environment);
  return make_cpu_communicator(environment).communicator;
}

// Loads kernels, so that they belong to the base.
void warm_up() {
  const at::Tensor ones = at::ones({64, 64});
  at::mm(ones, ones);
}

json train(const trainer::Config& config, const RankEnvironment& environment, int steps, std::optional<int64_t> limit) {
  warm_up();
  testing::CountedMemory counted;
  const auto ranks = connect(config, environment);
  json result = {{"before", memory_of_process(counted)}};
  if (limit) limit_memory(*limit);
  trainer::TrainingInputs inputs = trainer::open_training_inputs(config, ranks->size());
  const auto sharded =
      fully_shard(inputs.model->module(), trainer::sharding_options(config, inputs.model->module(), ranks));
  inputs.model->module().train();
  trainer::TrainBatches batches(
      *inputs.train, {.global = {config.data.train_batch_size, ranks->size(), config.steps.gradient_accumulation_steps},
                      .rank = ranks->rank(),
                      .shuffle = false});
  trainer::WholePasses passes(config.steps, *inputs.model, *sharded);
  trainer::TrainingRun run(config, passes, inputs.model->separate_parameters(), batches);
  result["setup"] = counted.peak_bytes();
  for (int step = 0; step < steps; ++step) {
    counted.reset_peak();
    run.step();
    result["steps"].push_back(counted.peak_bytes());
  }
  result["after"] = memory_of_process(counted);
  return result;
}

using File = std::unique_ptr<std::FILE, decltype([](std::FILE* file) { std::fclose(file); })>;

[[noreturn]] void be_rank(const json& run, const RankEnvironment& environment, std::FILE* file) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  // Memory that is freed goes back to the system, and stacks are small, so that the limit counts what is in use.
  mallopt(M_MMAP_THRESHOLD, 1 << 16);
  pthread_attr_t small_stack;
  pthread_attr_init(&small_stack);
  pthread_attr_setstacksize(&small_stack, 1 << 20);
  pthread_setattr_default_np(&small_stack);
  json result;
  try {
    std::optional<int64_t> limit;
    if (run.contains("limits")) limit = run["limits"].at(static_cast<size_t>(environment.rank)).get<int64_t>();
    result = train(read_json(run.at("config")), environment, run.at("steps"), limit);
  } catch (const std::exception& error) {
    result = {{"error", base::message_of(error)}};
  }
  limit_memory(RLIM_INFINITY);
  const std::string text = result.dump();
  std::fwrite(text.data(), 1, text.size(), file);
  std::fflush(file);
  std::_Exit(0);
}

json answer_in(std::FILE* file, int status) {
  std::string text;
  std::rewind(file);
  for (int c = std::fgetc(file); c != EOF; c = std::fgetc(file)) text.push_back(static_cast<char>(c));
  return text.empty() ? json{{"status", status}} : json::parse(text);
}

// This process does nothing else, so that its children may start threads.
json ranks_of(const json& run) {
  const int size = run.at("ranks");
  const comm::FreePort port;
  std::vector<File> files;
  std::vector<pid_t> children;
  for (int rank = 0; rank < size; ++rank) {
    files.emplace_back(std::tmpfile());
    children.push_back(fork());
    if (children.back() < 0) throw std::runtime_error("a rank cannot be started");
    if (children.back() == 0) {
      be_rank(run,
              {.rank = rank,
               .world_size = size,
               .local_rank = rank,
               .local_world_size = size,
               .master_port = port.number()},
              files.back().get());
    }
  }
  json results = json::array();
  for (int rank = 0; rank < size; ++rank) {
    int status = 0;
    waitpid(children[static_cast<size_t>(rank)], &status, 0);
    results.push_back(answer_in(files[static_cast<size_t>(rank)].get(), status));
  }
  return results;
}

}  // namespace
}  // namespace fsdp::planner

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  nlohmann::json results = nlohmann::json::array();
  for (const nlohmann::json& run : nlohmann::json::parse(std::ifstream(argv[1]))) {
    results.push_back(fsdp::planner::ranks_of(run));
  }
  std::printf("%s\n", results.dump().c_str());
}
