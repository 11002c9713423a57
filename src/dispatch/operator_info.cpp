#include "dispatch/operator_info.h"

#include <unordered_map>
#include <unordered_set>

#include "dispatch/leaf_likeness.h"

namespace fsdp::dispatch {
namespace {

// Whether it is an ATen operator whose kernel never reads or writes elements of its arguments, by name without
// overload.
bool is_pure_view(const std::string& name) {
  static const std::unordered_set<std::string> names = {
      "aten::alias", "aten::as_strided", "aten::detach", "aten::diagonal", "aten::expand", "aten::lift_fresh",
      "aten::permute", "aten::select", "aten::slice", "aten::split", "aten::split_with_sizes", "aten::squeeze",
      "aten::t", "aten::transpose", "aten::unbind", "aten::unfold", "aten::unsqueeze", "aten::view",
      "aten::view_as_complex", "aten::view_as_real", "aten::_reshape_alias",
      // These only access metadata, although their schemas claim a write.
      "aten::requires_grad_", "aten::detach_", "aten::retain_grad", "aten::_version", "aten::is_leaf",
      "aten::output_nr", "aten::retains_grad", "aten::record_stream", "aten::is_same_size", "aten::is_set_to"};
  return names.count(name) > 0;
}

bool is_transparent_by_name(const std::string& name) {
  static const std::unordered_set<std::string> names = {"aten::_backward"};
  return names.count(name) > 0;
}

// Whether every result may alias an argument and nothing is written: such an operator makes a view, or a copy through
// other operators.
bool may_return_views(const c10::FunctionSchema& schema) {
  for (const c10::Argument& argument : schema.arguments()) {
    if (argument.alias_info() && argument.alias_info()->isWrite()) return false;
  }
  for (const c10::Argument& result : schema.returns()) {
    if (!result.alias_info()) return false;
  }
  return !schema.returns().empty();
}

OperatorKind kind_of(const c10::OperatorHandle& op) {
  const std::string& name = op.schema().name();
  if (name.rfind("aten::", 0) != 0) return OperatorKind::kCustom;
  if (is_pure_view(name)) return OperatorKind::kView;
  if (name == "aten::resolve_conj" || name == "aten::resolve_neg") return OperatorKind::kCopy;
  if (name == "aten::_has_compatible_shallow_copy_type") return OperatorKind::kSetData;
  if (name == "aten::zero_" || name == "aten::_foreach_zero_") return OperatorKind::kZero;
  return is_transparent_by_name(name) || may_return_views(op.schema()) ? OperatorKind::kTransparent
                                                                       : OperatorKind::kCompute;
}

CastRule cast_rule_of(const std::string& name) {
  static const std::unordered_set<std::string> to_parameter = {"aten::linear",
                                                               "aten::matmul",
                                                               "aten::mm",
                                                               "aten::bmm",
                                                               "aten::mv",
                                                               "aten::dot",
                                                               "aten::addmm",
                                                               "aten::addmv",
                                                               "aten::addbmm",
                                                               "aten::baddbmm",
                                                               "aten::chain_matmul",
                                                               "aten::einsum",
                                                               "aten::bilinear",
                                                               "aten::_trilinear",
                                                               "aten::tensordot",
                                                               "aten::inner",
                                                               "aten::conv1d",
                                                               "aten::conv2d",
                                                               "aten::conv3d",
                                                               "aten::convolution",
                                                               "aten::_convolution",
                                                               "aten::conv_transpose1d",
                                                               "aten::conv_transpose2d",
                                                               "aten::conv_transpose3d",
                                                               "aten::lstm",
                                                               "aten::gru",
                                                               "aten::rnn_tanh",
                                                               "aten::rnn_relu",
                                                               "aten::lstm_cell",
                                                               "aten::gru_cell",
                                                               "aten::rnn_tanh_cell",
                                                               "aten::rnn_relu_cell",
                                                               "aten::prelu",
                                                               "aten::_prelu_kernel",
                                                               "aten::scaled_dot_product_attention"};
  static const std::unordered_set<std::string> normalisations = {
      "aten::layer_norm",        "aten::native_layer_norm", "aten::rms_norm",          "aten::group_norm",
      "aten::native_group_norm", "aten::batch_norm",        "aten::native_batch_norm", "aten::instance_norm"};
  return to_parameter.count(name) > 0     ? CastRule::kToParameter
         : normalisations.count(name) > 0 ? CastRule::kNormalisation
                                          : CastRule::kNone;
}

// aten::batch_norm, native_batch_norm, instance_norm and similar operators update these arguments without an annotation
// in their schemas.
bool is_statistics(const c10::Argument& argument) {
  return argument.name() == "running_mean" || argument.name() == "running_var";
}

// Whether `info` belongs to `op`: after an operator is deregistered, another one may have its address.
bool describes(const OperatorInfo& info, const c10::OperatorHandle& op) {
  const auto& arguments = op.schema().arguments();
  return info.schema_arguments == arguments.data() && info.num_arguments == static_cast<int32_t>(arguments.size()) &&
         info.name == op.operator_name();
}

OperatorInfo read(const c10::OperatorHandle& op) {
  OperatorInfo info;
  info.name = op.operator_name();
  info.schema_arguments = op.schema().arguments().data();
  info.kind = kind_of(op);
  info.cast = cast_rule_of(op.schema().name());
  info.made_like = made_like(op.schema().name());
  const auto& arguments = op.schema().arguments();
  info.num_arguments = static_cast<int32_t>(arguments.size());
  for (int32_t i = 0; i < info.num_arguments; ++i) {
    // Skips plain values only: a custom operator may take tensors in a list, in a dictionary or as `Any`.
    switch (arguments[i].type()->kind()) {
      case c10::TypeKind::IntType:
      case c10::TypeKind::FloatType:
      case c10::TypeKind::BoolType:
      case c10::TypeKind::NumberType:
      case c10::TypeKind::StringType:
      case c10::TypeKind::SymIntType:
        continue;
      default:
        break;
    }
    bool written = arguments[i].alias_info() && arguments[i].alias_info()->isWrite();
    info.tensors.push_back({i, written, arguments[i].is_out(), is_statistics(arguments[i])});
    info.writes = info.writes || written;
  }
  return info;
}

}  // namespace

const OperatorInfo& operator_info(const c10::OperatorHandle& op) {
  thread_local std::unordered_map<const void*, OperatorInfo> cache;
  const void* key = &op.operator_name();
  OperatorInfo& info = cache[key];
  if (!describes(info, op)) info = read(op);
  return info;
}

}  // namespace fsdp::dispatch
