#include "data/data_checksum.h"

#include <algorithm>

#include "formats/common/checksum.h"

namespace fsdp::trainer {

namespace {

std::string_view bytes_of(const at::Tensor& contiguous) {
  return {static_cast<const char*>(contiguous.const_data_ptr()), contiguous.nbytes()};
}

}  // namespace

std::string data_checksum(const Dataset& dataset) {
  constexpr int64_t kSamples = 64;
  const int64_t last = dataset.size() - 1, count = std::min(kSamples, dataset.size());
  std::vector<uint64_t> checksums;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t index =
        count == 1
            ? 0
            : static_cast<int64_t>(static_cast<double>(last) * static_cast<double>(i) / static_cast<double>(count - 1));
    const Batch sample = dataset.batch({index});
    for (const at::Tensor& tensor : {sample.inputs, sample.labels, sample.attention_mask, sample.categorical}) {
      if (!tensor.defined()) continue;
      const at::Tensor contiguous = tensor.contiguous();
      checksums.push_back(formats::checksum_of(bytes_of(contiguous)));
    }
  }
  return formats::checksums_text({formats::checksum_of(formats::checksums_text(checksums))});
}

}  // namespace fsdp::trainer
