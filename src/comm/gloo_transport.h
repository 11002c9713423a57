// Messages between two ranks over Gloo, and what becomes of them when a rank fails.
//
// Messages are posted, sent and received by Gloo's own thread, straight from and into the memory of the tensors. A
// message must not be destroyed before it is done or its connection is closed: hand messages back with release().
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "fsdp/communicator.h"

namespace fsdp {

class FamilyFailure;
class MeetingPoint;

// A message; holds a reference to its tensor until it is done.
class Message {
 public:
  explicit Message(int peer) : peer_(peer) {}
  virtual ~Message() = default;
  int peer() const { return peer_; }
  bool done() const { return done_; }

 protected:
  int peer_;
  bool done_ = false;
};

// A rank that can no longer take part. what() says why, without naming the collective.
class PeerLost : public std::runtime_error {
 public:
  PeerLost(int peer, const std::string& why) : std::runtime_error(why), peer_(peer) {}
  int peer() const { return peer_; }

 private:
  int peer_;
};

// A rank that did not do its part before the deadline.
class PeerLate : public std::runtime_error {
 public:
  explicit PeerLate(int peer) : std::runtime_error("late"), peer_(peer) {}
  int peer() const { return peer_; }

 private:
  int peer_;
};

class GlooTransport {
 public:
  using Clock = std::chrono::steady_clock;

  // Connects to all other ranks. Sets the process's SIGPIPE from its default to ignored: Gloo writes to
  // connections that a dying rank may just have closed, which must be an error, not the end of this process. A failure
  // that another group of the `family` hears of ends this one.
  GlooTransport(MeetingPoint& point, int rank, int size, const GlooOptions& options,
                std::shared_ptr<FamilyFailure> family);
  // Closes all connections, and only then destroys messages that are not done.
  ~GlooTransport();
  GlooTransport(const GlooTransport&) = delete;
  GlooTransport& operator=(const GlooTransport&) = delete;

  int rank() const;
  int size() const;
  std::chrono::milliseconds timeout() const;
  // A place that belongs to this group alone.
  const std::shared_ptr<MeetingPoint>& meeting_point() const;

  // Tags are below kTagLimit. A message is received by the receive of the same tag, in the order of the calls;
  // both sides must give equal numbers of bytes. Neither blocks nor throws: who waits for the message hears of losses.
  static constexpr int kTagLimit = 1 << 30;
  std::unique_ptr<Message> send(int peer, int tag, const at::Tensor& tensor);
  std::unique_ptr<Message> receive(int peer, int tag, const at::Tensor& tensor);

  // Blocks until `message` is done: true. Returns false when more than `known_losses` ranks are lost: the
  // caller then finds out whether these concern it. Throws PeerLost or PeerLate.
  bool wait(Message& message, Clock::time_point deadline, size_t known_losses);

  // The ranks lost so far, in the order in which this rank noticed.
  std::vector<int> losses() const;
  // Of a rank that is lost.
  std::string why_lost(int rank) const;

  // Marks the group as failed, tells the other ranks why (within a second) and closes all connections: from
  // then on Gloo touches no message's memory. The first reason stays.
  void fail(const std::string& reason);
  // Throws the reason if the group was marked as failed, or another one of the family was.
  void check_not_failed() const;
  // Throws PeerLost if a rank is lost, so that nothing new can succeed.
  void check_complete() const;

  // Takes messages that nobody waits for any more. What is not done stays until the connections are closed.
  void release(std::vector<std::unique_ptr<Message>> messages);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace fsdp
