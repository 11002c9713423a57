#include <c10/util/Exception.h>

#include <algorithm>
#include <map>
#include <set>

#include "pipeline_schedule/messages.h"
#include "pipeline_schedule/stage_progress.h"
#include "pipeline_schedule/standstill.h"
#include "pipeline_schedule/well_formed.h"

namespace fsdp {
namespace {

using pipeline_schedule::Message;
using pipeline_schedule::StageProgress;

bool communicates(const PipelineSchedule& schedule) {
  return std::any_of(schedule.of_rank.begin(), schedule.of_rank.end(), [](const auto& order) {
    return std::any_of(order.begin(), order.end(), [](const PipelineAction& action) {
      return pipeline_schedule::sent_by(action) || pipeline_schedule::received_by(action);
    });
  });
}

// What was sent and what is to be received on the way from one rank to another. The k-th of the one is the k-th of the
// other.
struct Channel {
  std::vector<Message> sent, received;
};

// Goes through a schedule as ranks would that run at any speed. Receives do not block, passes wait for their inputs.
class Walk {
 public:
  explicit Walk(const PipelineSchedule& schedule)
      : schedule_(schedule),
        next_(schedule.of_rank.size()),
        at_hand_(schedule.of_rank.size()),
        stages_(schedule.rank_of_stage.size(), StageProgress(schedule.micro_batches)) {
    facts_.communicates = communicates(schedule);
    facts_.most_in_flight.resize(schedule.rank_of_stage.size());
    facts_.most_in_flight_of_rank.resize(schedule.of_rank.size());
  }

  PipelineScheduleFacts run() {
    bool moved = true;
    while (moved) {
      moved = false;
      for (int rank = 0; rank < schedule_.ranks(); ++rank) {
        while (take_next(rank)) moved = true;
      }
    }
    for (size_t rank = 0; rank < next_.size(); ++rank) {
      TORCH_CHECK(next_[rank] == schedule_.of_rank[rank].size(), pipeline_schedule::standstill_text(schedule_, next_));
    }
    check_end();
    return facts_;
  }

 private:
  std::string here(int rank) const { return pipeline_schedule::place_of(schedule_, rank, next_[index(rank)]); }
  static size_t index(int number) { return static_cast<size_t>(number); }
  int rank_of(int stage) const { return schedule_.rank_of_stage[index(stage)]; }

  bool take_next(int rank) {
    if (next_[index(rank)] == schedule_.of_rank[index(rank)].size()) return false;
    const PipelineAction& action = schedule_.of_rank[index(rank)][next_[index(rank)]];
    if (const auto needed = pipeline_schedule::needed_by(action, schedule_.stages())) {
      if (!at_hand_[index(rank)].contains(*needed)) return false;
    }
    count(action, rank);
    if (const auto made = pipeline_schedule::made_by(action, schedule_.stages())) make(*made, rank);
    if (const auto sent = pipeline_schedule::sent_by(action)) send(*sent, rank);
    if (const auto received = pipeline_schedule::received_by(action)) receive(*received, rank);
    ++next_[index(rank)];
    return true;
  }

  void count(const PipelineAction& action, int rank) {
    const std::string wrong = stages_[index(action.stage)].take(action);
    TORCH_CHECK(wrong.empty(), here(rank), ": ", wrong);
    int& of_stage = facts_.most_in_flight[index(action.stage)];
    of_stage = std::max(of_stage, stages_[index(action.stage)].in_flight());
    int in_flight = 0;
    for (int stage = 0; stage < schedule_.stages(); ++stage) {
      if (rank_of(stage) == rank) in_flight += stages_[index(stage)].in_flight();
    }
    int& of_rank = facts_.most_in_flight_of_rank[index(rank)];
    of_rank = std::max(of_rank, in_flight);
  }

  void make(const Message& message, int rank) {
    made_.insert(message);
    const int receiver = rank_of(message.receiver());
    if (receiver == rank || !facts_.communicates) at_hand_[index(receiver)].insert(message);
  }

  void send(const Message& message, int rank) {
    TORCH_CHECK(made_.contains(message), here(rank), ": there is nothing to send: ", to_string(message),
                " are not made, or the next stage does not need them");
    const int receiver = rank_of(message.receiver());
    TORCH_CHECK(receiver != rank, here(rank), ": stage ", message.receiver(), " is on the same rank");
    TORCH_CHECK(sent_.insert(message).second, here(rank), ": ", to_string(message), " have been sent before");
    Channel& channel = channels_[{rank, receiver}];
    channel.sent.push_back(message);
    match(channel, channel.sent.size() - 1, rank, receiver);
  }

  void receive(const Message& message, int rank) {
    TORCH_CHECK(message.stage >= 0 && message.stage < schedule_.stages(), here(rank), ": there is no stage ",
                message.stage, " to receive from");
    const int sender = rank_of(message.stage);
    TORCH_CHECK(sender != rank, here(rank), ": stage ", message.stage, " is on the same rank");
    Channel& channel = channels_[{sender, rank}];
    channel.received.push_back(message);
    match(channel, channel.received.size() - 1, sender, rank);
  }

  // What was sent arrives once its receiver has asked for it.
  void match(const Channel& channel, size_t i, int sender, int receiver) {
    if (i >= channel.sent.size() || i >= channel.received.size()) return;
    TORCH_CHECK(channel.sent[i] == channel.received[i], "rank ", receiver, " receives ", to_string(channel.received[i]),
                " as message ", i + 1, " from rank ", sender, ", which sends ", to_string(channel.sent[i]),
                ": receives must stand in the order of the sends");
    at_hand_[index(receiver)].insert(channel.sent[i]);
  }

  void check_end() const {
    for (int stage = 0; stage < schedule_.stages(); ++stage) {
      const std::string missing = stages_[index(stage)].missing();
      TORCH_CHECK(missing.empty(), "stage ", stage, " (rank ", rank_of(stage), "): ", missing);
    }
    for (const auto& [ranks, channel] : channels_) {
      TORCH_CHECK(channel.sent.size() == channel.received.size(), "rank ", ranks.first, " sends ", channel.sent.size(),
                  " messages to rank ", ranks.second, ", which receives ", channel.received.size());
    }
  }

  const PipelineSchedule& schedule_;
  std::vector<size_t> next_;
  std::vector<std::set<Message>> at_hand_;  // by rank
  std::vector<StageProgress> stages_;
  std::set<Message> made_, sent_;
  std::map<std::pair<int, int>, Channel> channels_;  // by sender and receiver
  PipelineScheduleFacts facts_;
};

}  // namespace

PipelineScheduleFacts check_pipeline_schedule(const PipelineSchedule& schedule) {
  pipeline_schedule::check_well_formed(schedule);
  return Walk(schedule).run();
}

}  // namespace fsdp
