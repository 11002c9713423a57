#include "state/async_save.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <functional>
#include <future>
#include <utility>

#include "state/pieces.h"
#include "state/together.h"

namespace fsdp::state {

namespace {

constexpr const char* kReady = "1";
constexpr const char* kBusy = "0";

}  // namespace

// Runs a step in its own thread and stores its outcome. The destructor waits for the thread.
class AsyncSave::Task {
 public:
  explicit Task(std::function<std::string()> step)
      : outcome_(std::async(std::launch::async, [step = std::move(step)] { return outcome_of(step); })) {}

  bool is_done() const { return outcome_.wait_for(std::chrono::seconds(0)) == std::future_status::ready; }
  void wait() const { outcome_.wait(); }
  std::string take_outcome() { return outcome_.get(); }

 private:
  std::future<std::string> outcome_;
};

AsyncSave::AsyncSave(const std::filesystem::path& folder, const TrainingState& state, nlohmann::json user,
                     std::shared_ptr<Communicator> world, std::shared_ptr<HostCopies> copies)
    : world_(std::move(world)), copies_(std::move(copies)), user_(std::move(user)), target_(folder, *world_) {
  auto pieces = std::make_shared<RankPieces>();
  const TiedSavers tied = savers_of_tied(state.parts, state.tied, exchange_in(*world_, target_.what()), target_.what());
  together(*world_, target_.what(), [&] {
    *pieces = pieces_of(state, world_->rank(), tied);
    copies_->take(pieces->pieces);
    return std::string();
  });
  task_ = std::make_unique<Task>([this, pieces] { return target_.write(*pieces, nullptr); });
}

AsyncSave::~AsyncSave() = default;

bool AsyncSave::advance() {
  if (stage_ != Stage::kEnded && all_have_done(/*wait=*/false)) take_next_step();
  return stage_ == Stage::kEnded;
}

void AsyncSave::finish() {
  while (stage_ != Stage::kEnded) {
    all_have_done(/*wait=*/true);
    take_next_step();
  }
}

bool AsyncSave::all_have_done(bool wait) {
  if (wait) task_->wait();
  const auto ranks = world_->all_gather_bytes(task_->is_done() ? kReady : kBusy, {target_.what(), 0, Pass::kUser});
  return std::all_of(ranks.begin(), ranks.end(), [](const std::string& rank) { return rank == kReady; });
}

void AsyncSave::take_next_step() {
  const std::string outcome = std::exchange(task_, nullptr)->take_outcome();
  std::vector<std::string> results;
  try {
    results = agree_on(exchange_in(*world_, target_.what()), target_.what(), outcome);
  } catch (...) {
    move_to(Stage::kEnded);
    throw;
  }
  if (stage_ == Stage::kCommitting) {
    move_to(Stage::kEnded);
    return;
  }
  move_to(Stage::kCommitting);
  task_ = std::make_unique<Task>([this, results = std::move(results)] {
    target_.commit(results, user_);
    return std::string();
  });
}

void AsyncSave::move_to(Stage next) {
  const bool allowed =
      next == Stage::kEnded ? stage_ != Stage::kEnded : stage_ == Stage::kWriting && next == Stage::kCommitting;
  TORCH_INTERNAL_ASSERT(allowed, "AsyncSave: from ", static_cast<int>(stage_), " to ", static_cast<int>(next));
  stage_ = next;
}

}  // namespace fsdp::state
