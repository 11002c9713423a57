#include "comm/gloo/gloo_transport.h"

#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>
#include <pthread.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <future>
#include <list>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "base/interruption.h"
#include "base/stopped_at_exit.h"
#include "comm/collective_header.h"
#include "comm/error_text.h"
#include "comm/failure.h"
#include "comm/family_failure.h"
#include "comm/gloo/gloo_connection.h"
#include "comm/meeting/meeting_point_impl.h"
#include "fsdp/backends.h"
#include "torch_seams/gloo_thread.h"

namespace fsdp::comm {
namespace {

constexpr auto kWatchPeriod = base::Interruption::kPeriod;
constexpr auto kForever = std::chrono::hours(24 * 30);
constexpr auto kFarewellLimit = std::chrono::seconds(1);
constexpr int kNoticeTag = kTagLimit + 1;
constexpr int kCloseTag = kTagLimit + 2;
// A notice contains the reason of a failure, padded with zeros, and a last byte that is 1.
constexpr int64_t kNoticeBytes = 2048;

}  // namespace

class GlooMessage final : public Message {
 public:
  using Posted = c10::intrusive_ptr<c10d::Work>;
  GlooMessage(int peer, at::Tensor tensor, std::future<Posted> posted)
      : Message(peer), tensor_(std::move(tensor)), posted_(posted.share()) {}
  // Blocks until the message was posted. Rethrows an error of posting it.
  c10d::Work& work() { return *posted_.get(); }
  // Makes the thread that waits for the message go on without it.
  void interrupt() {
    try {
      work().abort();
    } catch (const std::exception&) {
      // The message was not posted, and the thread that waits for it gets the error.
    }
  }
  void mark_done() {
    done_ = true;
    tensor_.reset();
  }

 private:
  at::Tensor tensor_;
  std::shared_future<Posted> posted_;
};

namespace {

// Returns the memory of a tensor without a reference to the tensor, because c10d's works keep their tensors for as long
// as they live.
at::Tensor bytes_of(const at::Tensor& tensor) {
  return at::from_blob(const_cast<void*>(tensor.const_data_ptr()), {static_cast<int64_t>(tensor.nbytes())}, at::kByte);
}

// Replaces Gloo's text about a closed connection, with source positions and unsuitable advice, by the fact.
std::string plain_reason(const std::string& what) {
  const bool closed = what.find("closed by peer") != std::string::npos ||
                      what.find("Socket closed") != std::string::npos ||
                      what.find("reset by peer") != std::string::npos;
  return closed ? "its connection closed (did the process end?)" : what;
}

at::Tensor make_notice(const std::string& reason) {
  at::Tensor notice = at::zeros({kNoticeBytes}, at::kByte);
  char* text = static_cast<char*>(notice.mutable_data_ptr());
  std::memcpy(text, reason.data(), std::min<size_t>(reason.size(), kNoticeBytes - 2));
  text[kNoticeBytes - 1] = 1;
  return notice;
}

}  // namespace

class GlooTransport::Impl {
 public:
  // How long a thread waits for a message.
  struct Patience {
    Clock::time_point deadline;
    size_t known_losses;
    bool interruptible = true;  // by base::Interruption
  };

  Impl(MeetingPoint& point, int rank, int size, const GlooOptions& options, std::shared_ptr<FamilyFailure> family)
      : rank_(rank), size_(size), timeout_(options.timeout), family_(std::move(family)) {
    const auto store = point.join(rank, size, options.timeout);
    group_ = connect_gloo(point, store, rank, size, options);
    thread_ = std::make_unique<seams::GlooThread>(group_->getOptions()->devices.front());
    meeting_point_ = std::make_shared<MeetingPoint>(c10::make_intrusive<c10d::PrefixStore>("meeting", store),
                                                    point.name(), point.local_address());
    for (int peer = 0; peer < size_; ++peer) watches_.push_back(watch(peer));
    watcher_ = std::thread([this] {
      pthread_setname_np(pthread_self(), "fsdp_watch");
      watch_peers();
    });
    at_exit_ = std::make_unique<base::StoppedAtExit>([this] { stop_watching(); });
  }

  ~Impl() {
    at_exit_.reset();
    stop_watching();
    if (!buried_.empty()) close_connections();
    thread_.reset();
  }

  // See [Note: threads alive at exit].
  bool is_of_this_process() const { return at_exit_->is_of_this_process(); }

  void stop_watching() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      stopped_ = true;
    }
    wake_.notify_all();
    if (watcher_.joinable()) watcher_.join();
  }

  // See [Note: messages are posted on Gloo's thread]. An error of posting is thrown to the thread that waits.
  std::unique_ptr<GlooMessage> post(int peer, int tag, const at::Tensor& tensor, bool send) {
    auto posted = std::make_shared<std::promise<GlooMessage::Posted>>();
    auto message = std::make_unique<GlooMessage>(peer, tensor, posted->get_future());
    thread_->run([this, posted, peer, tag, send, bytes = std::vector<at::Tensor>{bytes_of(tensor)}]() mutable {
      try {
        posted->set_value(send ? group_->send(bytes, peer, tag) : group_->recv(bytes, peer, tag));
      } catch (const std::exception&) {
        posted->set_exception(std::current_exception());
      }
    });
    return message;
  }

  bool wait(GlooMessage& message, const Patience& patience) {
    for (bool interrupted = false;; interrupted = true) {
      if (message.done()) return true;
      std::unique_lock<std::mutex> lock(mutex_);
      if (losses_.size() > patience.known_losses) return false;
      // The message may be done although its peer is lost or late, so errors count only after an interrupted wait.
      if (interrupted && lost_[message.peer()]) throw PeerLost(message.peer(), *lost_[message.peer()]);
      if (interrupted && Clock::now() >= patience.deadline) throw PeerLate(message.peer());
      if (interrupted && is_interrupted(patience)) throw PeerWaitInterrupted(message.peer());
      if (interrupted && !failure_) throw_what_was_heard();
      const auto waiting = waiting_.insert(waiting_.end(), Waiting{&message, patience});
      lock.unlock();
      block_on(message, waiting);
    }
  }

  std::vector<int> losses() const {
    std::lock_guard<std::mutex> lock(mutex_);
    return losses_;
  }

  std::string why_lost(int rank) const {
    std::lock_guard<std::mutex> lock(mutex_);
    return lost_[rank].value_or("");
  }

  void fail(const std::string& reason) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (failure_) return;
      failure_ = reason;
    }
    const at::Tensor notice = make_notice(reason);
    for (int peer = 0; peer < size_; ++peer) {
      if (peer != rank_) farewells_.push_back(post(peer, kNoticeTag, notice, /*send=*/true));
    }
    send_farewell();
    close_connections();
  }

  void check_not_failed() const {
    std::lock_guard<std::mutex> lock(mutex_);
    if (failure_) {
      Failure{.reason = "this group of ranks has failed before and cannot be used any more: " + *failure_}.raise();
    }
    throw_what_was_heard();
  }

  void check_complete() const {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!losses_.empty()) throw PeerLost(losses_.front(), *lost_[losses_.front()]);
  }

  void release(std::vector<std::unique_ptr<Message>> messages) {
    std::lock_guard<std::mutex> lock(mutex_);
    for (auto& message : messages) {
      if (message) (message->done() ? done_ : buried_).push_back(std::move(message));
    }
  }

  int rank() const { return rank_; }
  int size() const { return size_; }
  std::chrono::milliseconds timeout() const { return timeout_; }
  const std::shared_ptr<MeetingPoint>& meeting_point() const { return meeting_point_; }

 private:
  // A receive that ends only when the peer fails: by the peer's notice, or by an error of the connection. Gloo does not
  // report a closed connection to messages that it has transferred in part, nor to threads that wait for messages of
  // other peers.
  struct Watch {
    at::Tensor notice;
    std::unique_ptr<GlooMessage> message;
  };

  struct Waiting {
    GlooMessage* message;
    Patience patience;
  };

  Watch watch(int peer) {
    if (peer == rank_) return {};
    at::Tensor notice = at::zeros({kNoticeBytes}, at::kByte);
    return {notice, post(peer, kNoticeTag, notice, /*send=*/false)};
  }

  void block_on(GlooMessage& message, std::list<Waiting>::iterator waiting) {
    try {
      if (message.work().wait(kForever)) message.mark_done();
    } catch (const std::exception& error) {
      std::lock_guard<std::mutex> lock(mutex_);
      waiting_.erase(waiting);
      look_at(message.peer());
      mark_lost(message.peer(), plain_reason(first_line(error)));
      throw PeerLost(message.peer(), *lost_[message.peer()]);
    }
    std::lock_guard<std::mutex> lock(mutex_);
    waiting_.erase(waiting);
  }

  void watch_peers() {
    std::vector<std::unique_ptr<Message>> resting;
    std::unique_lock<std::mutex> lock(mutex_);
    while (!stopped_) {
      wake_.wait_for(lock, kWatchPeriod);
      for (int peer = 0; peer < size_; ++peer) look_at(peer);
      if (!heard_) heard_ = family_->due();
      for (const Waiting& waiting : waiting_) {
        if (must_interrupt(waiting)) waiting.message->interrupt();
      }
      // Gloo's thread may hold a message for a moment after it reported it done. A thread that destroys the message
      // then spins until Gloo's thread runs again. So messages rest for a period first, and are destroyed here.
      auto rested = std::exchange(resting, std::exchange(done_, {}));
      lock.unlock();
      rested.clear();
      lock.lock();
    }
  }

  bool must_interrupt(const Waiting& waiting) const {
    return losses_.size() > waiting.patience.known_losses || lost_[waiting.message->peer()] ||
           Clock::now() >= waiting.patience.deadline || heard_ || is_interrupted(waiting.patience);
  }

  static bool is_interrupted(const Patience& patience) {
    return patience.interruptible && base::Interruption::is_requested();
  }

  void throw_what_was_heard() const {
    if (!heard_) return;
    Failure{Failure::Kind::kRankLost,
            "this group of ranks cannot be used any more, since another rank has failed: " + *heard_}
        .raise();
  }

  // Finds out, without blocking, whether `peer` has failed.
  void look_at(int peer) {
    if (peer == rank_ || lost_[peer] || peer >= static_cast<int>(watches_.size())) return;
    const char* notice = static_cast<const char*>(watches_[peer].notice.const_data_ptr());
    try {
      c10d::Work& work = watches_[peer].message->work();
      if (*static_cast<const volatile char*>(notice + kNoticeBytes - 1) == 0) {
        work.abort();
        work.wait(kForever);
        return;
      }
      while (!work.wait(kForever)) {
      }
      mark_lost(peer, c10::str("it failed: ", notice));
      family_->note(notice);
    } catch (const std::exception& error) {
      mark_lost(peer, plain_reason(first_line(error)));
    }
  }

  void mark_lost(int peer, const std::string& why) {
    if (lost_[peer]) return;
    lost_[peer] = why;
    losses_.push_back(peer);
  }

  // Gives the notices a moment to be sent, so that the other ranks learn more than that a connection closed.
  void send_farewell() {
    const auto deadline = Clock::now() + kFarewellLimit;
    for (auto& farewell : farewells_) {
      try {
        wait(*farewell, {deadline, static_cast<size_t>(size_), /*interruptible=*/false});
      } catch (const std::exception&) {
        // The peer does not receive.
      }
    }
  }

  // Makes an operation time out, because Gloo then closes all connections of the group.
  void close_connections() {
    if (std::exchange(closed_, true)) return;
    for (int peer = 0; peer < size_; ++peer) {
      if (peer == rank_) continue;
      try {
        at::Tensor nothing = at::zeros({1}, at::kByte);
        post(peer, kCloseTag, nothing, /*send=*/false)->work().wait(std::chrono::milliseconds(1));
      } catch (const std::exception&) {
      }
    }
  }

  const int rank_;
  const int size_;
  const std::chrono::milliseconds timeout_;
  const std::shared_ptr<FamilyFailure> family_;
  c10::intrusive_ptr<c10d::ProcessGroupGloo> group_;
  std::unique_ptr<seams::GlooThread> thread_;
  std::shared_ptr<MeetingPoint> meeting_point_;

  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<std::optional<std::string>> lost_ = std::vector<std::optional<std::string>>(size_);
  std::vector<int> losses_;
  std::optional<std::string> failure_;
  std::optional<std::string> heard_;  // the reason of a failure in a group of the family
  std::list<Waiting> waiting_;        // more than one if a group fails while another thread waits
  bool stopped_ = false;
  bool closed_ = false;

  std::vector<Watch> watches_;
  std::vector<std::unique_ptr<GlooMessage>> farewells_;
  std::vector<std::unique_ptr<Message>> done_;    // to be destroyed by the watcher
  std::vector<std::unique_ptr<Message>> buried_;  // to be destroyed when the connections are closed
  std::thread watcher_;
  std::unique_ptr<base::StoppedAtExit> at_exit_;
};

GlooTransport::GlooTransport(MeetingPoint& point, int rank, int size, const GlooOptions& options,
                             std::shared_ptr<FamilyFailure> family)
    : impl_(std::make_unique<Impl>(point, rank, size, options, std::move(family))) {}
GlooTransport::~GlooTransport() {
  if (!impl_->is_of_this_process()) static_cast<void>(impl_.release());
}

int GlooTransport::rank() const { return impl_->rank(); }
int GlooTransport::size() const { return impl_->size(); }
std::chrono::milliseconds GlooTransport::timeout() const { return impl_->timeout(); }
const std::shared_ptr<MeetingPoint>& GlooTransport::meeting_point() const { return impl_->meeting_point(); }

std::unique_ptr<Message> GlooTransport::send(int peer, int tag, const at::Tensor& tensor) {
  return impl_->post(peer, tag, tensor, /*send=*/true);
}

std::unique_ptr<Message> GlooTransport::receive(int peer, int tag, const at::Tensor& tensor) {
  return impl_->post(peer, tag, tensor, /*send=*/false);
}

bool GlooTransport::wait(Message& message, Clock::time_point deadline, size_t known_losses) {
  return impl_->wait(static_cast<GlooMessage&>(message), {deadline, known_losses});
}

std::vector<int> GlooTransport::losses() const { return impl_->losses(); }
std::string GlooTransport::why_lost(int rank) const { return impl_->why_lost(rank); }
void GlooTransport::fail(const std::string& reason) { impl_->fail(reason); }
void GlooTransport::check_not_failed() const { impl_->check_not_failed(); }
void GlooTransport::check_complete() const { impl_->check_complete(); }
void GlooTransport::release(std::vector<std::unique_ptr<Message>> messages) {
  if (impl_->is_of_this_process()) return impl_->release(std::move(messages));
  for (auto& message : messages) static_cast<void>(message.release());
}

}  // namespace fsdp::comm
