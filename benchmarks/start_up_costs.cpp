// Counts the store requests, the open files (such as connections) and the memory that ranks need until a sharded model
// has trained for two steps. Ranks are threads over a counting store in memory.
// Usage: start_up_costs gloo|shm|join RANKS... Prints a table with averages for one rank.
#include <ATen/Parallel.h>
#include <torch/torch.h>
#include <unistd.h>

#include <fsdp/fsdp.h>
#include <barrier>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "comm/cpu_communicator.h"
#include "comm/gloo/gloo_communicator.h"
#include "comm/meeting/meeting_point.h"
#include "comm/meeting/meeting_point_impl.h"
#include "comm/staged/staged_communicator.h"
#include "support/ranks/counting_store.h"

namespace fsdp {
namespace {

using testing::CountingStore;
using Point = std::shared_ptr<comm::MeetingPoint>;

// Resources that the whole process has used.
struct Use {
  int64_t our_requests, looks, gloo_requests, our_bytes, gloo_bytes, files, memory;
};

int64_t open_files() {
  int64_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) ++count;
  return count;
}

int64_t resident_bytes() {
  int64_t whole = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> whole >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

Use use_of(const CountingStore& store) {
  return {store.ours.requests, store.ours.looks, store.gloo.requests, store.ours.bytes,
          store.gloo.bytes,    open_files(),     resident_bytes()};
}

void print_row(int ranks, const char* stage, const Use& before, const Use& now) {
  const auto each = [ranks](int64_t from, int64_t to) { return static_cast<double>(to - from) / ranks; };
  std::printf("| %d | %s | %.1f | %.1f | %.0f | %.1f | %.0f | %.1f | %.0f |\n", ranks, stage,
              each(before.our_requests, now.our_requests), each(before.looks, now.looks),
              each(before.our_bytes, now.our_bytes), each(before.gloo_requests, now.gloo_requests),
              each(before.gloo_bytes, now.gloo_bytes), each(before.files, now.files),
              each(before.memory, now.memory) / 1024);
  std::fflush(stdout);
}

std::shared_ptr<Communicator> make_communicator(const std::string& backend, const Point& point, int rank, int ranks) {
  auto gloo = comm::make_host_communicator(point, rank, ranks, {});
  if (backend == "gloo") return comm::make_staged_communicator(std::move(gloo));
  comm::HostProbe probe;
  probe.heap_nbytes = int64_t{1} << 28;
  return comm::make_staged_communicator(comm::share_memory(std::move(gloo), probe).communicator);
}

void train_step(torch::nn::Sequential& net, ShardedModule& sharded) {
  sharded.zero_grad();
  net->forward(torch::ones({2, 64})).pow(2).mean().backward();
}

void measure(const std::string& backend, int ranks) {
  const auto store = c10::make_intrusive<CountingStore>();
  const Point point = std::make_shared<comm::MeetingPoint>(store, "memory", "127.0.0.1");
  std::vector<std::thread> threads;
  std::barrier meet(ranks);
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      at::set_num_threads(1);
      Use before = use_of(*store);
      // Runs `body` on all ranks. Then rank 0 prints the stage's costs while the other ranks wait.
      const auto stage = [&](const char* name, const std::function<void()>& body) {
        meet.arrive_and_wait();
        body();
        meet.arrive_and_wait();
        const Use now = use_of(*store);
        if (rank == 0) print_row(ranks, name, before, now);
        before = now;
        meet.arrive_and_wait();
      };
      if (backend == "join") {
        stage("join", [&] { point->join(rank, ranks, std::chrono::minutes(5)); });
        return;
      }
      std::shared_ptr<Communicator> communicator;
      stage("group", [&] { communicator = make_communicator(backend, point, rank, ranks); });
      stage("its twin", [&] { communicator->twin(); });
      torch::nn::Sequential net(torch::nn::Linear(64, 64), torch::nn::Tanh(), torch::nn::Linear(64, 64));
      Options options;
      options.communicator = communicator;
      options.auto_wrap_policy = [](const WrapCandidate& candidate) { return candidate.fqn == "0"; };
      std::shared_ptr<ShardedModule> sharded;
      stage("fully_shard", [&] { sharded = fully_shard(*net, options); });
      stage("first step", [&] { train_step(net, *sharded); });
      stage("second step", [&] { train_step(net, *sharded); });
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace fsdp

int main(int argc, char** argv) {
  const std::string backend = argc > 1 ? argv[1] : "";
  if ((backend != "gloo" && backend != "shm" && backend != "join") || argc < 3) {
    std::fputs("usage: start_up_costs gloo|shm|join RANKS...\n", stderr);
    return 2;
  }
  std::puts("| ranks | stage | requests | looks | bytes | Gloo's requests | Gloo's bytes | files | memory, KiB |");
  std::puts("|---|---|---|---|---|---|---|---|---|");
  for (int i = 2; i < argc; ++i) fsdp::measure(backend, std::atoi(argv[i]));
}
