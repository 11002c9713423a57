#include "planner/ranks/planned_communicator.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <numeric>
#include <string>
#include <utility>

#include "base/device_stream.h"
#include "comm/collective_shapes.h"
#include "comm/payload_count.h"
#include "comm/tensor_for_sum.h"
#include "planner/device/planned_device.h"
#include "planner/device/planned_memory.h"
#include "planner/ranks/host_payloads.h"
#include "planner/ranks/planned_sharing.h"

namespace fsdp::planner {
namespace {

constexpr const char* kHostsOfMesh = "mesh";  // the gather of make_mesh_of_hosts

Place place_of(c10::Device device) { return device.is_cpu() ? Place::kHost : Place::kDevice; }
int stream_of(c10::Device device) { return device.is_cpu() ? -1 : current_stream_number(); }

// Does something when it is destroyed.
using AtEnd = std::shared_ptr<void>;
template <typename Action>
AtEnd at_end(Action action) {
  return {nullptr, [action = std::move(action)](void*) mutable { action(); }};
}

class PlannedWork final : public Work {
 public:
  struct Ends {
    AtEnd until_waited = nullptr, until_destroyed = nullptr;  // end with the wait, and with the work
    std::function<void()> arrival = {};                       // called by the wait
    bool waits_at_end = true;                                 // if nobody has waited before
  };
  PlannedWork(Tape& tape, int64_t collective, c10::Device device, Ends ends)
      : tape_(tape), collective_(collective), device_(device), ends_(std::move(ends)) {}
  ~PlannedWork() override {
    if (!waited_ && ends_.waits_at_end) note();
  }
  void wait() override {
    TORCH_CHECK(!std::exchange(waited_, true), "a collective can be waited for only once");
    note();
    ends_.until_waited.reset();
    if (ends_.arrival) ends_.arrival();
  }

 private:
  void note() {
    PlannedMemory::get().report([&](DeviceLog&) { tape_.waited(collective_, place_of(device_), stream_of(device_)); });
  }

  Tape& tape_;
  int64_t collective_;
  c10::Device device_;
  bool waited_ = false;
  Ends ends_;
};

class PlannedCommunicator final : public Communicator {
 public:
  PlannedCommunicator(Tape& tape, int rank, std::vector<int> members, RankLayout layout)
      : PlannedCommunicator(tape, rank, tape.add_group(std::move(members)), layout, false) {}

  int rank() const override { return rank_; }
  int size() const override { return static_cast<int>(members().size()); }
  std::string backend() const override { return "planned"; }

  std::unique_ptr<Work> all_gather(at::Tensor output, at::Tensor input, const CollectiveId& id) override {
    comm::check_all_gather(output, input, size(), id);
    if (const auto buffer = sharing_ ? sharing_->find(input) : nullptr) return read(buffer, output, input, id);
    sent_.add_for_each_peer(input.nbytes());
    return issue(comm::CollectiveKind::kAllGather, id, output.numel(), input);
  }

  std::unique_ptr<Work> reduce_scatter(at::Tensor output, at::Tensor input, const ReduceOptions& options,
                                       const CollectiveId& id, std::vector<uint64_t>*) override {
    comm::check_reduce_scatter(output, input, size(), id);
    summarize(output, options);
    sent_.add_for_each_peer(output.numel() * input.element_size());
    if (input.is_cpu() || input.numel() == 0) {
      return issue(comm::CollectiveKind::kReduceScatter, id, input.numel(), input);
    }
    at::AutoDispatchBelowADInplaceOrView no_autograd;
    const at::Tensor sum = comm::tensor_for_sum(output, input);
    auto work =
        issue(comm::CollectiveKind::kReduceScatter, id, input.numel(), input, Way{.converts = !output.is_same(sum)});
    convert_sum(output, sum);
    return work;
  }

  std::unique_ptr<Work> all_reduce(at::Tensor output, at::Tensor tensor, const ReduceOptions& options,
                                   const CollectiveId& id, std::vector<uint64_t>*) override {
    comm::check_all_reduce(output, tensor, id);
    summarize(output, options);
    sent_.add_all_reduce(tensor.numel(), tensor.element_size());
    const bool converts = !tensor.is_cpu() && output.scalar_type() != tensor.scalar_type();
    auto work = issue(comm::CollectiveKind::kAllReduce, id, tensor.numel(), tensor, Way{.converts = converts});
    if (converts) {
      at::AutoDispatchBelowADInplaceOrView no_autograd;
      convert_sum(output, tensor);
    }
    return work;
  }

  std::unique_ptr<Work> broadcast(at::Tensor tensor, int root, const CollectiveId& id) override {
    comm::check_broadcast(tensor, root, size(), id);
    if (rank_ == root) sent_.add_for_each_peer(tensor.nbytes());
    return issue(comm::CollectiveKind::kBroadcast, id, tensor.numel(), tensor, Way{.contributes = rank_ == root});
  }

  std::unique_ptr<Work> all_to_all(at::Tensor output, at::Tensor input, const SplitCounts& counts,
                                   const CollectiveId& id) override {
    comm::check_all_to_all(output, input, counts, size(), id);
    comm::check_own_part(counts, rank_, id);
    for (int peer = 0; peer < size(); ++peer) {
      sent_.add(peer, static_cast<uint64_t>(counts.send[static_cast<size_t>(peer)]) * input.element_size());
    }
    return issue(comm::CollectiveKind::kAllToAll, id, input.numel(), input);
  }

  std::unique_ptr<Work> send(at::Tensor tensor, int to, const CollectiveId& id) override {
    comm::check_message(tensor, to, rank_, size(), "send", id);
    sent_.add(to, tensor.nbytes());
    const Meeting meeting = meeting_of_message(rank_, to);
    if (has_values(tensor)) layout_.peers->post(meeting.name, values_of(tensor));
    const int64_t index = note_issue(comm::CollectiveKind::kMessage, id, tensor.numel(), tensor,
                                     {.from = world_rank(rank_), .to = world_rank(to), .meeting = meeting});
    if (tensor.is_cpu() && payloads_) on_their_way_[to] = memory_on_its_way(tensor);
    // Nobody needs to wait for a message that was sent; over NCCL, the current stream does at the end.
    return work(index, tensor.device(), {.waits_at_end = !tensor.is_cpu()});
  }

  std::unique_ptr<Work> recv(at::Tensor output, int from, const CollectiveId& id) override {
    comm::check_message(output, from, rank_, size(), "receive", id);
    const Meeting meeting = meeting_of_message(from, rank_);
    std::function<void()> arrival;
    if (has_values(output)) {
      arrival = [peers = layout_.peers, name = meeting.name, output] { receive(output, peers->take(name)); };
    }
    const int64_t index = note_issue(comm::CollectiveKind::kMessage, id, output.numel(), output,
                                     {.from = world_rank(from), .to = world_rank(rank_), .meeting = meeting});
    return work(index, output.device(), {.arrival = std::move(arrival)});
  }

  std::vector<std::string> all_gather_bytes(const std::string& bytes, const CollectiveId& id) override {
    sent_.add_for_each_peer(bytes.size());
    PlannedMemory::get().report([&](DeviceLog&) {
      const int64_t index = tape_.issued({.kind = comm::CollectiveKind::kGatherBytes,
                                          .id = id,
                                          .numel = static_cast<int64_t>(bytes.size()),
                                          .dtype = at::kByte,
                                          .group = group_,
                                          .twin = is_twin_,
                                          .path = path(),
                                          .meeting = meeting_of_all()},
                                         Place::kHost, -1);
      tape_.waited(index, Place::kHost, -1);
    });
    return id.name == kHostsOfMesh ? hosts() : of_all_members(bytes);
  }

  std::shared_ptr<Communicator> subgroup(const std::vector<int>& ranks, const CollectiveId& id) override {
    const int rank = comm::check_subgroup(ranks, rank_, size(), id);
    std::vector<int> of_world;
    for (const int member : ranks) of_world.push_back(members()[static_cast<size_t>(member)]);
    return std::make_shared<PlannedCommunicator>(tape_, rank, std::move(of_world), layout_);
  }

  std::shared_ptr<Communicator> twin() override {
    if (!twin_) twin_.reset(new PlannedCommunicator(tape_, rank_, group_, layout_, true));
    return twin_;
  }

  MemorySharing& memory_sharing() override { return sharing_ ? *sharing_ : Communicator::memory_sharing(); }
  void trim() override {
    if (payloads_) payloads_->trim();
  }

  bool carries_identity() const override { return true; }
  int world_rank(int rank) const override { return members().at(static_cast<size_t>(rank)); }

  std::vector<uint64_t> bytes_sent_to() const override {
    std::vector<uint64_t> sent = sent_.by_rank();
    if (!twin_) return sent;
    const std::vector<uint64_t> more = twin_->bytes_sent_to();
    std::transform(sent.begin(), sent.end(), more.begin(), sent.begin(), std::plus<>());
    return sent;
  }

 private:
  PlannedCommunicator(Tape& tape, int rank, int group, RankLayout layout, bool is_twin)
      : tape_(tape),
        rank_(rank),
        group_(group),
        layout_(layout),
        is_twin_(is_twin),
        sent_(rank, static_cast<int>(tape.groups().at(static_cast<size_t>(group)).size())) {
    if (size() == 1 || layout_.links == HostLinks::kNone) return;
    if (layout_.links == HostLinks::kMemory && is_on_one_host()) {
      sharing_ = std::make_unique<PlannedSharing>(size());
      payloads_ = make_shm_payloads();
    } else {
      payloads_ = make_gloo_payloads(size());
    }
  }

  // -- with the planned ranks of other stages --
  int stage_of(int member) const { return layout_.stage_of(world_rank(member)); }
  bool spans_stages() const { return stage_of(0) != stage_of(size() - 1); }

  std::vector<std::string> of_all_members(const std::string& own) const {
    if (!spans_stages()) return std::vector<std::string>(members().size(), own);
    const std::vector<std::string> of_stages = layout_.peers->gather(own);
    std::vector<std::string> of_members;
    for (int member = 0; member < size(); ++member) {
      of_members.push_back(of_stages[static_cast<size_t>(stage_of(member))]);
    }
    return of_members;
  }

  // All of these ranks make the same groups in the same order, and use them in the same order.
  Meeting meeting_of_all() {
    if (!spans_stages()) return {};
    return {MeetingRole::kAll, c10::str("group ", group_, is_twin_ ? " twin " : " ", collectives_of_stages_++)};
  }

  // The message number n of one rank to another meets the other's receive of number n.
  Meeting meeting_of_message(int from, int to) {
    TORCH_CHECK(spans_stages(), "fsdp plan: messages are planned between the stages of a pipeline only");
    const std::string way = c10::str("group ", group_, is_twin_ ? " twin" : "", " from ", from, " to ", to);
    return {from == rank_ ? MeetingRole::kSends : MeetingRole::kReceives, c10::str(way, ": ", messages_[way]++)};
  }

  // Whether the host reads it: numbers in memory that a plan really has.
  static bool has_values(const at::Tensor& tensor) {
    return tensor.is_cpu() && tensor.scalar_type() == at::kLong && tensor.nbytes() < PlannedMemory::kRealHostBytes;
  }

  static std::string values_of(const at::Tensor& tensor) {
    return {static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes()};
  }

  static void receive(const at::Tensor& output, const std::string& values) {
    TORCH_CHECK(values.size() == output.nbytes(), "fsdp plan: a message of ", values.size(), " bytes arrived where ",
                output.nbytes(), " were expected");
    std::memcpy(output.mutable_data_ptr(), values.data(), values.size());
  }

  // Among CPUs, a message takes memory until the receiver has it: here, until the next one to the same rank.
  AtEnd memory_on_its_way(const at::Tensor& tensor) {
    return at_end([payload = take_payload(comm::CollectiveKind::kMessage, tensor.numel(), tensor, true), tensor] {});
  }

  bool is_on_one_host() const {
    return std::all_of(members().begin(), members().end(), [this](int member) {
      return member / layout_.per_host == members().front() / layout_.per_host;
    });
  }

  const std::vector<int>& members() const { return tape_.groups()[static_cast<size_t>(group_)]; }

  std::vector<std::string> hosts() const {
    std::vector<std::string> names;
    for (const int member : members()) names.push_back("host " + std::to_string(member / layout_.per_host));
    return names;
  }

  // Where the CPU adds, it finds the norm in the same pass.
  static void summarize(const at::Tensor& output, const ReduceOptions& options) {
    if (options.summary == nullptr || !output.is_cpu() || !output.is_floating_point()) return;
    *options.summary = {.known = true, .finite = true, .squared_norm = 1.0};
  }

  // NCCL adds in the dtype of the contributions. The conversion follows on the same stream.
  static void convert_sum(at::Tensor& output, const at::Tensor& sum) {
    if (!output.is_same(sum)) output.copy_(sum, /*non_blocking=*/true);
  }

  // Gathers shards that lie in a buffer of all ranks. If the output is that buffer, it is read until the work is
  // destroyed.
  std::unique_ptr<Work> read(const std::shared_ptr<PlannedSharing::Buffer>& buffer, const at::Tensor& output,
                             const at::Tensor& input, const CollectiveId& id) {
    const bool in_place = sharing_->find(output) == buffer;
    if (!in_place) sent_.add_for_each_peer(input.nbytes());
    AtEnd reading = at_end([buffer] { buffer->read(); });
    const int64_t index =
        note_issue(comm::CollectiveKind::kAllGather, id, output.numel(), input, {.in_place = in_place});
    return work(index, input.device(),
                {.until_waited = in_place ? nullptr : reading, .until_destroyed = in_place ? reading : nullptr});
  }

  struct Way {
    bool contributes = true;  // whether this rank sends anything
    bool converts = false;    // TapeCollective::converts
    bool in_place = false;    // HostPath::kInPlace
    int from = -1, to = -1;   // of a message
    Meeting meeting = {};     // of a message
  };
  std::unique_ptr<Work> issue(comm::CollectiveKind kind, const CollectiveId& id, int64_t numel,
                              const at::Tensor& sent) {
    return issue(kind, id, numel, sent, Way());
  }
  std::unique_ptr<Work> issue(comm::CollectiveKind kind, const CollectiveId& id, int64_t numel, const at::Tensor& sent,
                              const Way& way) {
    AtEnd in_flight = sent.is_cpu() && payloads_ ? take_payload(kind, numel, sent, way.contributes) : nullptr;
    const int64_t index = note_issue(kind, id, numel, sent, way);
    return work(index, sent.device(), {.until_waited = std::move(in_flight)});
  }

  std::unique_ptr<Work> work(int64_t index, c10::Device device, PlannedWork::Ends ends) {
    return std::make_unique<PlannedWork>(tape_, index, device, std::move(ends));
  }

  AtEnd take_payload(comm::CollectiveKind kind, int64_t numel, const at::Tensor& sent, bool contributes) {
    const int64_t part = comm::part_of(numel, rank_, size()).numel * static_cast<int64_t>(sent.element_size());
    auto memory = payloads_->take({.kind = kind, .sent = contributes ? sent : at::Tensor(), .own_part_bytes = part});
    return at_end(
        [payloads = payloads_, memory = std::move(memory)]() mutable { payloads->release(std::move(memory)); });
  }

  HostPath path() const { return sharing_ ? HostPath::kMemory : HostPath::kGloo; }

  int64_t note_issue(comm::CollectiveKind kind, const CollectiveId& id, int64_t numel, const at::Tensor& sent,
                     const Way& way) {
    const c10::Device device = sent.device();
    int64_t index = -1;
    PlannedMemory::get().report([&](DeviceLog&) {
      index = tape_.issued({.kind = kind,
                            .id = id,
                            .numel = numel,
                            .dtype = sent.scalar_type(),
                            .group = group_,
                            .twin = is_twin_,
                            .converts = way.converts,
                            .path = way.in_place ? HostPath::kInPlace : path(),
                            .from = way.from,
                            .to = way.to,
                            .meeting = kind == comm::CollectiveKind::kMessage ? way.meeting : meeting_of_all()},
                           place_of(device), stream_of(device));
    });
    return index;
  }

  Tape& tape_;
  int rank_;
  int group_;
  RankLayout layout_;
  bool is_twin_;
  comm::PayloadCount sent_;
  std::unique_ptr<PlannedSharing> sharing_;  // null: the ranks share no memory
  std::shared_ptr<HostPayloads> payloads_;   // null: there is one rank, or ranks compute on devices
  std::shared_ptr<PlannedCommunicator> twin_;
  int64_t collectives_of_stages_ = 0;
  std::map<std::string, int64_t> messages_;  // by the two ranks
  std::map<int, AtEnd> on_their_way_;        // by receiver
};

}  // namespace

std::shared_ptr<Communicator> make_planned_communicator(Tape& tape, int rank, const RankLayout& layout) {
  TORCH_CHECK(rank >= 0 && rank < layout.world, "rank ", rank, " is not one of ", layout.world, " ranks");
  std::vector<int> all(static_cast<size_t>(layout.world));
  std::iota(all.begin(), all.end(), 0);
  return std::make_shared<PlannedCommunicator>(tape, rank, std::move(all), layout);
}

}  // namespace fsdp::planner
