#include "checkpoint/json_text.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <unordered_set>
#include <vector>

namespace fsdp::checkpoint {
namespace {

using nlohmann::json;

constexpr int kMaxDepth = 64;
constexpr std::uintmax_t kMaxFileBytes = std::uintmax_t{1} << 30;

// Walks over the text and reports how far the parser has come, so that a callback knows where it is.
class TrackingIterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  TrackingIterator(const char* at, const char** reached) : at_(at), reached_(reached) {}
  reference operator*() const { return *at_; }
  TrackingIterator& operator++() {
    *reached_ = ++at_;
    return *this;
  }
  bool operator==(const TrackingIterator& other) const { return at_ == other.at_; }
  bool operator!=(const TrackingIterator& other) const { return at_ != other.at_; }

 private:
  const char* at_;
  const char** reached_;
};

std::string location(std::string_view text, size_t offset, const std::string& source) {
  const std::string_view before = text.substr(0, std::min(offset, text.size()));
  const auto line = 1 + std::count(before.begin(), before.end(), '\n');
  const size_t line_start = before.rfind('\n') + 1;  // npos + 1 is 0
  return c10::str(source, ":", line, ":", before.size() - line_start + 1);
}

// The parser's explanation without its own prefix, "[json.exception.NAME] parse error at POSITION: ".
std::string explanation(std::string what) {
  if (const size_t prefix = what.find("] "); what.compare(0, 1, "[") == 0 && prefix != std::string::npos) {
    what.erase(0, prefix + 2);
  }
  if (const size_t position = what.find(": ");
      what.compare(0, 11, "parse error") == 0 && position != std::string::npos) {
    what.erase(0, position + 2);
  }
  return what;
}

// Sees every key of every object and refuses what a DOM would silently merge or nest without end.
class StructureCheck {
 public:
  StructureCheck(std::string_view text, const char* const* reached, const std::string& source)
      : text_(text), reached_(reached), source_(source) {}

  bool operator()(int depth, json::parse_event_t event, json& parsed) {
    switch (event) {
      case json::parse_event_t::object_start:
        check_depth(depth);
        keys_.emplace_back();
        break;
      case json::parse_event_t::array_start:
        check_depth(depth);
        break;
      case json::parse_event_t::object_end:
        keys_.pop_back();
        break;
      case json::parse_event_t::key:
        check_key(parsed.get_ref<const std::string&>());
        break;
      default:
        break;
    }
    return true;
  }

 private:
  size_t offset() const { return static_cast<size_t>(*reached_ - text_.data()); }

  void check_depth(int depth) const {
    TORCH_CHECK(depth < kMaxDepth, location(text_, offset() - 1, source_), ": nested deeper than ", kMaxDepth,
                " levels");
  }
  void check_key(const std::string& key) {
    TORCH_CHECK(keys_.back().insert(key).second, location(text_, offset() - 1, source_), ": duplicate key ",
                quoted_name(key));
  }

  std::string_view text_;
  const char* const* reached_;
  const std::string& source_;
  std::vector<std::unordered_set<std::string>> keys_;
};

}  // namespace

json parse_json(std::string_view text, const std::string& source) {
  if (const size_t zero = text.find('\0'); zero != std::string_view::npos) {  // the parser would end there
    TORCH_CHECK(false, location(text, zero, source), ": a zero byte, which JSON does not have");
  }
  const char* reached = text.data();
  StructureCheck check(text, &reached, source);
  try {
    return json::parse(TrackingIterator(text.data(), &reached), TrackingIterator(text.data() + text.size(), &reached),
                       std::ref(check));
  } catch (const json::parse_error& error) {
    TORCH_CHECK(false, location(text, error.byte == 0 ? 0 : error.byte - 1, source), ": ", explanation(error.what()));
  } catch (const json::exception& error) {
    TORCH_CHECK(false, location(text, static_cast<size_t>(reached - text.data()), source), ": ",
                explanation(error.what()));
  }
}

json read_json_file(const std::filesystem::path& path) {
  std::error_code failure;
  TORCH_CHECK(std::filesystem::is_regular_file(path, failure), path.string(), ": not a readable file",
              failure ? " (" + failure.message() + ")" : "");
  TORCH_CHECK(std::filesystem::file_size(path) <= kMaxFileBytes, path.string(), ": larger than ", kMaxFileBytes,
              " bytes, which no JSON file here should be");
  std::ifstream file(path, std::ios::binary);
  TORCH_CHECK(file.is_open(), path.string(), ": cannot be opened: ", std::strerror(errno));
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  TORCH_CHECK(!file.bad(), path.string(), ": cannot be read: ", std::strerror(errno));
  return parse_json(text, path.string());
}

std::string quoted_name(std::string_view text) {
  constexpr size_t kMaxShown = 200;
  std::string shown = json(std::string(text.substr(0, kMaxShown))).dump(-1, ' ', true, json::error_handler_t::replace);
  if (text.size() > kMaxShown) {
    shown.insert(shown.size() - 1, "...");
  }
  return shown;
}

std::string json_text(const json& value) {
  if (value.is_string()) {
    return quoted_name(std::string_view(value.get_ref<const std::string&>()));
  }
  const std::string text = value.dump(-1, ' ', true, json::error_handler_t::replace);
  return text.size() <= 200 ? text : text.substr(0, 200) + "...";
}

}  // namespace fsdp::checkpoint
