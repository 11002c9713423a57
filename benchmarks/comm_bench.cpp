// Time and local cost of the collectives of this library against those of c10d's ProcessGroupGloo, over
// loopback. Usage, in one shell for each rank:  RANK=r WORLD_SIZE=n MASTER_ADDR=127.0.0.1 MASTER_PORT=29511
// comm_bench [MiB...]
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

#include "c10d_group.h"
#include "fsdp/communicator.h"
#include "process_use.h"

namespace {

using fsdp::benchmarks::process_cpu_seconds;

struct Measurement {
  double seconds = 0;      // median of the repetitions
  double cpu_seconds = 0;  // of this process, all threads, for one repetition
};

Measurement measure(const std::function<void()>& action) {
  constexpr int kRepetitions = 15;
  action();
  std::vector<double> times;
  const double cpu_before = process_cpu_seconds();
  for (int i = 0; i < kRepetitions; ++i) {
    const auto start = std::chrono::steady_clock::now();
    action();
    times.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  std::sort(times.begin(), times.end());
  return {times[times.size() / 2], (process_cpu_seconds() - cpu_before) / kRepetitions};
}

void report(const char* what, double mebibytes, const Measurement& m) {
  std::printf("%-34s %8.2f MiB  %9.3f ms  %6.2f GB/s of tensor  cpu %9.3f ms\n", what, mebibytes, m.seconds * 1e3,
              mebibytes * 1048576 / m.seconds / 1e9, m.cpu_seconds * 1e3);
}

class Bench {
 public:
  explicit Bench(const fsdp::RankEnvironment& place) : place_(place) {
    comm_ = fsdp::make_gloo_communicator(place);
    group_ = fsdp::benchmarks::make_c10d_group(place, "comm_bench");
  }

  void run(double mebibytes) {
    const int64_t n = std::max<int64_t>(1, static_cast<int64_t>(mebibytes * 262144) / place_.world_size);
    auto full = at::ones({n * place_.world_size});
    auto shard = at::ones({n});
    auto own = full.narrow(0, n * place_.rank, n);
    show("all_gather, in place", mebibytes, [&] { comm_->all_gather(full, own, next("gather"))->wait(); });
    show("all_gather", mebibytes, [&] { comm_->all_gather(full, shard, next("gather"))->wait(); });
    show("c10d _allgather_base", mebibytes, [&] { group_->_allgather_base(full, shard)->wait(); });
    show("reduce_scatter", mebibytes, [&] { comm_->reduce_scatter(shard, full, {0.5}, next("scatter"))->wait(); });
    show("c10d _reduce_scatter_base", mebibytes, [&] { group_->_reduce_scatter_base(shard, full)->wait(); });
    show("all_reduce", mebibytes, [&] { comm_->all_reduce(full, full, {0.5}, next("reduce"))->wait(); });
    show("c10d allreduce", mebibytes, [&] {
      std::vector<at::Tensor> tensors{full};
      group_->allreduce(tensors)->wait();
    });
    auto narrow = full.to(at::kBFloat16);
    show("reduce_scatter bf16 into fp32", mebibytes / 2,
         [&] { comm_->reduce_scatter(shard, narrow, {0.5}, next("scatter"))->wait(); });
  }

 private:
  void show(const char* what, double mebibytes, const std::function<void()>& action) {
    comm_->barrier(next("barrier"));
    const auto measurement = measure(action);
    if (place_.rank == 0) report(what, mebibytes, measurement);
  }

  fsdp::CollectiveId next(const char* name) { return {name, generation_++, fsdp::Pass::kUser}; }

  fsdp::RankEnvironment place_;
  std::shared_ptr<fsdp::Communicator> comm_;
  c10::intrusive_ptr<c10d::ProcessGroupGloo> group_;
  uint64_t generation_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  at::set_num_threads(1);
  Bench bench(fsdp::rank_environment());
  if (argc < 2) bench.run(64);
  for (int i = 1; i < argc; ++i) bench.run(std::atof(argv[i]));
  return 0;
}
