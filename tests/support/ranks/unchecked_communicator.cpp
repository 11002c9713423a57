#include "support/ranks/unchecked_communicator.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>
#include <numeric>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/error_message.h"
#include "comm/collective_shapes.h"
#include "comm/fake_communicator.h"
#include "comm/meeting/meeting_point.h"

namespace fsdp::testing {

// Keeps the contributions of all ranks to all collectives, so that no rank has to wait for slow readers.
class UncheckedHub {
 public:
  struct Part {
    std::string bytes;
    std::vector<uint64_t> flags;
    bool there = false;
  };

  UncheckedHub(int size, std::vector<int> names, const UncheckedOptions& options)
      : size(size),
        names(std::move(names)),
        options(options),
        point(options.has_meeting_point ? comm::make_in_memory_meeting_point() : nullptr) {}

  void put(uint64_t number, int rank, Part part) {
    std::lock_guard lock(mutex_);
    auto& parts = parts_[number];
    parts.resize(static_cast<size_t>(size));
    part.there = true;
    parts[static_cast<size_t>(rank)] = std::move(part);
    changed_.notify_all();
  }

  std::vector<Part> take_all(uint64_t number) {
    std::unique_lock lock(mutex_);
    const auto complete = [&] {
      const auto& parts = parts_[number];
      return !aborted_.empty() ||
             (!parts.empty() && std::all_of(parts.begin(), parts.end(), [](const Part& part) { return part.there; }));
    };
    const bool in_time = changed_.wait_for(lock, options.timeout, complete);
    if (!aborted_.empty()) throw std::runtime_error(aborted_);
    if (!in_time) throw std::runtime_error("the collective timed out");
    return parts_[number];
  }

  void put_message(int from, int to, std::string bytes) {
    std::lock_guard lock(mutex_);
    messages_[{from, to}].push_back(std::move(bytes));
    changed_.notify_all();
  }

  std::string message(int from, int to, size_t number) {
    std::unique_lock lock(mutex_);
    const std::vector<std::string>& sent = messages_[{from, to}];
    const bool in_time =
        changed_.wait_for(lock, options.timeout, [&] { return !aborted_.empty() || sent.size() > number; });
    if (!aborted_.empty()) throw std::runtime_error(aborted_);
    if (!in_time) throw std::runtime_error("the message timed out");
    return sent[number];
  }

  void abort(const std::string& reason) {
    std::lock_guard lock(mutex_);
    if (aborted_.empty()) aborted_ = reason;
    for (auto& [key, child] : children_) child->abort(reason);
    changed_.notify_all();
  }

  std::shared_ptr<UncheckedHub> child(const std::string& key, const std::vector<int>& members) {
    std::lock_guard lock(mutex_);
    std::shared_ptr<UncheckedHub>& child = children_[key];
    if (!child) {
      std::vector<int> child_names;
      for (int member : members) child_names.push_back(names[static_cast<size_t>(member)]);
      child = std::make_shared<UncheckedHub>(static_cast<int>(members.size()), std::move(child_names), options);
    }
    return child;
  }

  const int size;
  const std::vector<int> names;
  const UncheckedOptions options;
  const std::shared_ptr<comm::MeetingPoint> point;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<uint64_t, std::vector<Part>> parts_;
  std::map<std::pair<int, int>, std::vector<std::string>> messages_;  // by sender and receiver
  std::string aborted_;
  std::map<std::string, std::shared_ptr<UncheckedHub>> children_;
};

namespace {

using Parts = std::vector<UncheckedHub::Part>;

std::string bytes_of(const at::Tensor& tensor) {
  return {static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes()};
}

// Copies bytes from `begin` on, as many as are available; the rest of the tensor is unchanged.
void fill(const at::Tensor& tensor, const std::string& bytes, size_t begin = 0) {
  const size_t available = bytes.size() > begin ? bytes.size() - begin : 0;
  if (const size_t count = std::min<size_t>(available, tensor.nbytes())) {
    std::memcpy(tensor.mutable_data_ptr(), bytes.data() + begin, count);
  }
}

class UncheckedWork final : public Work {
 public:
  UncheckedWork(std::shared_ptr<UncheckedHub> hub, uint64_t number, std::vector<uint64_t>* flags,
                std::function<void(const Parts&)> finish)
      : hub_(std::move(hub)), number_(number), flags_(flags), finish_(std::move(finish)) {}

  void wait() override {
    at::NoGradGuard no_grad;
    const Parts parts = hub_->take_all(number_);
    finish_(parts);
    if (!flags_) return;
    for (const auto& part : parts) {
      for (size_t i = 0; i < std::min(flags_->size(), part.flags.size()); ++i) (*flags_)[i] |= part.flags[i];
    }
  }

 private:
  std::shared_ptr<UncheckedHub> hub_;
  uint64_t number_;
  std::vector<uint64_t>* flags_;
  std::function<void(const Parts&)> finish_;
};

class UncheckedReceive final : public Work {
 public:
  UncheckedReceive(std::shared_ptr<UncheckedHub> hub, at::Tensor output, int from, int to, size_t number)
      : hub_(std::move(hub)), output_(std::move(output)), from_(from), to_(to), number_(number) {}
  void wait() override { fill(output_, hub_->message(from_, to_, number_)); }

 private:
  std::shared_ptr<UncheckedHub> hub_;
  at::Tensor output_;
  int from_;
  int to_;
  size_t number_;
};

class UncheckedCommunicator final : public Communicator {
 public:
  UncheckedCommunicator(std::shared_ptr<UncheckedHub> hub, int rank)
      : hub_(std::move(hub)), rank_(rank), received_(static_cast<size_t>(hub_->size)) {}

  int rank() const override { return rank_; }
  int size() const override { return hub_->size; }
  std::string backend() const override { return "unchecked"; }

  std::unique_ptr<Work> all_gather(at::Tensor output, at::Tensor input, const CollectiveId&) override {
    return issue(bytes_of(input), nullptr, [output, n = input.numel()](const Parts& parts) {
      for (size_t rank = 0; rank < parts.size(); ++rank) {
        fill(output.narrow(0, static_cast<int64_t>(rank) * n, n), parts[rank].bytes);
      }
    });
  }

  std::unique_ptr<Work> reduce_scatter(at::Tensor output, at::Tensor input, const ReduceOptions& options,
                                       const CollectiveId&, std::vector<uint64_t>* flags) override {
    const size_t begin = static_cast<size_t>(rank_) * output.numel() * input.element_size();
    return issue(bytes_of(input), flags, sum_into(output, input.scalar_type(), options.scale, begin));
  }

  std::unique_ptr<Work> all_reduce(at::Tensor output, at::Tensor tensor, const ReduceOptions& options,
                                   const CollectiveId&, std::vector<uint64_t>* flags) override {
    return issue(bytes_of(tensor), flags, sum_into(output, tensor.scalar_type(), options.scale, 0));
  }

  std::unique_ptr<Work> broadcast(at::Tensor tensor, int root, const CollectiveId&) override {
    return issue(bytes_of(tensor), nullptr,
                 [tensor, root](const Parts& parts) { fill(tensor, parts[static_cast<size_t>(root)].bytes); });
  }

  // Each rank stores all data that it sends, with the counts as flags.
  std::unique_ptr<Work> all_to_all(at::Tensor output, at::Tensor input, const SplitCounts& counts,
                                   const CollectiveId&) override {
    const uint64_t number = next_number_++;
    hub_->put(number, rank_, {bytes_of(input), {counts.send.begin(), counts.send.end()}});
    const size_t width = input.element_size();
    return std::make_unique<UncheckedWork>(
        hub_, number, nullptr, [output, counts, width, rank = rank_](const Parts& parts) {
          const std::vector<at::Tensor> slices = output.split_with_sizes(counts.receive);
          for (size_t peer = 0; peer < parts.size(); ++peer) {
            const auto& sent = parts[peer].flags;
            const size_t begin = std::accumulate(sent.begin(), sent.begin() + rank, uint64_t{0}) * width;
            fill(slices[peer], parts[peer].bytes, begin);
          }
        });
  }

  std::unique_ptr<Work> send(at::Tensor tensor, int to, const CollectiveId&) override {
    hub_->put_message(rank_, to, bytes_of(tensor));
    return comm::make_done_work();
  }

  std::unique_ptr<Work> recv(at::Tensor output, int from, const CollectiveId&) override {
    return std::make_unique<UncheckedReceive>(hub_, std::move(output), from, rank_,
                                              received_[static_cast<size_t>(from)]++);
  }

  std::vector<std::string> all_gather_bytes(const std::string& bytes, const CollectiveId&) override {
    std::vector<std::string> result;
    issue(bytes, nullptr, [&](const Parts& parts) {
      for (const auto& part : parts) result.push_back(part.bytes);
    })->wait();
    return result;
  }

  std::shared_ptr<Communicator> subgroup(const std::vector<int>& members, const CollectiveId& id) override {
    const int position = comm::check_subgroup(members, rank_, size(), id);
    const uint64_t number = next_number_;
    all_gather_bytes("", id);
    const std::string key = c10::str(number, ": ", c10::Join(",", members));
    return make_unchecked_communicator(hub_->child(key, members), position);
  }

  std::shared_ptr<Communicator> twin() override {
    if (!twin_) {
      std::vector<int> all(static_cast<size_t>(size()));
      std::iota(all.begin(), all.end(), 0);
      twin_ = make_unchecked_communicator(hub_->child("twin", all), rank_);
    }
    return twin_;
  }

  std::shared_ptr<comm::MeetingPoint> meeting_point() const override { return hub_->point; }
  std::chrono::milliseconds timeout() const override { return hub_->options.timeout; }
  int world_rank(int rank) const override { return hub_->names[static_cast<size_t>(rank)]; }
  void abort(const std::string& reason) override { hub_->abort(reason); }
  std::vector<uint64_t> bytes_sent_to() const override { return std::vector<uint64_t>(static_cast<size_t>(size())); }

 private:
  std::unique_ptr<Work> issue(std::string bytes, std::vector<uint64_t>* flags,
                              std::function<void(const Parts&)> finish) {
    const uint64_t number = next_number_++;
    hub_->put(number, rank_, {std::move(bytes), flags ? *flags : std::vector<uint64_t>{}});
    return std::make_unique<UncheckedWork>(hub_, number, flags, std::move(finish));
  }

  // Returns a function that adds the contributions in rank order, in fp32 for bf16 and fp16.
  static std::function<void(const Parts&)> sum_into(at::Tensor output, at::ScalarType dtype, double scale,
                                                    size_t begin) {
    return [=](const Parts& parts) {
      const bool narrow = dtype == at::kBFloat16 || dtype == at::kHalf;
      at::Tensor sum = at::zeros({output.numel()}, narrow ? at::kFloat : dtype);
      for (const auto& part : parts) {
        at::Tensor contribution = at::zeros({output.numel()}, dtype);
        fill(contribution, part.bytes, begin);
        sum.add_(contribution);
      }
      output.copy_(scale == 1.0 ? sum : sum * scale);
    };
  }

  std::shared_ptr<UncheckedHub> hub_;
  int rank_;
  uint64_t next_number_ = 0;
  std::vector<size_t> received_;  // messages, by sender
  std::shared_ptr<Communicator> twin_;
};

}  // namespace

std::shared_ptr<UncheckedHub> make_unchecked_hub(int size, const UncheckedOptions& options) {
  std::vector<int> names(static_cast<size_t>(size));
  std::iota(names.begin(), names.end(), 0);
  return std::make_shared<UncheckedHub>(size, std::move(names), options);
}

std::shared_ptr<Communicator> make_unchecked_communicator(const std::shared_ptr<UncheckedHub>& hub, int rank) {
  return std::make_shared<UncheckedCommunicator>(hub, rank);
}

void run_unchecked_ranks(int world_size, const std::function<void(std::shared_ptr<Communicator>)>& body,
                         const UncheckedOptions& options) {
  const auto hub = make_unchecked_hub(world_size, options);
  std::mutex mutex;
  std::string errors;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world_size; ++rank) {
    threads.emplace_back([&, rank] {
      at::set_num_threads(1);
      try {
        body(make_unchecked_communicator(hub, rank));
      } catch (const std::exception& error) {
        std::lock_guard lock(mutex);
        errors += c10::str("rank ", rank, ": ", base::message_of(error), "\n");
      }
    });
  }
  for (auto& thread : threads) thread.join();
  if (!errors.empty()) throw std::runtime_error(errors);
}

}  // namespace fsdp::testing
