#include "config/strict_json.h"

#include <fmt/format.h>

#include <iterator>
#include <optional>
#include <set>
#include <string_view>
#include <vector>

#include "config/errors.h"

namespace fsdp::trainer {

namespace {

using nlohmann::json;

constexpr size_t kMaxDepth = 32;

struct Position {
  size_t line = 1;
  size_t column = 1;
};

// Of the byte at `offset`; columns count bytes.
Position position_of(std::string_view text, size_t offset) {
  Position position;
  for (char c : text.substr(0, std::min(offset, text.size()))) {
    if (c == '\n') {
      ++position.line;
      position.column = 1;
    } else {
      ++position.column;
    }
  }
  return position;
}

// Walks over the text and tells a counter outside how far the parser has read.
class CountingIterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  CountingIterator(const char* at, size_t* consumed) : at_(at), consumed_(consumed) {}
  reference operator*() const { return *at_; }
  CountingIterator& operator++() {
    ++at_;
    ++*consumed_;
    return *this;
  }
  CountingIterator operator++(int) {
    CountingIterator before = *this;
    ++*this;
    return before;
  }
  bool operator==(const CountingIterator& other) const { return at_ == other.at_; }
  bool operator!=(const CountingIterator& other) const { return at_ != other.at_; }

 private:
  const char* at_;
  size_t* consumed_;
};

// Builds the value while it watches depth and keys.
class Builder {
 public:
  Builder(std::string_view text, const std::string& name, const size_t* consumed)
      : text_(text), name_(name), consumed_(consumed) {}

  StrictJson take() { return {std::move(root_), std::move(key_lines_)}; }

  bool null() { return add(json()); }
  bool boolean(bool value) { return add(value); }
  bool number_integer(json::number_integer_t value) { return add(value); }
  bool number_unsigned(json::number_unsigned_t value) { return add(value); }
  bool number_float(json::number_float_t value, const std::string&) { return add(value); }
  bool string(std::string& value) { return add(value); }
  bool binary(json::binary_t&) { return false; }
  bool start_object(size_t) { return open(json::object()); }
  bool start_array(size_t) { return open(json::array()); }
  bool end_object() { return close(); }
  bool end_array() { return close(); }
  bool key(std::string& name);
  bool parse_error(size_t position, const std::string& token, const nlohmann::detail::exception& error);

 private:
  [[noreturn]] void fail(size_t offset, const std::string& what) const;
  bool add(json value);
  bool open(json container);
  bool close();

  std::string_view text_;
  const std::string& name_;
  const size_t* consumed_;
  json root_;
  std::vector<json*> open_;  // containers from the outermost to the one being filled
  std::string key_;
  std::unordered_map<std::string, size_t> key_lines_;
};

void Builder::fail(size_t offset, const std::string& what) const {
  const Position position = position_of(text_, offset);
  throw ConfigError(fmt::format("{}: line {}, column {}: {}", name_, position.line, position.column, what));
}

bool Builder::add(json value) {
  if (open_.empty()) {
    if (!value.is_object()) fail(0, "the file must hold one JSON object, {…}");
    root_ = std::move(value);
  } else if (open_.back()->is_array()) {
    open_.back()->push_back(std::move(value));
  } else {
    (*open_.back())[key_] = std::move(value);
  }
  return true;
}

bool Builder::open(json container) {
  if (open_.size() == kMaxDepth) fail(*consumed_ - 1, fmt::format("nested more than {} deep", kMaxDepth));
  json* parent = open_.empty() ? nullptr : open_.back();
  add(std::move(container));
  open_.push_back(parent == nullptr ? &root_ : parent->is_array() ? &parent->back() : &(*parent)[key_]);
  return true;
}

bool Builder::close() {
  open_.pop_back();
  return true;
}

bool Builder::key(std::string& name) {
  const size_t end = *consumed_;
  if (open_.back()->contains(name)) fail(end, fmt::format("key \"{}\" stands here a second time", name));
  if (open_.size() == 1) key_lines_[name] = position_of(text_, end).line;
  (*open_.back())[name] = nullptr;
  key_ = name;
  return true;
}

// The library's message without its own numbering and position.
bool Builder::parse_error(size_t, const std::string&, const nlohmann::detail::exception& error) {
  std::string what = error.what();
  if (const size_t cut = what.find("] "); cut != std::string::npos) what = what.substr(cut + 2);
  if (const size_t cut = what.find(": "); what.rfind("parse error", 0) == 0 && cut != std::string::npos) {
    what = what.substr(cut + 2);
  }
  fail(*consumed_ == 0 ? 0 : *consumed_ - 1, what);
}

}  // namespace

StrictJson parse_strict_json(const std::string& text, const std::string& name) {
  if (text.find_first_not_of(" \t\r\n") == std::string::npos) {
    throw ConfigError(fmt::format("{}: the file is empty; it must hold one JSON object, {{…}}", name));
  }
  if (text.rfind("\xEF\xBB\xBF", 0) == 0) {
    throw ConfigError(
        fmt::format("{}: line 1, column 1: the file starts with a byte-order mark; save it as UTF-8 "
                    "without one",
                    name));
  }
  size_t consumed = 0;
  Builder builder(text, name, &consumed);
  json::sax_parse(CountingIterator(text.data(), &consumed),
                  CountingIterator(text.data() + text.size(), &consumed), &builder);
  return builder.take();
}

}  // namespace fsdp::trainer
