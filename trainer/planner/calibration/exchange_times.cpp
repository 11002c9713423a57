#include "planner/calibration/exchange_times.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/ones.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <string>
#include <utility>

#include "fsdp/memory_sharing.h"
#include "report_page/comparison.h"

namespace fsdp::planner {
namespace {

using comm::CollectiveKind;

constexpr int64_t kBytesOfElement = 4;

// Repeats collectives of one group.
class ExchangeTimer {
 public:
  ExchangeTimer(Communicator& world, std::shared_ptr<Communicator> group)
      : world_(world), group_(std::move(group)), shares_memory_(group_->memory_sharing().reads_in_place()) {}

  void measure(int64_t bytes);
  std::vector<ExchangeCurve> take() { return std::move(curves_); }

 private:
  using Action = std::function<void()>;
  // `prepare` is called before each repetition, outside of the time.
  void add(CollectiveKind kind, HostPath path, int64_t bytes, const Action& prepare, const Action& action);
  void add_bytes(int64_t bytes);
  void exchange_with_neighbour(const at::Tensor& sent);
  void add_in_place(int64_t bytes);
  double median_seconds(int64_t bytes, const Action& prepare, const Action& action);
  at::Tensor reduction_input(int64_t elements);
  HostPath path() const { return shares_memory_ ? HostPath::kMemory : HostPath::kGloo; }
  CollectiveId next() { return {"calibration", number_++, Pass::kUser}; }

  Communicator& world_;
  std::shared_ptr<Communicator> group_;
  bool shares_memory_;
  uint64_t number_ = 0;
  std::vector<ExchangeCurve> curves_;
};

double ExchangeTimer::median_seconds(int64_t bytes, const Action& prepare, const Action& action) {
  constexpr int64_t kLarge = int64_t{1} << 22;
  const int repetitions = bytes >= kLarge ? 5 : 15;
  prepare();
  action();  // connects, and makes buffers
  std::vector<double> seconds;
  for (int i = 0; i < repetitions; ++i) {
    prepare();
    world_.barrier(next());
    const auto began = std::chrono::steady_clock::now();
    action();
    seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count());
  }
  return trainer::median(std::move(seconds));
}

void ExchangeTimer::add(CollectiveKind kind, HostPath path, int64_t bytes, const Action& prepare,
                        const Action& action) {
  const TimePoint point{.bytes = static_cast<double>(bytes), .seconds = median_seconds(bytes, prepare, action)};
  for (ExchangeCurve& curve : curves_) {
    if (curve.kind == kind && curve.path == path) return curve.points.push_back(point);
  }
  curves_.push_back({.kind = kind, .path = path, .ranks = group_->size(), .points = {point}});
}

// Returns memory as the engine's gradients have it: other ranks read it in place if they can. It is written before the
// clock starts.
at::Tensor ExchangeTimer::reduction_input(int64_t elements) {
  if (!shares_memory_) return at::ones({elements});
  return group_->memory_sharing().reduction_input(elements * kBytesOfElement).view(at::kFloat).fill_(1);
}

void ExchangeTimer::measure(int64_t bytes) {
  const int64_t ranks = group_->size();
  const int64_t part = std::max<int64_t>(1, bytes / kBytesOfElement / ranks);
  const at::Tensor whole = at::ones({part * ranks}), own = at::ones({part});
  const int64_t nbytes = part * ranks * kBytesOfElement;
  at::Tensor input;
  const Action no_preparation = [] {};
  const Action write_input = [&] {
    if (shares_memory_ || !input.defined()) input = reduction_input(part * ranks);
  };
  add(CollectiveKind::kAllGather, path(), nbytes, no_preparation,
      [&] { group_->all_gather(whole, own, next())->wait(); });
  add(CollectiveKind::kReduceScatter, path(), nbytes, write_input,
      [&] { group_->reduce_scatter(own, input, {0.5}, next())->wait(); });
  add(CollectiveKind::kAllReduce, path(), nbytes, write_input,
      [&] { group_->all_reduce(input, input, {0.5}, next())->wait(); });
  add(CollectiveKind::kBroadcast, path(), nbytes, no_preparation, [&] { group_->broadcast(whole, 0, next())->wait(); });
  add(CollectiveKind::kMessage, path(), nbytes, no_preparation, [&] { exchange_with_neighbour(whole); });
  if (shares_memory_) add_in_place(nbytes);
  if (bytes <= int64_t{1} << 16) add_bytes(bytes);
}

// Neighbours exchange tensors of this size; the last one of an odd number of ranks has none.
void ExchangeTimer::exchange_with_neighbour(const at::Tensor& sent) {
  const int neighbour = group_->rank() ^ 1;
  const CollectiveId id = next();
  if (neighbour >= group_->size()) return;
  const at::Tensor received = at::empty_like(sent);
  group_->send(sent, neighbour, id);  // arrives without a wait
  group_->recv(received, neighbour, id)->wait();
}

void ExchangeTimer::add_in_place(int64_t bytes) {
  const int64_t part = bytes / group_->size();
  const at::Tensor buffer = group_->memory_sharing().buffer(bytes, {}, next());
  const at::Tensor slice = buffer.narrow(0, part * group_->rank(), part);
  slice.fill_(1);
  add(
      CollectiveKind::kAllGather, HostPath::kInPlace, bytes, [] {},
      [&] { group_->all_gather(buffer, slice, next())->wait(); });
}

void ExchangeTimer::add_bytes(int64_t bytes) {
  const std::string text(static_cast<size_t>(bytes), '.');
  add(CollectiveKind::kGatherBytes, path(), bytes, [] {}, [&] { group_->all_gather_bytes(text, next()); });
}

}  // namespace

std::vector<ExchangeCurve> measure_exchanges(Communicator& world, const std::shared_ptr<Communicator>& group,
                                             const std::vector<int64_t>& sizes) {
  ExchangeTimer timer(world, group);
  for (const int64_t bytes : sizes) timer.measure(bytes);
  world.barrier({"calibration", 0, Pass::kUser});  // so that no rank leaves its group before the others are done
  return timer.take();
}

}  // namespace fsdp::planner
