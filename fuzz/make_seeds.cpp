// make_seeds FOLDER: writes inputs to FOLDER/TARGET, as the initial corpus of each fuzz target. The readers accept most
// of them.
#include <cstdio>

#include "archive_seeds.h"
#include "config/config_reader.h"
#include "dense_metadata.h"
#include "formats/common/checksum.h"
#include "formats/dcp/dcp_metadata.h"
#include "formats/own/manifest.h"
#include "formats/testing/dcp_samples.h"
#include "formats/testing/pickles.h"
#include "planner/target/cluster_file.h"
#include "reader_check.h"

namespace fsdp::fuzz {
namespace {

namespace fs = std::filesystem;
using formats::checksum_of;

class Seeds {
 public:
  explicit Seeds(fs::path folder) : folder_(std::move(folder)) {}

  void add(const std::string& target, const std::string& input) const {
    fs::create_directories(folder_ / target);
    std::ofstream file(folder_ / target / c10::str(checksum_of(input)), std::ios::binary);
    file << input;
    TORCH_CHECK(file.flush(), (folder_ / target).string(), ": cannot be written");
  }

 private:
  fs::path folder_;
};

// A safetensors file.
struct File {
  std::string name, header, data;

  std::string bytes() const { return formats::safetensors_bytes(header, data); }
  std::string parts() const { return header + "\n" + data; }  // input form of safetensors_file
  uint64_t header_bytes() const { return bytes().size() - data.size(); }
};

const File kA{"a.safetensors",
              R"({"__metadata__":{"format":"pt"},"w":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
              R"("s":{"dtype":"BOOL","shape":[],"data_offsets":[24,25]}})",
              std::string(24, '\1') + '\2'};
const File kB{
    "b.safetensors",
    R"({"v":{"dtype":"BF16","shape":[3],"data_offsets":[0,6]},"e":{"dtype":"I64","shape":[0,4],"data_offsets":[6,6]}})",
    "abcdef"};

formats::StoredFile stored(const File& file) {
  const std::string bytes = file.bytes();
  return {file.name, bytes.size(), file.header_bytes(), checksum_of(bytes.substr(0, file.header_bytes()))};
}

// Describes elements [begin, end) of a float tensor, stored in bytes [from, from + 4 * (end - begin)) of the file's
// data.
formats::StoredPart part(const File& file, int64_t begin, int64_t end, size_t from) {
  const std::string bytes = file.data.substr(from, static_cast<size_t>(end - begin) * 4);
  return {begin, end, 0, file.header_bytes() + from, {checksum_of(bytes)}};
}

// Describes a rank's file. The tensor "t" has another memory format; other tensors, such as "u", may be spread over
// ranks.
formats::RankFile rank_file(const File& file, const std::map<std::string, formats::StoredPart>& parts) {
  formats::RankFile rank{stored(file), {}};
  for (const auto& [name, stored_part] : parts) {
    rank.tensors[name] = {c10::ScalarType::Float,
                          {2, 2},
                          name == "t" ? std::vector<int64_t>{1, 2} : std::vector<int64_t>{},
                          {stored_part}};
  }
  return rank;
}

void add_checkpoint(const Seeds& seeds) {
  const File more{"b.safetensors", R"({"u[2:4]":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", "abcdefgh"};
  const auto first = rank_file(kA, {{"t", part(kA, 0, 4, 0)}, {"u", part(kA, 0, 2, 16)}});
  const auto second = rank_file(more, {{"u", part(more, 2, 4, 0)}});
  formats::Manifest manifest;
  add_rank_file(first, manifest);
  add_rank_file(second, manifest);
  manifest.state = {{"user", {{"step", 3}, {"loss", 0.25}}}};
  const std::string whole = manifest_text(manifest, "seed");
  const size_t begin = whole.find("\"content\":") + std::string_view("\"content\":").size();
  const std::string content = whole.substr(begin, whole.size() - begin - 2);
  seeds.add("rank_file_fuzz", join_files({rank_file_text(first), rank_file_text(second)}));
  seeds.add("manifest_fuzz", whole);
  seeds.add("manifest_fuzz", content);
  seeds.add("checkpoint_folder_fuzz", join_files({content, kA.bytes(), more.bytes()}));
}

// Configs of decoders, which together have the keys of all families and types of rotary embeddings.
void add_decoder_configs(const Seeds& seeds) {
  const std::string sizes =
      R"("vocab_size":99,"hidden_size":48,"intermediate_size":96,"num_hidden_layers":2,"num_attention_heads":6,)"
      R"("num_key_value_heads":2,"pad_token_id":null,)";
  for (const char* rest :
       {R"("model_type":"qwen3","head_dim":16,"use_sliding_window":true,"sliding_window":7,"max_window_layers":1,)"
        R"("rope_parameters":{"rope_type":"yarn","rope_theta":900.0,"factor":4.0,"beta_fast":3.5,"beta_slow":1.5,)"
        R"("mscale":0.7,"mscale_all_dim":1.3,"truncate":false,"original_max_position_embeddings":16})",
        R"("model_type":"smollm3","no_rope_layers":[0,1],"no_rope_layer_interval":2,"mlp_bias":true)",
        R"("model_type":"granite","embedding_multiplier":3.0,"attention_multiplier":0.4,"residual_multiplier":0.6,)"
        R"("logits_scaling":2.0)",
        R"("model_type":"gemma2","head_dim":16,"hidden_activation":"gelu_pytorch_tanh","query_pre_attn_scalar":16,)"
        R"("sliding_window":7,"attn_logit_softcapping":50.0,"final_logit_softcapping":null)",
        R"("model_type":"gemma3_text","head_dim":16,"sliding_window_pattern":2,"rope_local_base_freq":1e4,)"
        R"("rope_theta":1e6,"layer_types":["sliding_attention","full_attention"],"rope_parameters":{)"
        R"("full_attention":{"rope_type":"linear","factor":8.0},"sliding_attention":{"rope_type":"default"}})",
        R"("model_type":"phi3","partial_rotary_factor":0.5,"resid_pdrop":0.1,"original_max_position_embeddings":64,)"
        R"("rope_scaling":{"type":"su","short_factor":[1.0,1.1],"long_factor":[2.0,3.5]})",
        R"("model_type":"olmo3","sliding_window":7,"attention_bias":false,"rope_scaling":{"type":"yarn","factor":2})",
        R"("model_type":"glm4","head_dim":16,"partial_rotary_factor":0.5,"attention_bias":true)"}) {
    seeds.add("model_config_fuzz", "{" + sizes + rest + "}");
  }
}

void add_hugging_face(const Seeds& seeds) {
  const std::string config =
      R"({"model_type":"llama","architectures":["LlamaForCausalLM"],"vocab_size":99,"hidden_size":64,)"
      R"("intermediate_size":96,"num_hidden_layers":2,"num_attention_heads":4,"num_key_value_heads":2,"pad_token_id":-1,)"
      R"("max_position_embeddings":128,"rms_norm_eps":1e-5,"hidden_act":"silu","tie_word_embeddings":true,)"
      R"("rope_scaling":{"rope_type":"llama3","factor":8.0,"low_freq_factor":1.0,"high_freq_factor":4.0,)"
      R"("original_max_position_embeddings":64},"rope_theta":10000.0})";
  for (const File& file : {kA, kB}) {
    for (const std::string& input : {file.bytes(), file.parts()}) {
      seeds.add("safetensors_header_fuzz", input);
      seeds.add("safetensors_file_fuzz", input);
    }
  }
  seeds.add("model_config_fuzz", config);
  add_decoder_configs(seeds);
  seeds.add(
      "model_config_fuzz",
      R"({"model_type":"gpt2","vocab_size":99,"n_positions":128,"n_embd":64,"n_layer":2,"n_head":4,"n_inner":null,)"
      R"("activation_function":"gelu_new","resid_pdrop":0.1,"layer_norm_epsilon":1e-5,"add_cross_attention":false,)"
      R"("scale_attn_by_inverse_layer_idx":true,"initializer_range":0.02})");
  seeds.add("model_config_fuzz",
            R"({"model_type":"mpt","vocab_size":99,"d_model":64,"n_layers":2,"n_heads":4,"max_seq_len":128,)"
            R"("expansion_ratio":4,"no_bias":true,"logit_scale":null,"norm_type":"low_precision_layernorm",)"
            R"("attn_config":{"alibi":true,"alibi_bias_max":8,"attn_pdrop":0,"clip_qkv":6,"softmax_scale":0.1}})");
  seeds.add("model_config_fuzz",
            R"({"model_type":"t5","vocab_size":99,"d_model":64,"d_kv":8,"d_ff":96,"num_layers":2,"num_heads":4,)"
            R"("relative_attention_num_buckets":32,"relative_attention_max_distance":128,"pad_token_id":0,)"
            R"("feed_forward_proj":"gated-gelu","decoder_start_token_id":0,"is_encoder_decoder":true})");
  seeds.add("model_config_fuzz",
            R"({"model_type":"regnet","embedding_size":32,"hidden_sizes":[48,104],"depths":[1,3],"groups_width":8,)"
            R"("layer_type":"y","hidden_act":"relu","downsample_in_first_stage":true,"id2label":{"0":"a","1":"b"}})");
  seeds.add("model_config_fuzz",
            R"({"model_type":"deepvit","image_size":224,"patch_size":16,"hidden_size":396,"num_hidden_layers":16,)"
            R"("num_attention_heads":12,"qkv_bias":false,"dropout":0.1,"layer_norm_eps":1e-5,"num_labels":10})");
  seeds.add("json_text_fuzz", config);
  seeds.add("hf_index_fuzz", R"({"metadata":{"total_size":31},"weight_map":{"w":"one","v":"sub/two","x":"inward"}})");
  seeds.add("hf_index_fuzz", R"({"weight_map":{"w":"outward"}})");
  seeds.add(
      "hf_folder_fuzz",
      join_files(
          {config,
           R"({"weight_map":{"w":"one.safetensors","s":"one.safetensors","v":"two.safetensors","e":"two.safetensors"}})",
           kA.parts(), kB.parts()}));
}

void add_pickles(const Seeds& seeds) {
  for (const char* hex : {formats::kSingleHex, formats::kSingleProtocol2Hex, formats::kSingleOfPython3112Hex,
                          formats::kFsdp2Hex, formats::kMeshHex}) {
    seeds.add("dcp_metadata_fuzz", formats::from_hex(hex));
    seeds.add("pickle_fuzz", formats::from_hex(hex));
  }
  const std::string dense = dense_metadata(150, 4096);
  TORCH_CHECK(formats::parse_dcp_metadata(dense, "dense_metadata").tensors.size() == 150);
  seeds.add("dcp_metadata_fuzz", dense);
}

void add_archives(const Seeds& seeds) {
  for (const std::string& input : zip_archive_seeds()) seeds.add("zip_archive_fuzz", input);
  for (const std::string& input : torch_archive_seeds()) seeds.add("torch_archive_fuzz", input);
  for (const std::string& input : dcp_folder_seeds()) seeds.add("dcp_folder_fuzz", input);
}

// The config contains all keys, so that mutations reach them.
void add_trainer(const Seeds& seeds) {
  trainer::Config config;
  config.model.path = "m";
  config.data.dataset = "dummy:64";
  config.output.output_dir = "o";
  seeds.add("trainer_config_fuzz", to_json(config).dump());
  for (const char* cluster : {"2x8xh100", "4xcpu"}) {
    seeds.add("cluster_file_fuzz", planner::cluster_json(planner::read_cluster(cluster)).dump());
  }
  seeds.add("cluster_file_fuzz",
            R"({"schema_version":1,"device":"a100","device_overrides":{"memory":"39GiB"},"ranks_per_host":2})");
  seeds.add(
      "cluster_file_fuzz",
      R"({"schema_version":1,"device":"cpu","ranks_per_host":2,"spread":0.1,"cpu":{"threads":1,)"
      R"("operators":[{"name":"others","dtype":"fp32","points":[[0,"1us"],["4KiB",2e-6]]}],)"
      R"("products":[{"product":"matrices","dtype":"fp32","batch":1,"m":2,"n":3,"k":4,"flops":48,"seconds":1e-6}],)"
      R"("exchanges":[{"collective":"all_gather","path":"gloo","ranks":2,"points":[[256,"1us"]]}]}})");
  for (const char kind : {'\0', '\1', '\2', '\3'})
    seeds.add("token_file_fuzz", kind + std::string("abcdefgh\0\0\0\0", 12));
}

void add_report(const Seeds& seeds) {
  const std::string metrics =
      R"({"step":1,"loss":2.5,"grad_norm":null,"learning_rate":5e-05,"samples_per_second":101.5,"tokens_per_second":812.5,)"
      R"("tflops":0.5,"hardware_tflops":0.625,"peak_memory_bytes":1000,"mapped_file_bytes":1500,"loss_scale":8.0,"skipped":true,"skipped_steps":1})"
      "\n"
      R"({"step":2,"loss":2.25,"tflops":0.5,"peak_device_memory_bytes":2000})"
      "\n"
      R"({"step":2,"eval_loss":2.75})"
      "\n";
  const std::string facts =
      R"({"ranks":2,"config":{"model_path":"m/tiny","model":null,"sharding_strategy":"full_shard",)"
      R"("dtype":"bf16","trace_path":"trace.json"}})";
  const std::string trace =
      R"({"traceEvents":[{"ph":"M","pid":0,"tid":1,"name":"thread_name","args":{"name":"compute"}},)"
      R"({"ph":"X","pid":0,"tid":1,"ts":0,"dur":1500,"cat":"compute","name":"forward","args":{"pass":"forward"}},)"
      R"({"ph":"X","pid":0,"tid":1,"ts":1500,"dur":500.5,"cat":"step","name":"optimizer","args":{"pass":"optimizer"}},)"
      R"({"ph":"X","pid":1,"tid":2,"ts":10,"dur":200,"cat":"gather","name":"unit 0","args":{"pass":"forward"}},)"
      R"({"ph":"C","pid":0,"tid":0,"ts":5,"name":"memory","args":{"parameter shards":100,"everything else":50}}]})";
  seeds.add("run_folder_fuzz", join_files({metrics, facts, trace}));
  seeds.add("run_folder_fuzz", join_files({metrics, R"({"ranks":1,"config":{"model":{"model_type":"t5"}}})", ""}));
}

}  // namespace
}  // namespace fsdp::fuzz

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: make_seeds FOLDER\n");
    return 2;
  }
  const fsdp::fuzz::Seeds seeds(argv[1]);
  fsdp::fuzz::add_checkpoint(seeds);
  fsdp::fuzz::add_hugging_face(seeds);
  fsdp::fuzz::add_pickles(seeds);
  fsdp::fuzz::add_archives(seeds);
  fsdp::fuzz::add_trainer(seeds);
  fsdp::fuzz::add_report(seeds);
  return 0;
}
