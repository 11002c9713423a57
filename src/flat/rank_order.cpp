#include "flat/rank_order.h"

#include <ATen/ops/zeros.h>

#include <array>
#include <cstring>

namespace fsdp::flat {
namespace {

// The rows of one parameter that the cut by rows gives to `ranks` ranks from `first_rank` on, `rows` to each.
struct RowBlock {
  int64_t first_rank = 0;
  int64_t ranks = 0;
  int64_t rows = 0;
};

// Returns the block of the ranks whose parts are full, and the block of the one rank, if any, that gets what is left.
std::array<RowBlock, 2> row_blocks(const FlatLayout& layout, int64_t parameter) {
  const int64_t rows = layout.extent(parameter).rows, of_shard = layout.rows_of_shard(parameter);
  if (rows == 0) return {};
  const int64_t full = rows / of_shard, left = rows % of_shard;
  return {RowBlock{0, full, of_shard}, RowBlock{full, left > 0 ? 1 : 0, left}};
}

bool is_empty(const RowBlock& block) { return block.ranks == 0 || block.rows == 0; }

// Returns the block as [ranks, rows, the parameter's other dimensions] in rank order.
at::Tensor in_rank_order(const FlatParameter& flat, const at::Tensor& tensor, int64_t parameter,
                         const RowBlock& block) {
  const FlatLayout& layout = flat.layout();
  const ShardedParameter& p = flat.parameters()[static_cast<size_t>(parameter)];
  std::vector<int64_t> sizes = {block.ranks, block.rows};
  std::vector<int64_t> strides = {layout.shard_numel(), layout.extent(parameter).row_numel()};
  for (size_t d = 0; d < p.sizes.size(); ++d) {
    if (static_cast<int64_t>(d) == p.shard_dim) continue;
    sizes.push_back(p.sizes[d]);
    strides.push_back(p.strides[d]);
  }
  const int64_t begin = block.first_rank * layout.shard_numel() + layout.place_in_shards(parameter);
  return tensor.as_strided(sizes, strides, tensor.storage_offset() + begin);
}

// Returns the same block of a tensor that has the parameter's shape.
at::Tensor in_parameter(const FlatParameter& flat, const at::Tensor& value, int64_t parameter, const RowBlock& block) {
  const FlatLayout& layout = flat.layout();
  const int64_t dim = flat.parameters()[static_cast<size_t>(parameter)].shard_dim;
  const at::Tensor rows = value.dim() == 0 ? value.unsqueeze(0) : value.movedim(dim, 0);
  return rows.narrow(0, block.first_rank * layout.rows_of_shard(parameter), block.ranks * block.rows)
      .unflatten(0, {block.ranks, block.rows});
}

template <typename Visit>
void for_each_block(const FlatLayout& layout, int64_t parameter, const Visit& visit) {
  for (const RowBlock& block : row_blocks(layout, parameter)) {
    if (!is_empty(block)) visit(block);
  }
}

at::Tensor range(const at::Tensor& tensor, int64_t begin, int64_t numel) { return tensor.narrow(0, begin, numel); }

// Sets what a rank's shard has no element for to zero.
void zero_padding_of(const FlatLayout& layout, const at::Tensor& like_shard, int64_t rank) {
  for (int64_t i = 0; i < layout.num_parameters(); ++i) {
    const int64_t room = layout.rows_of_shard(i) * layout.extent(i).row_numel();
    const int64_t used = layout.slice(i, rank).numel();
    if (used < room) range(like_shard, layout.place_in_shards(i) + used, room - used).zero_();
  }
}

// The tensors are contiguous.
bool same_bits(const at::Tensor& left, const at::Tensor& right) {
  if (!left.is_cpu()) return left.view(at::kByte).equal(right.view(at::kByte));
  return std::memcmp(left.const_data_ptr(), right.const_data_ptr(), left.nbytes()) == 0;
}

}  // namespace

void copy_to_whole(const FlatParameter& flat, const at::Tensor& rank_order, const at::Tensor& whole) {
  const FlatLayout& layout = flat.layout();
  if (layout.is_in_rank_order()) {
    whole.copy_(rank_order);
    return;
  }
  for (int64_t i = 0; i < layout.num_parameters(); ++i) {
    const at::Tensor value = flat.view_in(whole, i);
    for_each_block(layout, i, [&](const RowBlock& block) {
      in_parameter(flat, value, i, block).copy_(in_rank_order(flat, rank_order, i, block));
    });
  }
}

void copy_to_rank_order(const FlatParameter& flat, const at::Tensor& whole, const at::Tensor& rank_order) {
  const FlatLayout& layout = flat.layout();
  for (int64_t i = 0; i < layout.num_parameters(); ++i) {
    write_in_rank_order(flat, rank_order, i, flat.view_in(whole, i), /*add=*/false);
  }
  zero_padding(flat, rank_order);
}

void copy_own_part(const FlatParameter& flat, const at::Tensor& like_shard, const at::Tensor& whole) {
  const FlatLayout& layout = flat.layout();
  if (layout.is_in_rank_order()) {
    range(whole, flat.position().rank * layout.shard_numel(), layout.shard_numel()).copy_(like_shard, true);
    return;
  }
  for (int64_t i = 0; i < layout.num_parameters(); ++i) {
    const ParameterSlice part = flat.slice(i);
    if (part.numel() == 0) continue;
    range(whole, layout.offset(i) + part.begin, part.numel()).copy_(flat.slice_of(like_shard, i), true);
  }
}

RankRanges ranges_in_whole(const FlatLayout& layout) {
  RankRanges ranges(static_cast<size_t>(layout.sharding_factor()));
  for (size_t rank = 0; rank < ranges.size(); ++rank) {
    for (int64_t i = 0; i < layout.num_parameters(); ++i) {
      const ParameterSlice part = layout.slice(i, static_cast<int64_t>(rank));
      if (part.numel() > 0) ranges[rank].push_back({layout.offset(i) + part.begin, part.numel()});
    }
  }
  return ranges;
}

at::Tensor own_part(const FlatParameter& flat, const at::Tensor& whole) {
  const FlatLayout& layout = flat.layout();
  if (layout.is_in_rank_order()) return range(whole, flat.position().rank * layout.shard_numel(), layout.shard_numel());
  const at::Tensor part = at::zeros({layout.shard_numel()}, whole.options());
  for (int64_t i = 0; i < layout.num_parameters(); ++i) {
    const ParameterSlice slice = flat.slice(i);
    flat.slice_of(part, i).copy_(range(whole, layout.offset(i) + slice.begin, slice.numel()));
  }
  return part;
}

std::vector<int64_t> parameters_that_differ(const FlatParameter& flat, const at::Tensor& whole,
                                            const at::Tensor& like_shard) {
  std::vector<int64_t> differ;
  const FlatLayout& layout = flat.layout();
  for (int64_t i = 0; i < layout.num_parameters(); ++i) {
    const ParameterSlice part = flat.slice(i);
    if (part.numel() == 0) continue;
    // Gathers cast on the device, too.
    const at::Tensor own = flat.slice_of(like_shard, i).to(whole.device()).to(whole.scalar_type());
    if (!same_bits(range(whole, layout.offset(i) + part.begin, part.numel()), own)) differ.push_back(i);
  }
  return differ;
}

void write_in_rank_order(const FlatParameter& flat, const at::Tensor& rank_order, int64_t parameter,
                         const at::Tensor& value, bool add) {
  const FlatLayout& layout = flat.layout();
  const auto write = [add](const at::Tensor& place, const at::Tensor& part) {
    add ? place.add_(part) : place.copy_(part);
  };
  if (layout.is_in_rank_order()) {
    write(flat.view_in(rank_order, parameter), value);
    return;
  }
  for_each_block(layout, parameter, [&](const RowBlock& block) {
    write(in_rank_order(flat, rank_order, parameter, block), in_parameter(flat, value, parameter, block));
  });
}

void zero_in_rank_order(const FlatParameter& flat, const at::Tensor& rank_order, int64_t parameter) {
  const FlatLayout& layout = flat.layout();
  if (layout.is_in_rank_order()) {
    flat.view_in(rank_order, parameter).zero_();
    return;
  }
  for_each_block(layout, parameter,
                 [&](const RowBlock& block) { in_rank_order(flat, rank_order, parameter, block).zero_(); });
}

void zero_padding(const FlatParameter& flat, const at::Tensor& rank_order) {
  const FlatLayout& layout = flat.layout();
  if (layout.padding() == 0) return;
  if (layout.cut() == ShardCut::kFlat) {
    range(rank_order, layout.unpadded_numel(), layout.padding()).zero_();
    return;
  }
  for (int64_t rank = 0; rank < layout.sharding_factor(); ++rank) {
    zero_padding_of(layout, range(rank_order, rank * layout.shard_numel(), layout.shard_numel()), rank);
  }
}

}  // namespace fsdp::flat
