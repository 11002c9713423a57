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
  return row.to(tensors.front().device());
}

}  // namespace

TensorLists::TensorLists(std::shared_ptr<Communicator> group) : group_(std::move(group)), twin_(group_->twin()) {}

// ---------------------------------------------------------------- activations

void TensorLists::send_activations(const std::vector<at::Tensor>& tensors, int to, const CollectiveId& id) {
  group_->send(describe(tensors, id), to, id_of_description(id));
  for (size_t i = 0; i < tensors.size(); ++i) {
    twin_->send(tensors[i].detach().contiguous(), to, id_of_tensor(id, i, tensors.size()));
  }
}

void TensorLists::expect_activations(const Key& key, int from, const CollectiveId& id, c10::Device device) {
  const at::Tensor description = at::zeros({kNumbers}, at::TensorOptions(at::kLong).device(device));
  auto described = group_->recv(description, from, id_of_description(id));
  expected_[from].push_back({key, id, device, description, std::move(described)});
  senders_[key] = from;
}

// Receives all lists that the sender has sent before, too.
std::vector<ReceivedTensor> TensorLists::take_activations(const Key& key) {
  const auto sender = senders_.find(key);
  TORCH_CHECK(sender != senders_.end(), "stage ", key.first, " has no inputs of micro-batch ", key.second);
  std::deque<Expected>& expected = expected_[sender->second];
  while (arrived_.count(key) == 0) {
    arrived_[expected.front().key] = receive(expected.front(), sender->second);
    expected.pop_front();
  }
  senders_.erase(sender);
  return std::move(arrived_.extract(key).mapped());
}

std::vector<ReceivedTensor> TensorLists::receive(Expected& expected, int from) {
  expected.described->wait();
  const at::Tensor numbers = expected.description.cpu();
  const auto* next = numbers.const_data_ptr<int64_t>();
  std::vector<ReceivedTensor> list(static_cast<size_t>(*next++));
  std::vector<std::unique_ptr<Work>> works;
  for (size_t i = 0; i < list.size(); ++i) {
    const auto dtype = static_cast<at::ScalarType>(*next++);
    list[i].wants_gradient = *next++ != 0;
    const int64_t dim = *next++;
    list[i].tensor =
        at::empty(at::IntArrayRef(next, static_cast<size_t>(dim)), at::TensorOptions(dtype).device(expected.device));
    next += dim;
    works.push_back(twin_->recv(list[i].tensor, from, id_of_tensor(expected.id, i, list.size())));
  }
  for (const auto& work : works) work->wait();
  return list;
}

// ---------------------------------------------------------------- gradients

void TensorLists::send_gradients(const std::vector<at::Tensor>& gradients, int to, const CollectiveId& id) {
  for (size_t i = 0; i < gradients.size(); ++i) {
    group_->send(gradients[i].detach().contiguous(), to, id_of_tensor(id, i, gradients.size()));
  }
}

void TensorLists::expect_gradients(const Key& key, std::vector<at::Tensor> gradients, int from,
                                   const CollectiveId& id) {
  Gradients expected{std::move(gradients), {}};
  for (size_t i = 0; i < expected.tensors.size(); ++i) {
    expected.works.push_back(group_->recv(expected.tensors[i], from, id_of_tensor(id, i, expected.tensors.size())));
  }
  gradients_[key] = std::move(expected);
}

std::vector<at::Tensor> TensorLists::take_gradients(const Key& key) {
  const auto found = gradients_.find(key);
  TORCH_CHECK(found != gradients_.end(), "stage ", key.first, " has no gradients of micro-batch ", key.second);
  for (const auto& work : found->second.works) work->wait();
  std::vector<at::Tensor> gradients = std::move(found->second.tensors);
  gradients_.erase(found);
  return gradients;
}

void TensorLists::clear() {
  expected_.clear();
  senders_.clear();
  arrived_.clear();
  gradients_.clear();
}

}  // namespace fsdp::pipeline
