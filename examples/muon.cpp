// Muon, an optimizer that needs whole matrices because it orthogonalises each update. Each parameter is updated on one
// rank, its owner. Only the owner keeps the optimizer state of the parameter:
//   torchrun --no-python --nproc-per-node 2 build/muon
#include <map>

#include "example.h"

using namespace example;

// Moves all singular values of a matrix towards 1 (Newton-Schulz iteration with Muon's coefficients).
at::Tensor orthogonalised(const at::Tensor& matrix) {
  const bool tall = matrix.size(0) > matrix.size(1);
  at::Tensor x = tall ? matrix.t() : matrix;
  x = x / (x.norm() + 1e-7);
  for (int i = 0; i < 5; ++i) {
    const at::Tensor a = x.mm(x.t());
    x = 3.4445 * x + (-4.7750 * a + 2.0315 * a.mm(a)).mm(x);
  }
  return tall ? x.t() : x;
}

// Updates matrices with Muon and all other parameters with gradient descent with momentum.
class Muon {
 public:
  void update(const std::string& name, at::Tensor value, const at::Tensor& gradient) {
    torch::NoGradGuard no_grad;
    at::Tensor& momentum = momentum_[name];
    momentum = momentum.defined() ? 0.9 * momentum + gradient : gradient.clone();
    value.sub_(value.dim() == 2 ? orthogonalised(momentum) : momentum, 0.01);
  }
  size_t states() const { return momentum_.size(); }

 private:
  std::map<std::string, at::Tensor> momentum_;
};

constexpr int kSteps = 3;

int main() {
  return run([] {
    const fsdp::Options options = make_options();
    const int rank = options.communicator->rank(), ranks = options.communicator->size();
    Net net = make_net();
    auto sharded = fsdp::fully_shard(*net, options);
    Muon muon;
    for (int step = 0; step < kSteps; ++step) {
      sharded->zero_grad();
      loss_of(*net, make_input(rank, step)).backward();
      sharded->update_whole_parameters([&](const fsdp::WholeParameter& parameter) {
        muon.update(parameter.fqn, parameter.value, parameter.gradient);
      });
    }

    Net alone = make_net();  // the same training in one process, on the batches of all ranks
    Muon muon_alone;
    for (int step = 0; step < kSteps; ++step) {
      alone->zero_grad();
      for (int other = 0; other < ranks; ++other) (loss_of(*alone, make_input(other, step)) / ranks).backward();
      for (auto& item : alone->named_parameters()) muon_alone.update(item.key(), item.value(), item.value().grad());
    }
    const auto expected = alone->named_parameters();
    sharded->for_each_full_parameter([&](const std::string& fqn, const at::Tensor& full) {
      require(torch::allclose(full, expected[fqn], 1e-2, 1e-4), fqn + " equals that of training in one process");
    });
    if (rank == 0) {
      std::cout << "rank 0 keeps the state of " << muon.states() << " of " << expected.size() << " parameters\n";
    }
    require(ranks == 1 || muon.states() < expected.size(), "state is spread over the ranks");
  });
}
