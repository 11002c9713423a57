// Properties of the image classifiers of every architecture.
#include "models/image_classifier.h"

#include <torch/torch.h>

#include "models/image_layers.h"
#include "models/pretrained.h"
#include "models/testing/model_tests.h"

namespace fsdp::models::image_classifier_test {
namespace {

using namespace model_tests;

class ImageClassifiers : public ::testing::TestWithParam<SmallImageModel> {
 protected:
  static std::shared_ptr<ImageClassifier> make(const json& changes = {}, c10::ScalarType dtype = torch::kFloat64,
                                               c10::Device device = torch::kCPU) {
    return make_image_classifier(changed(GetParam().config, changes), dtype, device);
  }
};

torch::Tensor images(int64_t batch = 4, c10::ScalarType dtype = torch::kFloat64) {
  return torch::arange(batch * 3 * 15 * 15).mul(0.37).sin().view({batch, 3, 15, 15}).to(dtype);
}

const torch::Tensor& labels() {
  static const torch::Tensor kLabels = torch::tensor({3, 0, 6, 3});
  return kLabels;
}

TEST_P(ImageClassifiers, DescribesItself) {
  const auto model = make({}, torch::kFloat32, torch::kMeta);
  EXPECT_EQ(model->num_classes(), 7);
  EXPECT_EQ(model->channels(), 3);
  EXPECT_EQ(model->image_size().value_or(15), 15);
  expect_blocks(*model, GetParam().block, 3);
}

TEST_P(ImageClassifiers, MetaConstructionDrawsNoRandomNumbers) {
  const auto model = expect_meta_without_draws([] { return make({}, torch::kFloat32, torch::kMeta); });
  EXPECT_FALSE(model->buffers().empty());
  for (const auto& buffer : model->buffers()) EXPECT_TRUE(buffer.is_meta() && !buffer.requires_grad());
}

TEST_P(ImageClassifiers, InitialisationFollowsTheSeed) {
  const auto seeded = [](uint64_t seed) {
    torch::manual_seed(seed);
    return make()->named_parameters();
  };
  const auto parameters = seeded(7), again = seeded(7), other = seeded(8);
  for (const auto& parameter : parameters) {
    EXPECT_TRUE(torch::equal(parameter.value(), again[parameter.key()])) << parameter.key();
    if (parameter.value().dim() > 1) {
      EXPECT_FALSE(torch::equal(parameter.value(), other[parameter.key()])) << parameter.key();
    }
  }
  for (const auto& buffer : make()->named_buffers()) {
    const double start = buffer.key().ends_with("running_var") ? 1 : 0;
    EXPECT_TRUE(buffer.value().eq(start).all().item<bool>()) << buffer.key();
  }
}

// Returns the results of one step: loss, gradients and buffers.
std::vector<torch::Tensor> results_of_a_step(ImageClassifier& model, int backwards = 1) {
  torch::manual_seed(9);
  model.zero_grad();
  initialize_batch_norms(model);
  const auto loss = model.forward(images(4, torch::kFloat32), labels()).loss;
  for (int i = backwards; i > 0; --i) loss.backward({}, /*retain_graph=*/i > 1);
  std::vector<torch::Tensor> result = {loss.detach()};
  for (const auto& parameter : model.parameters()) result.push_back(parameter.grad().clone());
  for (const auto& buffer : model.buffers()) result.push_back(buffer.clone());
  return result;
}

TEST_P(ImageClassifiers, ActivationCheckpointingChangesNoNumber) {
  json changes;
  for (const std::string& key : GetParam().dropout_keys) changes[key] = 0.3;
  const auto model = make(changes, torch::kFloat32);
  const auto names = model->named_parameters().keys();
  for (int backwards : {1, 2}) {  // the second backward recomputes again
    const auto want = results_of_a_step(*model, backwards);
    for (const auto& policy : {CheckpointPolicy::full(), CheckpointPolicy::every(2),
                               CheckpointPolicy::selected_operators({"aten::native_batch_norm", "aten::bmm"})}) {
      model->set_activation_checkpointing(policy);
      const auto got = results_of_a_step(*model, backwards);
      for (size_t i = 0; i < want.size(); ++i) EXPECT_TRUE(torch::equal(got[i], want[i])) << i;
      EXPECT_EQ(model->named_parameters().keys(), names);
    }
    model->set_activation_checkpointing({});
  }
  for (const auto& buffer : model->named_buffers()) {
    if (buffer.key().ends_with("num_batches_tracked")) {
      EXPECT_EQ(buffer.value().item<int64_t>(), 1) << buffer.key();
    }
  }
}

TEST_P(ImageClassifiers, DtypesOfLossAndLogits) {
  for (auto [dtype, loss] : {std::pair{torch::kFloat32, torch::kFloat32},
                             {torch::kBFloat16, torch::kFloat32},
                             {torch::kFloat64, torch::kFloat64}}) {
    const auto output = make({}, dtype)->forward(images(4, dtype), labels());
    EXPECT_EQ(output.logits.scalar_type(), dtype);
    EXPECT_EQ(output.loss.scalar_type(), loss);
    EXPECT_EQ(output.logits.sizes(), (std::vector<int64_t>{4, 7}));
  }
}

TEST_P(ImageClassifiers, LossIsTheMeanOverLabelledImages) {
  const auto model = make();
  const auto partly = torch::tensor({3, -100, 6, 3});
  const auto output = model->forward(images(), partly);
  const auto log_probabilities = torch::log_softmax(output.logits, -1);
  double sum = 0;
  for (int64_t i : {0, 2, 3}) sum -= log_probabilities[i][partly[i].item<int64_t>()].item<double>();
  EXPECT_NEAR(output.loss.item<double>(), sum / 3, 1e-12);
  EXPECT_FALSE(model->forward(images()).loss.defined());
}

TEST_P(ImageClassifiers, EvaluationReadsRunningStatistics) {
  const auto model = make();
  model->eval();
  const auto alone = model->forward(images().narrow(0, 1, 1)).logits;
  EXPECT_TRUE(torch::allclose(model->forward(images()).logits.narrow(0, 1, 1), alone, 0, 1e-12));
  for (const auto& buffer : model->named_buffers()) {
    const double start = buffer.key().ends_with("running_var") ? 1 : 0;
    EXPECT_TRUE(buffer.value().eq(start).all().item<bool>()) << buffer.key();
  }
  model->train();
  EXPECT_FALSE(torch::allclose(model->forward(images()).logits.narrow(0, 1, 1), alone, 0, 1e-6));
  model->eval();
  EXPECT_FALSE(torch::allclose(model->forward(images()).logits.narrow(0, 1, 1), alone, 0, 1e-6));
}

TEST_P(ImageClassifiers, DropoutIsAppliedInTrainingOnly) {
  for (const std::string& key : GetParam().dropout_keys) {
    const auto model = make({{key, 0.5}});
    EXPECT_FALSE(torch::equal(model->forward(images()).logits, model->forward(images()).logits)) << key;
    model->eval();
    EXPECT_TRUE(torch::equal(model->forward(images()).logits, model->forward(images()).logits)) << key;
  }
  const auto model = make();
  EXPECT_TRUE(torch::equal(model->forward(images()).logits, model->forward(images()).logits));
}

TEST_P(ImageClassifiers, CheckpointsHoldBuffersAfterParameters) {
  const auto model = make({}, torch::kFloat32, torch::kMeta);
  const auto tensors = checkpoint_tensors(*model, torch::kBFloat16);
  ASSERT_EQ(tensors.size(), model->parameters().size() + model->buffers().size());
  EXPECT_EQ(tensors[model->parameters().size()].name, model->named_buffers().front().key());
  for (const auto& tensor : tensors) {
    const bool counts = tensor.name.ends_with("num_batches_tracked");
    EXPECT_EQ(tensor.dtype, counts ? torch::kInt64 : torch::kBFloat16) << tensor.name;
  }
}

TEST_P(ImageClassifiers, ShapesAreChecked) {
  const auto model = make();
  EXPECT_THAT(error_of([&] { model->forward(images()[0]); }), HasSubstr("[3, 15, 15]"));
  EXPECT_THAT(error_of([&] { model->forward(images().narrow(1, 0, 2)); }), HasSubstr("[4, 2, 15, 15]"));
  EXPECT_THAT(error_of([&] { model->forward(images(), labels().narrow(0, 0, 3)); }),
              AllOf(HasSubstr("labels are of shape [3]"), HasSubstr("must be [4]")));
}

TEST_P(ImageClassifiers, AreNoLanguageModels) {
  json only_class = GetParam().config;
  only_class.erase("model_type");
  for (const json& config : {GetParam().config, only_class}) {
    const auto is_refused = [](const char* wanted, const char* types) {
      const std::string type = GetParam().config["model_type"];
      return AllOf(HasSubstr("model_type " + type + " ("), HasSubstr("is an image classifier"), HasSubstr(wanted),
                   HasSubstr(types));
    };
    EXPECT_THAT(error_of([&] { make_causal_lm(config, torch::kFloat32, torch::kMeta); }),
                is_refused("; expected a causal language model", "one of: llama, qwen2"));
    EXPECT_THAT(error_of([&] { make_seq2seq_lm(config, torch::kFloat32, torch::kMeta); }),
                is_refused("; expected a sequence-to-sequence language model", "one of: t5"));
  }
  EXPECT_THAT(error_of([] { make({}, torch::kInt32); }), AllOf(HasSubstr("make_image_classifier"), HasSubstr("Int")));
}

INSTANTIATE_TEST_SUITE_P(Architectures, ImageClassifiers, ::testing::ValuesIn(small_image_models()),
                         [](const auto& info) { return info.param.name; });

TEST(ImageArchitectures, LanguageModelsAndUnknownOnesAreRefused) {
  const auto error = [](const json& config) {
    return error_of([&] { make_image_classifier(config, torch::kFloat32, torch::kMeta); });
  };
  EXPECT_THAT(error(small_gpt2()),
              AllOf(HasSubstr("model_type gpt2 (GPT2LMHeadModel) is a causal language model"),
                    HasSubstr("; expected an image classifier"), HasSubstr("one of: regnet, deepvit")));
  EXPECT_THAT(error(small_t5()), HasSubstr("a sequence-to-sequence language model"));
  EXPECT_THAT(error({{"model_type", "resnet"}}),
              AllOf(HasSubstr("model_type is \"resnet\""), HasSubstr("one of: regnet, deepvit")));
  EXPECT_THAT(error(changed(small_regnet(), {{"architectures", {"RegNetModel"}}})),
              HasSubstr("one of: RegNetForImageClassification"));
}

TEST(ImageConfig, NumberOfClasses) {
  const auto classes = [](const json& changes) {
    return make_image_classifier(changed(small_regnet(), changes), torch::kFloat32, torch::kMeta)->num_classes();
  };
  const auto error = [&](const json& changes) { return error_of([&] { classes(changes); }); };
  const json three{{"0", "a"}, {"1", "b"}, {"2", "c"}};
  EXPECT_EQ(classes({{"num_labels", nullptr}}), 2);
  EXPECT_EQ(classes({{"num_labels", nullptr}, {"id2label", three}}), 3);
  EXPECT_EQ(classes({{"num_labels", 3}, {"id2label", three}}), 3);
  EXPECT_THAT(error({{"num_labels", 4}, {"id2label", three}}),
              AllOf(HasSubstr("num_labels is 4"), HasSubstr("classes in id2label, 3")));
  EXPECT_THAT(error({{"num_labels", 1}}), HasSubstr("num_labels is 1; it must be at least 2"));
  EXPECT_THAT(error({{"num_labels", nullptr}, {"id2label", json::object()}}), HasSubstr("id2label is {}"));
  EXPECT_THAT(error({{"id2label", 3}}), HasSubstr("id2label is 3"));
  EXPECT_THAT(error({{"problem_type", "regression"}}),
              AllOf(HasSubstr("problem_type is \"regression\""), HasSubstr("one of: single_label_classification")));
  EXPECT_THAT(error({{"quantization_config", {{"bits", 4}}}}), HasSubstr("quantization_config"));
}

}  // namespace
}  // namespace fsdp::models::image_classifier_test
