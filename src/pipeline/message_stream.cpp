#include "pipeline/message_stream.h"

#include "base/stream_order.h"

namespace fsdp::pipeline {
namespace {

// Messages whose memory may be kept. A sender that is further ahead of a receiver waits for it.
constexpr size_t kMostSent = 4;

}  // namespace

const c10::Stream& MessageStream::after_current(c10::Device device) {
  if (!stream_ || stream_->device() != device) stream_ = base::take_stream(device, base::StreamPriority::kHigh);
  base::order_streams(base::current_stream(device), *stream_);
  return *stream_;
}

void MessageStream::send(const at::Tensor& tensor, int to, const CollectiveId& id) {
  if (!base::has_streams(tensor.device())) {
    group_->send(tensor, to, id);
    return;
  }
  std::unique_ptr<Work> work;
  {
    const base::CurrentStreamGuard guard(after_current(tensor.device()));
    work = group_->send(tensor, to, id);
  }
  sent_.push_back({tensor, std::move(work)});
  if (sent_.size() > kMostSent) sent_.pop_front();
}

std::unique_ptr<Work> MessageStream::recv(const at::Tensor& output, int from, const CollectiveId& id) {
  if (!base::has_streams(output.device())) return group_->recv(output, from, id);
  const base::CurrentStreamGuard guard(after_current(output.device()));
  return group_->recv(output, from, id);
}

}  // namespace fsdp::pipeline
