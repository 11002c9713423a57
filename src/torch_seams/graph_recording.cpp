#include "torch_seams/graph_recording.h"

#include <ATen/core/grad_mode.h>

namespace fsdp::seams {
namespace {

thread_local int recorded_later = 0;

}  // namespace

GraphRecordedLater::GraphRecordedLater() { ++recorded_later; }
GraphRecordedLater::~GraphRecordedLater() { --recorded_later; }

bool records_graph() { return at::GradMode::is_enabled() || recorded_later > 0; }

}  // namespace fsdp::seams
