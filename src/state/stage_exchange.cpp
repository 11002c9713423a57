#include "state/stage_exchange.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "formats/common/dtype.h"
#include "state/memory_order.h"

namespace fsdp::state {
namespace {

const CollectiveId kPlace{"place of a tensor of the model", 0, Pass::kUser};
const CollectiveId kTensor{"tensor of the model", 0, Pass::kUser};
const CollectiveId kTaken{"tensor of the model was taken", 0, Pass::kUser};

std::string text_of(const std::vector<StageTensor>& tensors) {
  nlohmann::json list = nlohmann::json::array();
  for (const auto& [names, tensor] : tensors) {
    list.push_back({names, formats::safetensors_dtype(tensor.dtype), tensor.sizes, tensor.strides});
  }
  return list.dump();
}

std::vector<StageTensor> tensors_from(const std::string& text) {
  std::vector<StageTensor> tensors;
  for (const nlohmann::json& entry : nlohmann::json::parse(text)) {
    tensors.push_back({entry.at(0).get<std::vector<std::string>>(),
                       {formats::dtype_from_safetensors(entry.at(1).get<std::string>()).value(),
                        entry.at(2).get<std::vector<int64_t>>(), entry.at(3).get<std::vector<int64_t>>()}});
  }
  return tensors;
}

}  // namespace

StageExchange::StageExchange(Communicator& pipeline, c10::Device device, const std::vector<StageTensor>& own)
    : pipeline_(pipeline), device_(device) {
  for (const std::string& text : pipeline.all_gather_bytes(text_of(own), {"tensors of the stages", 0, Pass::kUser})) {
    of_rank_.push_back(tensors_from(text));
  }
}

std::vector<StageTensor> StageExchange::all() const {
  std::vector<StageTensor> all;
  for (const auto& tensors : of_rank_) all.insert(all.end(), tensors.begin(), tensors.end());
  return all;
}

at::Tensor StageExchange::number(int64_t value) const {
  return at::full({1}, value, at::TensorOptions(at::kLong).device(device_));
}

int64_t StageExchange::place_of(const std::vector<std::string>& names) const {
  const auto& own = of_rank_.at(static_cast<size_t>(pipeline_.rank()));
  const auto found = std::find_if(own.begin(), own.end(), [&](const auto& tensor) { return tensor.names == names; });
  TORCH_CHECK(found != own.end(), "'", names.front(), "' is no tensor of this rank's stages");
  return found - own.begin();
}

const StageTensor& StageExchange::sent(int rank, const at::Tensor& place) const {
  return of_rank_.at(static_cast<size_t>(rank)).at(static_cast<size_t>(place.item<int64_t>()));
}

at::Tensor StageExchange::elements(const SourceTensor& tensor) const {
  return at::empty({tensor.numel()}, at::TensorOptions(tensor.dtype).device(device_));
}

void StageExchange::to_rank_0(const VisitOwn& visit_own, const Take& take) {
  if (pipeline_.rank() != 0) {
    return visit_own([&](const std::vector<std::string>& names, const at::Tensor& tensor) {
      const auto place = pipeline_.send(number(place_of(names)), 0, kPlace);
      const auto elements = pipeline_.send(elements_of(tensor).values.to(device_), 0, kTensor);
      pipeline_.recv(number(0), 0, kTaken)->wait();
    });
  }
  visit_own(take);
  for (int rank = 1; rank < pipeline_.size(); ++rank) {
    for (size_t i = 0; i < of_rank_.at(static_cast<size_t>(rank)).size(); ++i) {
      const at::Tensor place = number(0);
      pipeline_.recv(place, rank, kPlace)->wait();
      const auto& [names, tensor] = sent(rank, place);
      const at::Tensor values = elements(tensor);
      pipeline_.recv(values, rank, kTensor)->wait();
      take(names, tensor_of(values, tensor.sizes, tensor.strides));
      pipeline_.send(number(1), rank, kTaken);
    }
  }
}

void StageExchange::to_all(const VisitOwn& visit_own, const Take& take) {
  for (int rank = 0; rank < pipeline_.size(); ++rank) {
    const auto share = [&](const at::Tensor& tensor, const CollectiveId& id) {
      if (tensor.numel() > 0) pipeline_.broadcast(tensor, rank, id)->wait();
    };
    if (rank == pipeline_.rank()) {
      visit_own([&](const std::vector<std::string>& names, const at::Tensor& tensor) {
        share(number(place_of(names)), kPlace);
        share(elements_of(tensor).values.to(device_), kTensor);
        take(names, tensor);
      });
      continue;
    }
    for (size_t i = 0; i < of_rank_.at(static_cast<size_t>(rank)).size(); ++i) {
      const at::Tensor place = number(0);
      share(place, kPlace);
      const auto& [names, tensor] = sent(rank, place);
      const at::Tensor values = elements(tensor);
      share(values, kTensor);
      take(names, tensor_of(values, tensor.sizes, tensor.strides));
    }
  }
}

}  // namespace fsdp::state
