#include "base/stream_order.h"

#include <algorithm>

namespace fsdp::base {

void order_streams(const c10::Stream& earlier, const c10::Stream& later) {
  if (!has_streams(earlier.device()) || earlier == later) return;
  DeviceEvent here;
  here.record(earlier);
  here.block(later);
}

void MemoryOrder::before_use(const at::Tensor& bytes) {
  if (!has_streams(bytes.device())) return;
  const char* begin = static_cast<const char*>(bytes.const_data_ptr());
  const char* end = begin + bytes.nbytes();
  const c10::Stream stream = current_stream(bytes.device());
  for (const Use& use : uses_) {
    if (use.begin < end && begin < use.end) use.over.block(stream);
  }
}

// Earlier uses that lie inside these bytes are cleared, because before_use waited for them.
void MemoryOrder::after_use(const at::Tensor& bytes) {
  if (!has_streams(bytes.device())) return;
  const char* begin = static_cast<const char*>(bytes.const_data_ptr());
  const char* end = begin + bytes.nbytes();
  std::erase_if(uses_, [&](const Use& use) { return begin <= use.begin && use.end <= end; });
  uses_.push_back({begin, end, {}});
  uses_.back().over.record_current(bytes.device());
}

void StreamTurns::take(c10::Device device) {
  if (!has_streams(device)) return;
  const c10::Stream stream = current_stream(device);
  if (last_) order_streams(*last_, stream);
  last_ = stream;
}

void StreamReaders::begin(c10::Device device) {
  if (has_streams(device)) readers_.assign(1, current_stream(device));
}

void StreamReaders::add(c10::Device device) {
  if (!has_streams(device) || readers_.empty()) return;
  const c10::Stream stream = current_stream(device);
  if (std::find(readers_.begin(), readers_.end(), stream) == readers_.end()) {
    order_streams(readers_.front(), stream);
    readers_.push_back(stream);
  }
}

void StreamReaders::end(c10::Device device) {
  if (!has_streams(device)) return;
  const c10::Stream stream = current_stream(device);
  for (const c10::Stream& reader : readers_) order_streams(reader, stream);
  readers_.clear();
}

}  // namespace fsdp::base
