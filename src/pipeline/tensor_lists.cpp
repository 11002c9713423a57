#include "pipeline/tensor_lists.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>

namespace fsdp::pipeline {
namespace {

// A description is a row of numbers: how many tensors there are, then for each its dtype, whether its gradient is
// wanted, its number of dimensions and its sizes.
constexpr int64_t kNumbers = 128;

CollectiveId id_of_description(const CollectiveId& list) {
  return {c10::str("sizes of ", list.name), list.generation, list.pass};
}

CollectiveId id_of_tensor(const CollectiveId& list, size_t index, size_t count) {
  if (count == 1) return list;
  return {c10::str(list.name, ", tensor ", index + 1, " of ", count), list.generation, list.pass};
}

at::Tensor describe(const std::vector<at::Tensor>& tensors, const CollectiveId& id) {
  std::vector<int64_t> numbers{static_cast<int64_t>(tensors.size())};
  for (const at::Tensor& tensor : tensors) {
    numbers.insert(numbers.end(), {static_cast<int64_t>(tensor.scalar_type()), tensor.requires_grad(), tensor.dim()});
    numbers.insert(numbers.end(), tensor.sizes().begin(), tensor.sizes().end());
  }
  TORCH_CHECK(numbers.size() <= kNumbers, id.name, ": ", tensors.size(),
              " tensors are too many to pass to another stage: their sizes are ", numbers.size(), " numbers, at most ",
              kNumbers, " fit");
  at::Tensor row = at::zeros({kNumbers}, at::kLong);
  std::copy(numbers.begin(), numbers.end(), row.mutable_data_ptr<int64_t>());
  return row;
}

}  // namespace

TensorLists::TensorLists(std::shared_ptr<Communicator> group) : group_(group), twin_(group->twin()) {}

template <typename Tensor>
std::vector<Tensor> TensorLists::Arriving<Tensor>::take() {
  for (const auto& work : works) work->wait();
  return std::move(tensors);
}

// ---------------------------------------------------------------- activations

void TensorLists::send_activations(const std::vector<at::Tensor>& tensors, int to, const CollectiveId& id) {
  group_.group()->send(describe(tensors, id), to, id_of_description(id));
  for (size_t i = 0; i < tensors.size(); ++i) {
    twin_.send(tensors[i].detach().contiguous(), to, id_of_tensor(id, i, tensors.size()));
  }
}

void TensorLists::expect_activations(const Key& key, int from, const CollectiveId& id, c10::Device device) {
  const at::Tensor description = at::zeros({kNumbers}, at::kLong);
  auto described = group_.group()->recv(description, from, id_of_description(id));
  expected_[from].push_back({key, id, device, description, std::move(described)});
  senders_[key] = from;
  if (base::has_streams(device)) receive_next(from);
}

// Receives all lists that the sender has sent before, too.
std::vector<ReceivedTensor> TensorLists::take_activations(const Key& key) {
  const auto sender = senders_.find(key);
  TORCH_CHECK(sender != senders_.end(), "stage ", key.first, " has no inputs of micro-batch ", key.second);
  while (activations_.count(key) == 0) receive_next(sender->second);
  senders_.erase(sender);
  return activations_.extract(key).mapped().take();
}

void TensorLists::receive_next(int from) {
  std::deque<Expected>& of_sender = expected_[from];
  const Expected expected = std::move(of_sender.front());
  of_sender.pop_front();
  expected.described->wait();
  const auto* next = expected.description.const_data_ptr<int64_t>();
  Arriving<ReceivedTensor>& list = activations_[expected.key];
  list.tensors.resize(static_cast<size_t>(*next++));
  for (size_t i = 0; i < list.tensors.size(); ++i) {
    const auto dtype = static_cast<at::ScalarType>(*next++);
    ReceivedTensor& received = list.tensors[i];
    received.wants_gradient = *next++ != 0;
    const int64_t dim = *next++;
    received.tensor =
        at::empty(at::IntArrayRef(next, static_cast<size_t>(dim)), at::TensorOptions(dtype).device(expected.device));
    next += dim;
    list.works.push_back(twin_.recv(received.tensor, from, id_of_tensor(expected.id, i, list.tensors.size())));
  }
}

// ---------------------------------------------------------------- gradients

void TensorLists::send_gradients(const std::vector<at::Tensor>& gradients, int to, const CollectiveId& id) {
  for (size_t i = 0; i < gradients.size(); ++i) {
    group_.send(gradients[i].detach().contiguous(), to, id_of_tensor(id, i, gradients.size()));
  }
}

void TensorLists::expect_gradients(const Key& key, std::vector<at::Tensor> gradients, int from,
                                   const CollectiveId& id) {
  Arriving<at::Tensor> arriving{std::move(gradients), {}};
  for (size_t i = 0; i < arriving.tensors.size(); ++i) {
    arriving.works.push_back(group_.recv(arriving.tensors[i], from, id_of_tensor(id, i, arriving.tensors.size())));
  }
  gradients_[key] = std::move(arriving);
}

std::vector<at::Tensor> TensorLists::take_gradients(const Key& key) {
  auto found = gradients_.extract(key);
  TORCH_CHECK(!found.empty(), "stage ", key.first, " has no gradients of micro-batch ", key.second);
  return found.mapped().take();
}

void TensorLists::clear() {
  expected_.clear();
  senders_.clear();
  activations_.clear();
  gradients_.clear();
  group_.clear();
  twin_.clear();
}

}  // namespace fsdp::pipeline
