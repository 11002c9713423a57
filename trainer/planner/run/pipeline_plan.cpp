#include "planner/run/pipeline_plan.h"

#include <arpa/inet.h>
#include <c10/util/StringUtil.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <utility>
#include <vector>

#include "config/errors.h"
#include "planner/memory/forecast.h"
#include "planner/run/child_answers.h"

namespace fsdp::planner {
namespace {

using nlohmann::ordered_json;

constexpr const char* kThisHost = "127.0.0.1";
// A rank waits for those whose plans take longer.
constexpr std::chrono::hours kTimeout{12};

// A port that only this host reaches, and at which processes may connect before one of them answers.
class ListeningSocket {
 public:
  explicit ListeningSocket(int connections) : descriptor_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    auto* const any = reinterpret_cast<sockaddr*>(&address);
    if (descriptor_ < 0 || bind(descriptor_, any, size) != 0 || listen(descriptor_, connections) != 0 ||
        getsockname(descriptor_, any, &size) != 0) {
      throw std::runtime_error(
          c10::str("cannot open a port of this host for the plans of a pipeline's ranks: ", std::strerror(errno)));
    }
    port_ = ntohs(address.sin_port);
  }
  ListeningSocket(const ListeningSocket&) = delete;
  ListeningSocket& operator=(const ListeningSocket&) = delete;
  ~ListeningSocket() { close(descriptor_); }

  int descriptor() const { return descriptor_; }
  uint16_t port() const { return port_; }

 private:
  int descriptor_;
  uint16_t port_ = 0;
};

// The first rank serves the others: this process forks, and so starts no threads.
c10::intrusive_ptr<c10d::Store> open_store(const ListeningSocket& socket, bool serves) {
  c10d::TCPStoreOptions options;
  options.port = socket.port();
  options.isServer = serves;
  if (serves) options.masterListenFd = socket.descriptor();
  options.waitWorkers = false;
  options.timeout = kTimeout;
  return c10::make_intrusive<c10d::TCPStore>(kThisHost, options);
}

using PlanOfRank = std::function<ordered_json(int rank, PlannedPeers& peers)>;

// Makes the plans of all ranks. The first one that fails ends the others, which would wait for it.
std::vector<Answer> plans_of(const PipelineRanks& ranks, const PlanOfRank& plan) {
  const ListeningSocket socket(ranks.stages);
  const int place = ranks.chosen.value_or(0) % ranks.of_stage;
  const auto rank_of = [&](size_t index) { return static_cast<int>(index) * ranks.of_stage + place; };
  const auto plan_one = [&](size_t index) {
    PlannedPeers peers(static_cast<int>(index), ranks.stages, open_store(socket, index == 0));
    ordered_json document = plan(rank_of(index), peers);
    peers.leave();
    return document;
  };
  const auto check = [&](size_t index, const Answer& answer) {
    if (!answer.refusal.empty()) throw trainer::ConfigError(answer.refusal);
    if (answer.failure.empty()) return;
    throw std::runtime_error(c10::str("rank ", rank_of(index), " of the pipeline: ", answer.failure));
  };
  return answers_of_children(static_cast<size_t>(ranks.stages), static_cast<size_t>(ranks.stages), plan_one, check);
}

// The worst verdict comes first, and of equal ones the most bytes.
std::pair<Verdict, int64_t> need_of(const Answer& answer) {
  const ordered_json& stage = answer.result.at("stage");
  Verdict verdict = Verdict::kFits;
  for (const Verdict worse : {Verdict::kTight, Verdict::kDoesNotFit}) {
    if (stage.at("verdict") == to_string(worse)) verdict = worse;
  }
  return {verdict, stage.at("bytes").get<int64_t>()};
}

}  // namespace

ordered_json plan_pipeline(const PipelineRanks& ranks, const PlanOfRank& plan) {
  std::vector<Answer> answers = plans_of(ranks, plan);
  const auto largest = std::max_element(answers.begin(), answers.end(),
                                        [](const Answer& a, const Answer& b) { return need_of(a) < need_of(b); });
  const auto shown = ranks.chosen ? answers.begin() + *ranks.chosen / ranks.of_stage : largest;
  ordered_json of_ranks = ordered_json::array();
  for (Answer& answer : answers) of_ranks.push_back(answer.result.at("stage"));
  ordered_json document = std::move(shown->result);
  document.erase("stage");
  document["pipeline"] = std::move(of_ranks);
  return document;
}

}  // namespace fsdp::planner
