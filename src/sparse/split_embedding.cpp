#include "sparse/split_embedding.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <utility>

#include "sparse/lookup_node.h"
#include "torch_seams/autograd_node.h"

namespace fsdp::sparse {
namespace {

std::shared_ptr<const RowGroup> make_group(std::shared_ptr<Communicator> ranks, const models::EmbeddingTables& tables,
                                           const std::string& name) {
  TORCH_CHECK(ranks, "split embedding '", name, "': the communicator is null");
  RowSplit split(tables, ranks->size());
  return std::make_shared<const RowGroup>(RowGroup{std::move(ranks), std::move(split), tables.width, name});
}

}  // namespace

SplitEmbedding::SplitEmbedding(std::shared_ptr<Communicator> ranks, models::EmbeddingTables all,
                               const SplitEmbeddingOptions& options)
    : FeatureEmbedding(std::move(all)), group_(make_group(std::move(ranks), tables(), options.name)) {
  TORCH_CHECK(c10::isFloatingType(options.dtype), "split embedding '", options.name, "': rows cannot be of dtype ",
              options.dtype);
  const int64_t held = group_->split.rows_of(group_->ranks->rank());
  weight_ = at::empty({held, tables().width}, at::TensorOptions(options.dtype).device(options.device));
  const std::vector<EmbeddingPiece> parts = pieces();
  for (size_t table = 0; table < parts.size(); ++table) {
    models::fill_initial_rows(tables(), static_cast<int64_t>(table), parts[table].begin, parts[table].values);
  }
  weight_.requires_grad_();
}

std::vector<EmbeddingPiece> SplitEmbedding::pieces_of(const at::Tensor& state) const {
  TORCH_CHECK(state.dim() >= 1 && state.size(0) == weight_.size(0), "split embedding '", group_->name,
              "': state of sizes ", state.sizes(), " does not have the ", weight_.size(0), " rows of this rank");
  at::NoGradGuard no_grad;
  std::vector<EmbeddingPiece> result;
  for (const HeldRows& held : group_->split.held_by(group_->ranks->rank())) {
    result.push_back({c10::str("table.", held.table), tables().rows[static_cast<size_t>(held.table)], held.begin,
                      state.detach().narrow(0, held.place, held.end - held.begin)});
  }
  return result;
}

at::Tensor SplitEmbedding::forward(const at::Tensor& ids) {
  models::check_ids(tables(), ids);
  TORCH_CHECK(ids.device() == weight_.device(), "split embedding '", group_->name, "': ids are on ", ids.device(),
              ", the rows on ", weight_.device());
  const bool with_graph = torch::autograd::compute_requires_grad(weight_);
  const at::NoGradGuard no_grad;
  auto exchange = std::make_shared<RowExchange>(group_, lookups_++, ids);
  at::Tensor rows = exchange->fetch(weight_).view({ids.size(0), ids.size(1), tables().width});
  if (with_graph) {
    const auto self = std::static_pointer_cast<SplitEmbedding>(shared_from_this());
    auto node = seams::make_node<LookupNode>(std::move(exchange), tables().width,
                                             [self](const SparseRows& gradient) { self->add_gradient(gradient); });
    node->set_next_edges(torch::autograd::collect_next_edges(weight_));
    torch::autograd::set_history(rows, node);
  }
  return rows;
}

}  // namespace fsdp::sparse
