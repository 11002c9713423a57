#include "frontend/buffer_casts.h"

#include <ATen/core/grad_mode.h>

namespace fsdp::frontend {
namespace {

void cast_own(torch::nn::Module& module, at::ScalarType dtype, engine::Engine& engine) {
  for (auto& entry : module.named_buffers(/*recurse=*/false)) {
    at::Tensor buffer = entry.value();
    if (buffer.defined() && buffer.is_floating_point() && buffer.scalar_type() != dtype) {
      engine.precision().add({buffer, buffer.scalar_type(), dtype});
      buffer.set_data(buffer.to(dtype));
    }
  }
}

void visit(torch::nn::Module& module, const std::string& path, at::ScalarType dtype, const PathSet& except,
           engine::Engine& engine) {
  if (except.covers(path)) return;
  cast_own(module, dtype, engine);
  for (const auto& child : module.named_children()) {
    visit(*child.value(), join_path(path, child.key()), dtype, except, engine);
  }
}

}  // namespace

void cast_buffers(torch::nn::Module& root, at::ScalarType dtype, const PathSet& except, engine::Engine& engine) {
  at::NoGradGuard no_grad;
  visit(root, "", dtype, except, engine);
}

}  // namespace fsdp::frontend
