#include "comm/hosts/hosts_collectives.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <string>
#include <utility>

#include "comm/collective_shapes.h"
#include "comm/reduce_kernels.h"
#include "fsdp/memory_sharing.h"

namespace fsdp::comm {
namespace {

// Returns the dtype in which sums over the ranks of a host travel to other hosts.
at::ScalarType dtype_of_sums(at::ScalarType dtype) {
  return dtype == at::kBFloat16 || dtype == at::kHalf ? at::kFloat : dtype;
}

// Returns the name of the steps of a collective. It contains everything that the ranks must have in common.
std::string name_of_steps(const CollectiveIdentity& whole) {
  return "step of " + (has_equal_sizes(whole.kind) ? whole.describe() : describe(to_string(whole.kind), whole.id));
}

// Views for copying between rank order and the order in which the ranks of one host hold data of several hosts.
at::Tensor host_by_host(const at::Tensor& tensor, const HostGrid& grid) {
  return tensor.view({grid.hosts, grid.ranks_per_host, tensor.numel() / grid.hosts / grid.ranks_per_host});
}
at::Tensor place_by_place(const at::Tensor& tensor, const HostGrid& grid) {
  return tensor.view({grid.ranks_per_host, grid.hosts, tensor.numel() / grid.hosts / grid.ranks_per_host})
      .transpose(0, 1);
}

}  // namespace

// ---------------------------------------------------------------- what all have in common

HostsCollective::HostsCollective(std::shared_ptr<HostsContext> context, const CollectiveIdentity& whole,
                                 std::vector<uint64_t>* flags)
    : context_(std::move(context)),
      id_(whole.id),
      step_{name_of_steps(whole), whole.id.generation, whole.id.pass},
      sequence_((*context_->next_sequence)++),
      caller_flags_(flags) {
  if (flags != nullptr) flags_ = *flags;
}

void HostsCollective::advance() {
  if (failure_) std::rethrow_exception(failure_);
  if (std::exchange(advanced_, true)) return;
  try {
    wait_for(begun_);
    go_on();
  } catch (const c10::Error& error) {
    failure_ = std::current_exception();
    context_->world->abort(error.what_without_backtrace());  // others wait for steps that this rank has not issued
    throw;
  }
}

void HostsCollective::finish() {
  advance();
  complete();
  if (caller_flags_ != nullptr) *caller_flags_ = *flags_;
}

void HostsCollective::discard_result() {
  caller_flags_ = nullptr;
  clear_output();
}

void HostsCollective::begin_in(Communicator& group) {
  begun_.push_back(group.broadcast(at::empty({0}), /*root=*/0, step_));
}

void HostsCollective::wait_for(Works& works) {
  for (const std::unique_ptr<Work>& work : works) work->wait();
}

HostsAgreement::HostsAgreement(std::shared_ptr<HostsContext> context, const CollectiveIdentity& whole)
    : HostsCollective(std::move(context), whole, nullptr) {
  begin_in(*context_->local);
  begin_in(*context_->across);
}

// ---------------------------------------------------------------- gathers

HostsAllGather::HostsAllGather(std::shared_ptr<HostsContext> context, const CollectiveIdentity& whole,
                               at::Tensor output, const at::Tensor& input)
    : HostsCollective(std::move(context), whole, nullptr),
      output_(std::move(output)),
      pieces_(at::empty({context_->grid.hosts * input.numel()}, input.options())) {
  begun_.push_back(context_->across->all_gather(pieces_, input, step_));
  begin_in(*context_->local);
}

void HostsAllGather::go_on() {
  const auto [hosts, ranks] = context_->grid;
  const int64_t n = pieces_.numel() / hosts;
  at::Tensor gathered = output_;
  if (!gathered.defined() || hosts > kMostSteps) gathered = at::empty({pieces_.numel() * ranks}, pieces_.options());
  if (hosts > kMostSteps) {
    by_place_ = std::move(gathered);
    next_.push_back(context_->local_next->all_gather(by_place_, pieces_, step_));
    return;
  }
  for (int host = 0; host < hosts; ++host) {
    const at::Tensor of_host = gathered.narrow(0, host * ranks * n, ranks * n);
    next_.push_back(context_->local_next->all_gather(of_host, pieces_.narrow(0, host * n, n), step_));
  }
}

void HostsAllGather::complete() {
  wait_for(next_);
  if (by_place_.defined()) host_by_host(output_, context_->grid).copy_(place_by_place(by_place_, context_->grid));
}

HostsSharedGather::HostsSharedGather(std::shared_ptr<HostsContext> context, const CollectiveIdentity& whole,
                                     at::Tensor buffer, const at::Tensor& input)
    : HostsCollective(std::move(context), whole, nullptr),
      buffer_(std::move(buffer)),
      input_(input),
      pieces_(at::empty({context_->grid.hosts * input.numel()}, input.options())) {
  begun_.push_back(context_->across->all_gather(pieces_, input, step_));
  begin_in(*context_->local);
}

// For the group of the host, the slices of the buffer differ from the parts that ranks write here. That does no harm:
// the group only counts readings of the whole buffer. A rank that has written its slice itself has already waited for
// readers.
void HostsSharedGather::go_on() {
  const auto [hosts, ranks] = context_->grid;
  const int64_t n = input_.numel();
  const at::Tensor own_slice = buffer_.narrow(0, context_->world->rank() * n, n);
  if (input_.const_data_ptr() != own_slice.const_data_ptr())
    context_->local_next->memory_sharing().await_readers(buffer_, id_);
  for (int host = 0; host < hosts; ++host) {
    const bool own = host == context_->host();
    copy_into_slice(buffer_, host * ranks + context_->place(), own ? input_ : pieces_.narrow(0, host * n, n));
  }
  const at::Tensor slice = buffer_.narrow(0, context_->place() * hosts * n, hosts * n);
  next_.push_back(context_->local_next->all_gather(buffer_, slice, step_));
  pieces_.reset();
  input_.reset();
}

// ---------------------------------------------------------------- reductions

HostsReduceScatter::HostsReduceScatter(std::shared_ptr<HostsContext> context, const CollectiveIdentity& whole,
                                       at::Tensor output, const at::Tensor& input, const ReduceOptions& options,
                                       std::vector<uint64_t>* flags)
    : HostsCollective(std::move(context), whole, flags), output_(std::move(output)), options_(options) {
  const auto [hosts, ranks] = context_->grid;
  const int64_t n = output_.numel();
  sums_ = at::empty({hosts * n}, dtype_of_sums(input.scalar_type()));
  Communicator& local = *context_->local;
  if (hosts > kMostSteps) {
    const at::Tensor ordered =
        local.memory_sharing().reduction_input(static_cast<int64_t>(input.nbytes())).view(input.scalar_type());
    place_by_place(ordered, context_->grid).copy_(host_by_host(input, context_->grid));
    begun_.push_back(local.reduce_scatter(sums_, ordered, {}, step_, this->flags()));
  } else {
    for (int host = 0; host < hosts; ++host) {
      begun_.push_back(local.reduce_scatter(sums_.narrow(0, host * n, n), input.narrow(0, host * ranks * n, ranks * n),
                                            {}, step_, host == 0 ? this->flags() : nullptr));
    }
  }
  begin_in(*context_->across);
}

void HostsReduceScatter::go_on() {
  next_.push_back(context_->across_next->reduce_scatter(output_, sums_, options_, step_, flags()));
}

HostsAllReduce::HostsAllReduce(std::shared_ptr<HostsContext> context, const CollectiveIdentity& whole,
                               at::Tensor output, const at::Tensor& tensor, const ReduceOptions& options,
                               std::vector<uint64_t>* flags)
    : HostsCollective(std::move(context), whole, flags),
      output_(std::move(output)),
      dtype_(tensor.scalar_type()),
      numel_(tensor.numel()),
      options_(options) {
  const int64_t ranks = context_->grid.ranks_per_host;
  const int64_t n = (numel_ + ranks - 1) / ranks;
  Communicator& local = *context_->local;
  at::Tensor input = tensor;
  if (numel_ < n * ranks) {
    input =
        local.memory_sharing().reduction_input(n * ranks * static_cast<int64_t>(tensor.element_size())).view(dtype_);
    input.narrow(0, 0, numel_).copy_(tensor);
    input.narrow(0, numel_, n * ranks - numel_).zero_();
  }
  part_ = at::empty({n}, dtype_of_sums(dtype_));
  begun_.push_back(local.reduce_scatter(part_, input, {}, step_, this->flags()));
  begin_in(*context_->across);
}

// Results travel in the dtype of the contributions, as over Gloo.
void HostsAllReduce::go_on() {
  const int64_t ranks = context_->grid.ranks_per_host;
  const at::Tensor result = part_.scalar_type() == dtype_ ? part_ : at::empty({part_.numel()}, dtype_);
  context_->across_next->all_reduce(result, part_, {options_.scale}, step_, flags())->wait();
  const bool fits = output_.defined() && output_.scalar_type() == dtype_ && numel_ == part_.numel() * ranks;
  all_ = fits ? output_ : at::empty({part_.numel() * ranks}, dtype_);
  next_.push_back(context_->local_next->all_gather(all_, result, step_));
}

void HostsAllReduce::complete() {
  wait_for(next_);
  if (!all_.is_same(output_)) output_.copy_(all_.narrow(0, 0, numel_));
  if (options_.summary != nullptr) *options_.summary = summary_in_parts(output_, context_->world->size());
}

// ---------------------------------------------------------------- others

HostsBroadcast::HostsBroadcast(std::shared_ptr<HostsContext> context, const CollectiveIdentity& whole,
                               const at::Tensor& tensor, int root)
    : HostsCollective(std::move(context), whole, nullptr),
      tensor_(tensor),
      root_place_(root % context_->grid.ranks_per_host) {
  if (context_->place() == root_place_) {
    begun_.push_back(context_->across->broadcast(tensor_, root / context_->grid.ranks_per_host, step_));
  } else {
    begin_in(*context_->across);
  }
  begin_in(*context_->local);
}

void HostsBroadcast::go_on() { next_.push_back(context_->local_next->broadcast(tensor_, root_place_, step_)); }

HostsAllToAll::HostsAllToAll(std::shared_ptr<HostsContext> context, const CollectiveIdentity& whole,
                             const at::Tensor& output, const at::Tensor& input, const SplitCounts& counts)
    : HostsCollective(std::move(context), whole, nullptr) {
  next_.push_back(context_->world->all_to_all(output, input, counts, id_));
  begin_in(*context_->local);
  begin_in(*context_->across);
}

}  // namespace fsdp::comm
