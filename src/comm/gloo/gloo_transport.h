// Messages between two ranks over Gloo, and their end when a rank fails.
//
// Gloo's own thread posts, sends and receives messages, directly from and into the memory of the tensors. A message
// must not be destroyed before it is done or its connection is closed: return messages with release().
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "fsdp/backends.h"
#include "fsdp/communicator.h"

namespace fsdp::comm {

class FamilyFailure;

class MeetingPoint;

// A message. Holds a reference to its tensor until it is done.
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

// Signals that a rank can no longer take part. what() contains the reason, but does not name the collective. Those who
// know the collective catch it and throw RankLost (fsdp/errors.h).
class PeerLost : public std::runtime_error {
 public:
  PeerLost(int peer, const std::string& why) : std::runtime_error(why), peer_(peer) {}
  int peer() const { return peer_; }

 private:
  int peer_;
};

// Signals that a rank did not do its part before the deadline; becomes RankLate.
class PeerLate : public std::runtime_error {
 public:
  explicit PeerLate(int peer) : std::runtime_error("late"), peer_(peer) {}
  int peer() const { return peer_; }

 private:
  int peer_;
};

// Signals that Interruption was requested while this rank waited for a rank; becomes WaitInterrupted.
class PeerWaitInterrupted : public std::runtime_error {
 public:
  explicit PeerWaitInterrupted(int peer) : std::runtime_error("interrupted"), peer_(peer) {}
  int peer() const { return peer_; }

 private:
  int peer_;
};

class GlooTransport {
 public:
  using Clock = std::chrono::steady_clock;

  // Connects to all other ranks. Changes the process's handling of SIGPIPE from the default to ignored: Gloo writes to
  // connections that a dying rank may just have closed, which must be an error, not the end of this process. A failure
  // that another group of the `family` learns of ends this group.
  GlooTransport(MeetingPoint& point, int rank, int size, const GlooOptions& options,
                std::shared_ptr<FamilyFailure> family);
  // Closes all connections, and only then destroys messages that are not done.
  ~GlooTransport();
  GlooTransport(const GlooTransport&) = delete;
  GlooTransport& operator=(const GlooTransport&) = delete;

  int rank() const;
  int size() const;
  std::chrono::milliseconds timeout() const;
  // The meeting point that belongs to this group alone.
  const std::shared_ptr<MeetingPoint>& meeting_point() const;

  // Tags must be below kTagLimit (collective_header.h). A send is matched with the receive of the same tag, in the
  // order of the calls. Both sides must pass equal numbers of bytes. Neither function blocks or throws: wait() reports
  // losses.
  std::unique_ptr<Message> send(int peer, int tag, const at::Tensor& tensor);
  std::unique_ptr<Message> receive(int peer, int tag, const at::Tensor& tensor);

  // Blocks until `message` is done, then returns true. Returns false if more than `known_losses` ranks are lost; the
  // caller then finds out whether these losses concern it. Throws PeerLost, PeerLate or PeerWaitInterrupted, or the
  // reason if another rank has failed in a group of the family.
  bool wait(Message& message, Clock::time_point deadline, size_t known_losses);

  // The ranks lost so far, in the order in which this rank noticed.
  std::vector<int> losses() const;
  // The reason why a rank is lost, or "" if it is not lost.
  std::string why_lost(int rank) const;

  // Marks the group as failed, tells the other ranks the reason (within a second) and closes all connections. After
  // that Gloo does not access the memory of any message. Keeps the first reason.
  void fail(const std::string& reason);
  // Throws the reason if the group was marked as failed, or if another rank has failed in a group of the family.
  void check_not_failed() const;
  // Throws PeerLost if a rank is lost, because no new collective can succeed then.
  void check_complete() const;

  // Takes messages that no caller waits for any more. Keeps unfinished ones until the connections are closed.
  void release(std::vector<std::unique_ptr<Message>> messages);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace fsdp::comm
