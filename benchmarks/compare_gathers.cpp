// Times all-gathers of a fixed total size, split into collectives of different sizes: this library's communicator and
// c10d's ProcessGroupGloo, which PyTorch uses from Python. This program is one rank of the first experiment of
// benchmarks/compare, with the environment of torchrun. Usage: compare_gathers TOTAL SEED SIZE…, where TOTAL is the
// number of fp32 elements in all gathers of one form together, and SIZE that in the output of one gather. Rank 0 prints
// seconds by form and size, as JSON.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "c10d_group.h"
#include "fsdp/backends.h"
#include "fsdp/communicator.h"

namespace {

// The tensors for gathers of one size, and the forms in which they are gathered.
class Gathers {
 public:
  struct Form {
    std::string name;
    std::function<void()> gather;
  };

  Gathers(const fsdp::RankEnvironment& place, fsdp::Communicator& ours, c10d::ProcessGroupGloo& theirs, int64_t size)
      : rank_(place.rank), ranks_(place.world_size), ours_(ours), theirs_(theirs), part_(size / ranks_) {
    full_ = at::zeros({part_ * ranks_});
    shard_ = at::ones({part_});
    for (int rank = 0; rank < ranks_; ++rank) list_.push_back(at::zeros({part_}));
  }

  std::vector<Form> forms() {
    std::vector<Form> all{{"fsdp.cpp even, in place", [this] { gather(full_, full_.narrow(0, part_ * rank_, part_)); }},
                          {"fsdp.cpp even", [this] { gather(full_, shard_); }},
                          {"fsdp.cpp list", [this] { gather_list(); }},
                          {"c10d even", [this] { theirs_._allgather_base(full_, shard_)->wait(); }},
                          {"c10d list", [this] {
                             std::vector<std::vector<at::Tensor>> outputs{list_};
                             std::vector<at::Tensor> inputs{shard_};
                             theirs_.allgather(outputs, inputs)->wait();
                           }}};
    for (const int64_t moved : {int64_t{1}, int64_t{1000000}}) add_uneven(all, moved);
    return all;
  }

 private:
  void gather(const at::Tensor& output, const at::Tensor& input) {
    ours_.all_gather(output, input, {"gather", generation_++, fsdp::Pass::kUser})->wait();
  }
  void gather_list() {
    gather(full_, shard_);
    for (int rank = 0; rank < ranks_; ++rank) {
      list_[static_cast<size_t>(rank)].copy_(full_.narrow(0, part_ * rank, part_));
    }
  }
  // Adds gathers of uneven shards: `moved` elements move from rank 1 to rank 0.
  void add_uneven(std::vector<Form>& all, int64_t moved) {
    if (moved >= part_ || ranks_ < 2) return;
    const std::string by = " uneven by " + std::to_string(moved);
    const auto padded = std::make_shared<at::Tensor>(at::zeros({(part_ + moved) * ranks_}));
    all.push_back({"fsdp.cpp" + by + ", padded", [this, moved, padded] {
                     gather(*padded, padded->narrow(0, (part_ + moved) * rank_, part_ + moved));
                   }});
    const auto parts = std::make_shared<std::vector<at::Tensor>>();
    for (int rank = 0; rank < ranks_; ++rank) {
      parts->push_back(at::zeros({part_ + (rank == 0 ? moved : rank == 1 ? -moved : 0)}));
    }
    all.push_back({"c10d" + by + ", broadcasts", [this, parts] {
                     for (int rank = 0; rank < ranks_; ++rank) {
                       std::vector<at::Tensor> tensors{(*parts)[static_cast<size_t>(rank)]};
                       c10d::BroadcastOptions options;
                       options.rootRank = rank;
                       theirs_.broadcast(tensors, options)->wait();
                     }
                   }});
  }

  int rank_, ranks_;
  fsdp::Communicator& ours_;
  c10d::ProcessGroupGloo& theirs_;
  int64_t part_;
  uint64_t generation_ = 0;
  at::Tensor full_, shard_;
  std::vector<at::Tensor> list_;
};

double seconds_of(fsdp::Communicator& ours, const std::function<void()>& gather, int64_t times) {
  static uint64_t generation = 0;
  gather();
  ours.barrier({"begin", generation++, fsdp::Pass::kUser});
  const auto start = std::chrono::steady_clock::now();
  for (int64_t time = 0; time < times; ++time) gather();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) {
    std::fprintf(stderr, "usage: compare_gathers TOTAL SEED SIZE...\n");
    return 2;
  }
  at::set_num_threads(1);
  const fsdp::RankEnvironment place = fsdp::rank_environment();
  const auto ours = fsdp::make_gloo_communicator(place);
  const auto theirs = fsdp::benchmarks::make_c10d_group(place, "compare_gathers");
  const int64_t total = std::atoll(argv[1]);
  std::mt19937 order(static_cast<unsigned>(std::atoi(argv[2])));  // the same on all ranks
  nlohmann::json seconds = nlohmann::json::object();
  for (int argument = 3; argument < argc; ++argument) {
    const int64_t size = std::atoll(argv[argument]);
    Gathers gathers(place, *ours, *theirs, size);
    auto forms = gathers.forms();
    std::shuffle(forms.begin(), forms.end(), order);
    for (const auto& form : forms) {
      seconds[form.name][argv[argument]] = seconds_of(*ours, form.gather, std::max<int64_t>(1, total / size));
    }
  }
  if (place.rank == 0) std::printf("%s\n", seconds.dump().c_str());
  ours->barrier({"end", 0, fsdp::Pass::kUser});
  return 0;
}
