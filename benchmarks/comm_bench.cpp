// Measures the time and the processor time of this library's collectives, over Gloo (loopback) and through shared
// memory, compared with c10d's ProcessGroupGloo and with a copy of the same size. All of them take turns. Usage, in one
// shell for each rank:
//   RANK=r WORLD_SIZE=n MASTER_ADDR=127.0.0.1 MASTER_PORT=29511 comm_bench [MiB...]
// Rank 0 prints one JSON array with one object for each row: name, MiB, seconds of each turn, and processor seconds of
// a turn on average.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "c10d_group.h"
#include "fsdp/backends.h"
#include "fsdp/communicator.h"
#include "fsdp/memory_sharing.h"
#include "process_use.h"

namespace {

using fsdp::benchmarks::process_cpu_seconds;

// One measured action. Rows of the same size take turns.
struct Row {
  std::string what;
  double mebibytes = 0;
  std::function<void()> action;
  std::vector<double> seconds = {};
  double cpu_seconds = 0;  // of this process, all threads, summed over all turns that count
};

class Bench {
 public:
  explicit Bench(const fsdp::RankEnvironment& place) : place_(place) {
    gloo_ = fsdp::make_gloo_communicator(place);
    group_ = fsdp::benchmarks::make_c10d_group(place, "comm_bench");
    fsdp::RankEnvironment beside = place;
    ++beside.master_port;
    shm_ = fsdp::make_shm_communicator(beside);
  }

  void run(double mebibytes) {
    const int64_t n = std::max<int64_t>(1, static_cast<int64_t>(mebibytes * 262144) / place_.world_size);
    auto full = at::ones({n * place_.world_size});
    auto shard = at::ones({n});
    auto own = full.narrow(0, n * place_.rank, n);
    auto narrow = full.to(at::kBFloat16);
    auto copy = at::empty_like(full);
    auto shared = shm_->memory_sharing().buffer(n * place_.world_size * 4, {}, next("buffer")).view(at::kFloat);
    auto slice = shared.narrow(0, n * place_.rank, n);
    slice.fill_(1);
    add("all_gather, Gloo", mebibytes, [=, this] { gloo_->all_gather(full, shard, next("gather"))->wait(); });
    add("all_gather, Gloo, in place", mebibytes, [=, this] { gloo_->all_gather(full, own, next("gather"))->wait(); });
    add("all_gather, c10d", mebibytes, [=, this] {
      at::Tensor output = full, input = shard;
      group_->_allgather_base(output, input)->wait();
    });
    add("all_gather, shm, shared buffer", mebibytes,
        [=, this] { shm_->all_gather(shared, slice, next("gather"))->wait(); });
    add("all_gather, shm, copied", mebibytes, [=, this] { shm_->all_gather(full, shard, next("gather"))->wait(); });
    add("reduce_scatter, Gloo", mebibytes,
        [=, this] { gloo_->reduce_scatter(shard, full, {0.5}, next("scatter"))->wait(); });
    add("reduce_scatter, c10d", mebibytes, [=, this] {
      at::Tensor output = shard, input = full;
      group_->_reduce_scatter_base(output, input)->wait();
    });
    add("reduce_scatter, shm, shared input", mebibytes, [=, this] { reduce_in_place(shard, full.nbytes()); });
    add("reduce_scatter, shm, copied", mebibytes,
        [=, this] { shm_->reduce_scatter(shard, full, {0.5}, next("scatter"))->wait(); });
    add("reduce_scatter, Gloo, bf16 into fp32", mebibytes / 2,
        [=, this] { gloo_->reduce_scatter(shard, narrow, {0.5}, next("scatter"))->wait(); });
    add("all_reduce, Gloo", mebibytes, [=, this] { gloo_->all_reduce(full, full, {0.5}, next("reduce"))->wait(); });
    add("all_reduce, c10d", mebibytes, [=, this] {
      std::vector<at::Tensor> tensors{full};
      group_->allreduce(tensors)->wait();
    });
    add("all_reduce, shm, copied", mebibytes,
        [=, this] { shm_->all_reduce(full, full, {0.5}, next("reduce"))->wait(); });
    add("memcpy, on all ranks at a time", mebibytes, [=] { at::Tensor(copy).copy_(full); });
    measure();
  }

  const nlohmann::json& measured() const { return measured_; }

 private:
  void add(const char* what, double mebibytes, std::function<void()> action) {
    rows_.push_back({what, mebibytes, std::move(action)});
  }

  // Reduces like the engine: the input was written directly to memory that other ranks read.
  void reduce_in_place(const at::Tensor& output, size_t nbytes) {
    const at::Tensor input = shm_->memory_sharing().reduction_input(static_cast<int64_t>(nbytes)).view(at::kFloat);
    shm_->reduce_scatter(output, input, {0.5}, next("scatter"))->wait();
  }

  void measure() {
    constexpr int kTurns = 16;  // the first turn does not count
    for (int turn = 0; turn < kTurns; ++turn) {
      for (Row& row : rows_) {
        gloo_->barrier(next("barrier"));
        const double cpu_before = process_cpu_seconds();
        const auto start = std::chrono::steady_clock::now();
        row.action();
        if (turn == 0) continue;
        row.seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
        row.cpu_seconds += process_cpu_seconds() - cpu_before;
      }
    }
    for (const Row& row : rows_) {
      measured_.push_back({{"what", row.what},
                           {"mib", row.mebibytes},
                           {"seconds", row.seconds},
                           {"cpu_seconds", row.cpu_seconds / static_cast<double>(row.seconds.size())}});
    }
    rows_.clear();
  }

  fsdp::CollectiveId next(const char* name) { return {name, generation_++, fsdp::Pass::kUser}; }

  fsdp::RankEnvironment place_;
  std::shared_ptr<fsdp::Communicator> gloo_, shm_;
  c10::intrusive_ptr<c10d::ProcessGroupGloo> group_;
  std::vector<Row> rows_;
  nlohmann::json measured_ = nlohmann::json::array();
  uint64_t generation_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  at::set_num_threads(1);
  const fsdp::RankEnvironment place = fsdp::rank_environment();
  Bench bench(place);
  if (argc < 2) bench.run(64);
  for (int i = 1; i < argc; ++i) bench.run(std::atof(argv[i]));
  if (place.rank == 0) std::printf("%s\n", bench.measured().dump().c_str());
  return 0;
}
