// Tensor and sequence parallelism under FSDP: pairs of ranks split the weights of a transformer in plain LibTorch, and
// the sequence between its layers; the pairs shard what each rank holds. Needs an even number of ranks:
//   torchrun --no-python --nproc-per-node 4 build/tensor_parallel
#include "fsdp/tensor_parallel.h"
#include "example.h"
#include "fsdp/device_mesh.h"

using namespace example;

constexpr int64_t kWidth = 64, kHeads = 4, kHeadSize = 16, kVocabulary = 101, kLength = 12;

struct AttentionImpl : torch::nn::Module {
  AttentionImpl()
      : q(register_module("q", torch::nn::Linear(kWidth, kHeads * kHeadSize))),
        k(register_module("k", torch::nn::Linear(kWidth, kHeads * kHeadSize))),
        v(register_module("v", torch::nn::Linear(kWidth, kHeads * kHeadSize))),
        o(register_module("o", torch::nn::Linear(kHeads * kHeadSize, kWidth))) {}
  at::Tensor forward(const at::Tensor& x) {
    // -1: a rank has some of the heads.
    const auto heads = [](const at::Tensor& y) {
      return y.view({y.size(0), y.size(1), -1, kHeadSize}).transpose(1, 2);
    };
    const at::Tensor attended = at::scaled_dot_product_attention(heads(q(x)), heads(k(x)), heads(v(x)), {}, 0.0, true);
    return o(attended.transpose(1, 2).flatten(2));
  }
  torch::nn::Linear q, k, v, o;
};
TORCH_MODULE(Attention);

struct LayerImpl : torch::nn::Module {
  LayerImpl()
      : norm1(register_module("norm1", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})))),
        attention(register_module("attention", Attention())),
        norm2(register_module("norm2", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})))),
        up(register_module("up", torch::nn::Linear(kWidth, 4 * kWidth))),
        down(register_module("down", torch::nn::Linear(4 * kWidth, kWidth))) {}
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor y = x + attention(norm1(x));
    return y + down(torch::gelu(up(norm2(y))));
  }
  torch::nn::LayerNorm norm1;
  Attention attention;
  torch::nn::LayerNorm norm2;
  torch::nn::Linear up, down;
};
TORCH_MODULE(Layer);

struct TransformerImpl : torch::nn::Module {
  TransformerImpl()
      : embed(register_module("embed", torch::nn::Embedding(kVocabulary, kWidth))),
        norm(register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})))),
        head(register_module("head", torch::nn::Linear(kWidth, kVocabulary))) {
    for (int i = 0; i < 3; ++i) layers->push_back(Layer());
    register_module("layers", layers);
  }
  at::Tensor forward(const at::Tensor& ids) {
    at::Tensor x = embed(ids);
    for (const auto& layer : *layers) x = layer->as<LayerImpl>()->forward(x);
    return head(norm(x));
  }
  torch::nn::Embedding embed;
  torch::nn::ModuleList layers;
  torch::nn::LayerNorm norm;
  torch::nn::Linear head;
};
TORCH_MODULE(Transformer);

// [plan]
fsdp::TensorParallelOptions split(fsdp::DeviceMesh& mesh, bool splits_sequence) {
  using fsdp::SplitStyle;
  fsdp::TensorParallelOptions options{mesh.group("tp"),
                                      {{"embed", SplitStyle::kVocabulary},
                                       {"layers.*.attention.q", SplitStyle::kColwise, kHeads},
                                       {"layers.*.attention.k", SplitStyle::kColwise, kHeads},
                                       {"layers.*.attention.v", SplitStyle::kColwise, kHeads},
                                       {"layers.*.attention.o", SplitStyle::kRowwise, kHeads},
                                       {"layers.*.up", SplitStyle::kColwise},
                                       {"layers.*.down", SplitStyle::kRowwise},
                                       {"head", SplitStyle::kColwise}}};
  if (splits_sequence) {
    for (const char* norm : {"layers.*.norm1", "layers.*.norm2", "norm"}) {
      options.plan.push_back({norm, SplitStyle::kSharedByParts});
    }
    options.sequence_dim = 1;
  }
  return options;
}
// [/plan]

// The ranks of a pair read the same samples.
at::Tensor make_ids(int data_rank, int step) {
  torch::manual_seed(1 + 1000 * step + data_rank);
  return torch::randint(kVocabulary, {4, kLength});
}

// Trains, and returns the loss of the last step on the samples of this rank.
double train(fsdp::DeviceMesh& mesh, bool splits_sequence, bool prints) {
  torch::manual_seed(0);
  Transformer model;
  fsdp::Options options;
  options.mesh = mesh.data_parallel();
  options.auto_wrap_policy = fsdp::module_class_policy<LayerImpl>();
  const bool splits = mesh.size("tp") > 1;
  if (splits) options.tensor_parallel = split(mesh, splits_sequence);
  const auto sharded = fsdp::fully_shard(*model, options);
  const fsdp::SplitClasses classes(mesh.group("tp"), kVocabulary);  // no rank ever has all logits
  torch::optim::AdamW optimizer(sharded->parameters(), torch::optim::AdamWOptions(1e-2));
  double last = 0;
  for (int step = 0; step < 4; ++step) {
    sharded->zero_grad();
    const at::Tensor ids = make_ids(mesh.rank("dp_shard"), step);
    const at::Tensor loss = classes.mean_cross_entropy(model(ids), ids.roll(-1, 1));
    loss.backward();
    sharded->clip_grad_norm_(1.0);
    optimizer.step();
    last = loss.item<double>();
  }
  if (prints) {
    std::cout << (splits_sequence ? "weights and sequence split: "
                  : splits        ? "weights split: "
                                  : "not split: ")
              << "attention.q has " << model->layers[0]->as<LayerImpl>()->attention->q->weight.size(0)
              << " outputs, loss " << last << "\n";
  }
  return last;
}

int main() {
  return run([] {
    const auto world = fsdp::make_cpu_communicator(fsdp::rank_environment()).communicator;
    if (world->size() % 2 != 0) throw std::runtime_error("tensor_parallel needs an even number of ranks");
    fsdp::DeviceMesh mesh = fsdp::DeviceMesh::make(world, {{"dp_shard", -1}, {"tp", 2}});
    // The same data-parallel ranks, of which each has the whole model.
    fsdp::DeviceMesh whole = fsdp::DeviceMesh::make(mesh.group("dp_shard"), {{"dp_shard", -1}, {"tp", 1}});
    const bool prints = world->rank() == 0;
    const double expected = train(whole, /*splits_sequence=*/false, prints);
    const double weights = train(mesh, /*splits_sequence=*/false, prints);
    const double both = train(mesh, /*splits_sequence=*/true, prints);
    require(std::abs(weights - expected) < 1e-4, "split weights train the same model");
    require(std::abs(both - expected) < 1e-4, "a split sequence does not change that");
  });
}
