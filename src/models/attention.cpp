#include "models/attention.h"

#include <ATen/OpMathType.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tanh.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

namespace fsdp::models {
namespace {

// The queries of a block, and the keys that they can reach.
struct Block {
  int64_t first_query, queries, first_key, keys;
};

// Splits the queries of a sequence. Of a window, a block computes queries - 1 keys for each query that are masked, so
// small blocks compute less, and large ones run faster.
std::vector<Block> blocks_of(int64_t sequence, int64_t window) {
  constexpr int64_t kFewest = 64;
  const int64_t size = std::max(kFewest, window == sequence ? sequence / 4 : window / 2);
  std::vector<Block> blocks;
  for (int64_t begin = 0; begin < sequence; begin += size) {
    const int64_t end = std::min(begin + size, sequence), first_key = std::max<int64_t>(0, begin - window + 1);
    blocks.push_back({begin, end - begin, first_key, end - first_key});
  }
  return blocks;
}

// Returns which keys each query of the block does not see: [queries, keys] bool. Uses bitwise operators: LibTorch has
// no logical ones for the meta device.
at::Tensor hidden_keys(const Block& block, int64_t window, at::Device device) {
  const auto positions = at::TensorOptions(device).dtype(at::kLong);
  const at::Tensor queries = at::arange(block.first_query, block.first_query + block.queries, positions).unsqueeze(1);
  const at::Tensor keys = at::arange(block.first_key, block.first_key + block.keys, positions);
  return keys.gt(queries).bitwise_or_(keys.le(queries - window));
}

at::Tensor fused(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                 const std::optional<at::Tensor>& mask, bool is_causal, const AttentionOptions& options) {
  return at::scaled_dot_product_attention(query, key, value, mask, options.dropout, is_causal, options.scale,
                                          /*enable_gqa=*/key.size(1) != query.size(1));
}

// Computes the block with the rounding steps of transformers' eager attention. The queries of the heads that share a
// key are rows of one product.
at::Tensor with_softcap(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                        const at::Tensor& hidden, const AttentionOptions& options) {
  const int64_t heads = query.size(1), shared = key.size(1), queries = query.size(2), dim = query.size(3);
  const double scale = options.scale.value_or(1.0 / std::sqrt(static_cast<double>(dim)));
  const at::Tensor rows = query.reshape({query.size(0), shared, heads / shared * queries, dim});
  at::Tensor scores = at::matmul(rows, key.transpose(2, 3)) * scale;
  scores = at::tanh(scores / *options.softcap) * *options.softcap;
  scores = scores.view({query.size(0), shared, heads / shared, queries, key.size(2)})
               .masked_fill(hidden, -std::numeric_limits<double>::infinity());
  const c10::ScalarType dtype = query.scalar_type();
  const at::Tensor weights = at::softmax(scores, -1, dtype == at::kDouble ? at::kDouble : at::kFloat).to(dtype);
  const at::Tensor dropped = options.dropout > 0 ? at::dropout(weights, options.dropout, /*train=*/true) : weights;
  return at::matmul(dropped.flatten(2, 3), value).view(query.sizes());
}

// causal_attention in blocks of queries, [batch, heads, sequence, head_dim].
at::Tensor in_blocks(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, int64_t window,
                     const AttentionOptions& options) {
  std::vector<at::Tensor> parts;
  for (const Block& block : blocks_of(query.size(2), window)) {
    const at::Tensor queries = query.narrow(2, block.first_query, block.queries);
    const at::Tensor keys = key.narrow(2, block.first_key, block.keys);
    const at::Tensor values = value.narrow(2, block.first_key, block.keys);
    const at::Tensor hidden = hidden_keys(block, window, query.device());
    parts.push_back(options.softcap ? with_softcap(queries, keys, values, hidden, options)
                                    : fused(queries, keys, values, hidden.bitwise_not(), /*is_causal=*/false, options));
  }
  return parts.size() == 1 ? parts.front() : at::cat(parts, 2);
}

// causal_attention of whole sequences, [batch, heads, sequence, head_dim].
at::Tensor of_sequences(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                        const AttentionOptions& options) {
  const int64_t sequence = query.size(2), window = attended_keys(sequence, options.window);
  if (window == sequence && !options.softcap) {
    return fused(query, key, value, std::nullopt, /*is_causal=*/true, options);
  }
  return in_blocks(query, key, value, window, options);
}

// The documents of one sequence. Splits, whose gradients are put together once, and not slices, each of which would
// add one of the whole sequence.
template <typename Attend>
at::Tensor of_documents(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                        const std::vector<int64_t>& lengths, const Attend& attend) {
  TORCH_CHECK(std::accumulate(lengths.begin(), lengths.end(), int64_t{0}) == query.size(2),
              "attention: the documents do not make up a sequence of ", query.size(2), " tokens");
  const auto queries = query.split_with_sizes(lengths, 2), keys = key.split_with_sizes(lengths, 2);
  const auto values = value.split_with_sizes(lengths, 2);
  std::vector<at::Tensor> parts;
  for (size_t i = 0; i < lengths.size(); ++i) {
    parts.push_back(attend(queries[i], keys[i], values[i]));
  }
  return at::cat(parts, 2);
}

// Calls attend(query, key, value) for each document, or for all sequences at once if each is one document.
template <typename Attend>
at::Tensor by_document(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                       const Documents& documents, const Attend& attend) {
  if (documents.are_sequences()) return attend(query, key, value);
  TORCH_CHECK(static_cast<int64_t>(documents.lengths().size()) == query.size(0), "attention: documents of ",
              documents.lengths().size(), " sequences, but a batch of ", query.size(0));
  const auto queries = query.split(1), keys = key.split(1), values = value.split(1);
  std::vector<at::Tensor> sequences;
  for (size_t i = 0; i < queries.size(); ++i) {
    sequences.push_back(of_documents(queries[i], keys[i], values[i], documents.lengths()[i], attend));
  }
  return at::cat(sequences, 0);
}

// Calls attend(cast), where cast(x) has the dtype to compute in, and returns its result in the shape and dtype of all
// functions here.
template <typename Attend>
at::Tensor rounded_once(const at::Tensor& value, const AttentionOptions& options, const Attend& attend) {
  const at::ScalarType dtype = value.scalar_type();
  const auto cast = [&](const at::Tensor& x) { return options.in_full_precision ? x.to(at::toOpMathType(dtype)) : x; };
  return attend(cast).to(dtype).transpose(1, 2).flatten(2);
}

}  // namespace

at::Tensor split_heads(const at::Tensor& x, int64_t head_dim) {
  return x.view({x.size(0), x.size(1), -1, head_dim}).transpose(1, 2);
}

int64_t attended_keys(int64_t sequence, std::optional<int64_t> window) {
  return std::min(sequence, window.value_or(sequence));
}

at::Tensor causal_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                            const AttentionOptions& options, const Documents& documents) {
  // LibTorch's flash attention on CPUs multiplies masked products, which are -inf, by the scale.
  TORCH_CHECK(options.scale.value_or(1.0) > 0, "causal_attention: the scale is ", *options.scale,
              "; it must be greater than 0");
  return rounded_once(value, options, [&](const auto& cast) {
    return by_document(cast(query), cast(key), cast(value), documents,
                       [&](const auto& q, const auto& k, const auto& v) { return of_sequences(q, k, v, options); });
  });
}

at::Tensor biased_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                            const at::Tensor& bias, const AttentionOptions& options, const Documents& documents) {
  TORCH_CHECK(!options.window && !options.softcap, "biased_attention has neither a window nor a softcap");
  return rounded_once(value, options, [&](const auto& cast) {
    const auto bias_of = [&, all = bias.defined() ? cast(bias) : bias](int64_t queries, int64_t keys) {
      if (!all.defined()) return std::optional<at::Tensor>();
      if (documents.are_sequences()) return std::optional<at::Tensor>(all);
      return std::optional<at::Tensor>(all.narrow(-2, 0, queries).narrow(-1, 0, keys));
    };
    return by_document(cast(query), cast(key), cast(value), documents,
                       [&](const auto& q, const auto& k, const auto& v) {
                         return fused(q, k, v, bias_of(q.size(2), k.size(2)), /*is_causal=*/false, options);
                       });
  });
}

}  // namespace fsdp::models
