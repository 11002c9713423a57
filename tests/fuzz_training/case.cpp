#include "fuzz_training/case.h"

#include <set>
#include <stdexcept>

namespace fsdp::fuzz {
namespace {

// One description of a struct's fields serves both directions: Writer leaves out defaults, and Reader refuses unknown
// names.
class Writer {
 public:
  template <typename T>
  void field(const char* name, const T& value, const T& standard) {
    Json text = to_text(value);
    if (text != to_text(standard)) result[name] = std::move(text);
  }
  template <typename T>
  static Json to_text(const T& value);

  Json result = Json::object();
};

class Reader {
 public:
  explicit Reader(const Json& text) : text_(text) {
    if (!text.is_object()) throw std::runtime_error("expected an object, not " + text.dump());
  }
  template <typename T>
  void field(const char* name, T& value, const T&) {
    seen_.insert(name);
    if (text_.contains(name)) read(text_.at(name), value);
  }
  void expect_no_more() const {
    for (const auto& [name, value] : text_.items()) {
      if (seen_.count(name) == 0) throw std::runtime_error("unknown field '" + name + "'");
    }
  }
  template <typename T>
  static void read(const Json& text, T& value);

 private:
  const Json& text_;
  std::set<std::string> seen_;
};

template <typename F>
void fields(F& f, Layer& v, const Layer& d) {
  f.field("kind", v.kind, d.kind);
  f.field("size", v.size, d.size);
  f.field("frozen", v.frozen, d.frozen);
  f.field("uses", v.uses, d.uses);
  f.field("repeat", v.repeat, d.repeat);
  f.field("checkpoint", v.checkpoint, d.checkpoint);
  f.field("residual", v.residual, d.residual);
  f.field("ignored", v.ignored, d.ignored);
  f.field("unit", v.unit, d.unit);
  f.field("strategy", v.strategy, d.strategy);
  f.field("children", v.children, d.children);
}

template <typename F>
void fields(F& f, Model& v, const Model& d) {
  f.field("width", v.width, d.width);
  f.field("batch", v.batch, d.batch);
  f.field("layers", v.layers, d.layers);
  f.field("gain", v.gain, d.gain);
  f.field("deferred", v.deferred, d.deferred);
}

template <typename F>
void fields(F& f, Sharding& v, const Sharding& d) {
  f.field("strategy", v.strategy, d.strategy);
  f.field("reshard", v.reshard, d.reshard);
  f.field("wrap", v.wrap, d.wrap);
  f.field("orig", v.orig, d.orig);
  f.field("rows", v.rows, d.rows);
  f.field("params", v.params, d.params);
  f.field("reduce", v.reduce, d.reduce);
  f.field("buffers", v.buffers, d.buffers);
  f.field("keep_memory", v.keep_memory, d.keep_memory);
  f.field("cpu_offload", v.cpu_offload, d.cpu_offload);
  f.field("offload_files", v.offload_files, d.offload_files);
  f.field("backward_prefetch", v.backward_prefetch, d.backward_prefetch);
  f.field("forward_prefetch", v.forward_prefetch, d.forward_prefetch);
  f.field("max_gathered", v.max_gathered, d.max_gathered);
  f.field("one_communicator", v.one_communicator, d.one_communicator);
  f.field("strict", v.strict, d.strict);
  f.field("sync_states", v.sync_states, d.sync_states);
  f.field("full_norms", v.full_norms, d.full_norms);
  f.field("divide", v.divide, d.divide);
  f.field("see_norm", v.see_norm, d.see_norm);
}

template <typename F>
void fields(F& f, Pass& v, const Pass& d) {
  f.field("forwards", v.forwards, d.forwards);
  f.field("backward", v.backward, d.backward);
  f.field("sync", v.sync, d.sync);
  f.field("all_reduce", v.all_reduce, d.all_reduce);
  f.field("is_last", v.is_last, d.is_last);
  f.field("outside", v.outside, d.outside);
  f.field("between", v.between, d.between);
}

template <typename F>
void fields(F& f, Step& v, const Step& d) {
  f.field("zero", v.zero, d.zero);
  f.field("before", v.before, d.before);
  f.field("passes", v.passes, d.passes);
  f.field("ready", v.ready, d.ready);
  f.field("clip", v.clip, d.clip);
  f.field("clip_type", v.clip_type, d.clip_type);
  f.field("optimize", v.optimize, d.optimize);
  f.field("after", v.after, d.after);
}

template <typename F>
void fields(F& f, Case& v, const Case& d) {
  f.field("ranks", v.ranks, d.ranks);
  f.field("communicator", v.communicator, d.communicator);
  f.field("model", v.model, d.model);
  f.field("sharding", v.sharding, d.sharding);
  f.field("optimizer", v.optimizer, d.optimizer);
  f.field("weight_decay", v.weight_decay, d.weight_decay);
  f.field("steps", v.steps, d.steps);
  f.field("move_after", v.move_after, d.move_after);
  f.field("ranks_later", v.ranks_later, d.ranks_later);
}

template <typename T>
struct IsVector : std::false_type {};
template <typename T>
struct IsVector<std::vector<T>> : std::true_type {};

template <typename T>
constexpr bool kIsValue = std::is_arithmetic_v<T> || std::is_same_v<T, std::string>;

template <typename T>
Json Writer::to_text(const T& value) {
  if constexpr (kIsValue<T>) {
    return value;
  } else if constexpr (IsVector<T>::value) {
    Json list = Json::array();
    for (const auto& one : value) list.push_back(to_text(one));
    return list;
  } else {
    Writer writer;
    T copy = value;
    fields(writer, copy, T());
    return writer.result;
  }
}

template <typename T>
void Reader::read(const Json& text, T& value) {
  if constexpr (kIsValue<T>) {
    value = text.get<T>();
  } else if constexpr (IsVector<T>::value) {
    value.clear();
    for (const auto& one : text) read(one, value.emplace_back());
  } else {
    Reader reader(text);
    fields(reader, value, T());
    reader.expect_no_more();
  }
}

}  // namespace

Json to_json(const Case& training) { return Writer::to_text(training); }

Case case_from_json(const Json& text) {
  Case training;
  Reader::read(text, training);
  return training;
}

}  // namespace fsdp::fuzz
