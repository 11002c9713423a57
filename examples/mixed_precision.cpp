// Mixed precision: parameters are gathered and used in bf16, gradients are reduced in fp32, and the optimizer works on
// fp32 shards. LayerNorm and evaluation stay in fp32:
//   torchrun --no-python --nproc-per-node 2 build/mixed_precision
#include "example.h"
#include "fsdp/fsdp.h"

using namespace example;

int main() {
  return run([] {
    fsdp::Options options = make_options();
    const int rank = options.communicator->rank();
    options.param_dtype = torch::kBFloat16;
    options.reduce_dtype = torch::kFloat;
    options.full_precision_classes = {"LayerNorm"};

    // The wrapper adds the features that depend on calls of forward(), train() and eval().
    fsdp::WrapperOptions wrapper;
    wrapper.output_dtype = torch::kFloat;   // the loss is computed in fp32
    wrapper.full_precision_in_eval = true;  // eval() switches to fp32, train() switches back
    fsdp::FullyShardedDataParallel<Net> model(make_net(), options, wrapper);
    torch::optim::AdamW optimizer(model.parameters(), torch::optim::AdamWOptions(1e-3));

    Net plain = make_net();  // the same weights in fp32, not sharded
    const at::Tensor input = make_input(rank, 0);
    const at::Tensor expected = plain->forward(input);
    const at::Tensor trained = model.forward(input);
    const Block& block = model->blocks[0];
    require(block->up->weight.scalar_type() == torch::kBFloat16, "a Linear is used in bf16");
    require(block->norm->weight.scalar_type() == torch::kFloat, "a LayerNorm is used in fp32");
    require(trained.scalar_type() == torch::kFloat, "outputs are fp32");
    require(!torch::equal(trained, expected) && torch::allclose(trained, expected, 0.1, 0.05), "bf16 rounds");

    model.eval();
    {
      torch::NoGradGuard no_grad;
      require(torch::equal(model.forward(input), expected), "evaluation is in full precision");
    }
    model.train();

    float first = 0, last = 0;
    for (int step = 0; step < 40; ++step) {
      model.zero_grad();
      const at::Tensor loss = loss_of(model, make_input(rank, 0));
      loss.backward();
      model.clip_grad_norm_(1.0);
      optimizer.step();
      (step == 0 ? first : last) = loss.item<float>();
    }
    for (const at::Tensor& leaf : model.parameters()) {
      const at::Tensor& gradient = leaf.grad();  // undefined if this rank holds no part of the parameter
      require(leaf.scalar_type() == torch::kFloat, "shards are fp32");
      require(!gradient.defined() || gradient.scalar_type() == torch::kFloat, "their gradients are fp32");
    }
    if (rank == 0) std::cout << "loss in bf16: " << first << ", after 40 steps " << last << "\n";
    require(last < first, "the loss falls");
  });
}
