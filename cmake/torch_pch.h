// All of LibTorch's C++ interface, for examples, benchmarks, tools and tests.
#pragma once
#include <torch/torch.h>

#include "virtual_functions.h"

#ifdef __clang__
// Puts the virtual functions that torch.h brings into the precompiled header.
namespace fsdp::precompiled {

inline void use_modules() {
  using namespace torch::nn;
  (void)&use_virtual_functions<
      AdaptiveLogSoftmaxWithLossImpl, BilinearImpl, Conv1dImpl, Conv2dImpl, Conv3dImpl, ConvTranspose1dImpl,
      ConvTranspose2dImpl, ConvTranspose3dImpl, CrossMapLRN2dImpl, EmbeddingBagImpl, EmbeddingImpl, FoldImpl,
      FractionalMaxPool2dImpl, FractionalMaxPool3dImpl, GRUCellImpl, GRUImpl, GroupNormImpl, LSTMCellImpl, LSTMImpl,
      LayerNormImpl, LinearImpl, LocalResponseNormImpl, LogSoftmaxImpl, ModuleDictImpl, MultiheadAttentionImpl,
      ParameterDictImpl, RNNCellImpl, RNNImpl, SequentialImpl, SoftmaxImpl, SoftminImpl, ThresholdImpl,
      TransformerDecoderImpl, TransformerDecoderLayerImpl, TransformerEncoderImpl, TransformerEncoderLayerImpl,
      UnflattenImpl, UnfoldImpl,
      // Bases whose functions the classes above override.
      Cloneable<ModuleDictImpl>, Cloneable<SequentialImpl>, ConvNdImpl<1, ConvTranspose1dImpl>,
      ConvNdImpl<2, ConvTranspose2dImpl>, ConvNdImpl<3, ConvTranspose3dImpl>>;
}

inline void use_optimizers_and_data() {
  using namespace torch::optim;
  (void)&use_virtual_functions<AdagradOptions, AdagradParamState, AdamOptions, AdamParamState, AdamWOptions,
                               AdamWParamState, LBFGSOptions, LBFGSParamState, RMSpropOptions, RMSpropParamState,
                               SGDOptions, SGDParamState, torch::data::datasets::MNIST,
                               torch::data::datasets::TensorDataset>;
}

}  // namespace fsdp::precompiled
#endif
