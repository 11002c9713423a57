// Support for the tests of recomputation: counts live bytes and the operators that run, and provides a block to run.
#pragma once

#include <c10/core/CPUAllocator.h>
#include <torch/torch.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <string>

#include "torch_seams/operator_interception.h"

namespace fsdp::testing {

// Counts the kernels that run on this thread while the object lives, by operator name.
class KernelCounter : public seams::OperatorInterceptor {
 public:
  KernelCounter() : guard_(*this) {}
  void intercept(const c10::OperatorHandle& op, torch::jit::Stack&, c10::function_ref<void()> run) override {
    ++counts_[op.schema().name()];
    run();
  }
  int of(const std::string& name) const { return counts_.count(name) ? counts_.at(name) : 0; }

 private:
  std::map<std::string, int> counts_;
  seams::InterceptionGuard guard_;
};

// Replaces the CPU allocator while the object lives, and counts the live bytes.
class CountingAllocator : public c10::Allocator {
 public:
  CountingAllocator() : base_(c10::GetCPUAllocator()) { c10::SetCPUAllocator(this); }
  ~CountingAllocator() override { c10::SetCPUAllocator(base_); }

  at::DataPtr allocate(size_t bytes) override {
    void* memory = base_->raw_allocate(bytes);
    std::lock_guard lock(blocks().mutex);
    blocks().deleter = base_->raw_deleter();
    blocks().bytes[memory] = static_cast<int64_t>(bytes);
    blocks().live += static_cast<int64_t>(bytes);
    blocks().peak = std::max(blocks().peak, blocks().live);
    return {memory, memory, &release, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { base_->copy_data(to, from, bytes); }

  static int64_t live_bytes() {
    std::lock_guard lock(blocks().mutex);
    return blocks().live;
  }
  // Returns the peak of the live bytes since the last call of reset_peak.
  static int64_t peak_bytes() {
    std::lock_guard lock(blocks().mutex);
    return blocks().peak;
  }
  static void reset_peak() {
    std::lock_guard lock(blocks().mutex);
    blocks().peak = blocks().live;
  }

 private:
  struct Blocks {
    std::mutex mutex;
    std::map<void*, int64_t> bytes;
    int64_t live = 0;
    int64_t peak = 0;
    c10::DeleterFnPtr deleter = nullptr;
  };
  // Never destroyed, so that it outlives the memory.
  static Blocks& blocks() {
    static auto* blocks = new Blocks();
    return *blocks;
  }
  static void release(void* memory) {
    {
      std::lock_guard lock(blocks().mutex);
      auto found = blocks().bytes.extract(memory);
      blocks().live -= found.mapped();
    }
    blocks().deleter(memory);
  }

  c10::Allocator* base_;
};

// The increase of the live bytes since the object was created.
class LiveBytes {
 public:
  LiveBytes() { CountingAllocator::reset_peak(); }
  int64_t operator()() const { return CountingAllocator::live_bytes() - start_; }
  int64_t peak() const { return CountingAllocator::peak_bytes() - start_; }

 private:
  int64_t start_ = CountingAllocator::live_bytes();
};

// Computes dropout(gelu(linear(x))) and counts its calls.
struct CountedBlockImpl : torch::nn::Module {
  explicit CountedBlockImpl(int64_t width, double dropout = 0) : dropout_(dropout) {
    linear = register_module("linear", torch::nn::Linear(width, width));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    ++calls;
    return torch::dropout(torch::gelu(linear(x)), dropout_, is_training());
  }

  torch::nn::Linear linear{nullptr};
  int calls = 0;

 private:
  double dropout_;
};
TORCH_MODULE(CountedBlock);

// Returns a block whose weights depend only on its width.
inline CountedBlock make_block(int64_t width, double dropout = 0) {
  CountedBlock block(width, dropout);
  torch::NoGradGuard no_grad;
  for (torch::Tensor& parameter : block->parameters()) {
    const torch::Tensor steps = torch::arange(parameter.numel()).to(torch::kFloat);
    parameter.copy_((torch::sin(steps * 0.7) / 2).view(parameter.sizes()));
  }
  return block;
}

}  // namespace fsdp::testing
