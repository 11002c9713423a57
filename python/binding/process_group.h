// Communicators for the process groups of torch.distributed.
#pragma once

#include <torch/custom_class.h>

#include <memory>
#include <string>

#include "fsdp/communicator.h"

namespace fsdp::python {

// torch.classes.fsdp_cpp.Group: a communicator over the ranks of a process group.
//
// The process group only introduces the ranks to each other, through a part of its store; its own collectives are never
// called. Threads: one at a time uses a group.
class Group : public torch::CustomClassHolder {
 public:
  // Returns the communicator of the process group registered under `name`, made when first asked for and kept as long
  // as that process group exists. `backend`: "auto", "shm", "gloo" or "nccl"; "fake" for
  // a group of one rank, or of which only one rank exists (make_fake_communicator). `interface`: the name or address of
  // the network interface to use; empty: the one that reaches `master` or, without a master, the host's own name.
  // Collective over the ranks of the group when it is made. Throws if ranks do not come before the group's time-out.
  static c10::intrusive_ptr<Group> of(const std::string& name, const std::string& backend, const c10::Device& device,
                                      const std::string& interface, const std::string& master);
  // Drops the communicators of process groups that were destroyed or, if `all`, of all. Sharded modules keep theirs.
  static void forget(bool all);

  explicit Group(std::shared_ptr<Communicator> communicator) : communicator_(std::move(communicator)) {}
  const std::shared_ptr<Communicator>& communicator() const { return communicator_; }
  int64_t rank() const { return communicator_->rank(); }
  int64_t size() const { return communicator_->size(); }
  std::string backend() const { return communicator_->backend(); }
  int64_t bytes_sent() const { return static_cast<int64_t>(communicator_->bytes_sent()); }

 private:
  std::shared_ptr<Communicator> communicator_;
};

void register_group(torch::Library& library);

}  // namespace fsdp::python
