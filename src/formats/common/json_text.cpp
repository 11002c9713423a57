#include "formats/common/json_text.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <utility>
#include <vector>

#include "base/check.h"

namespace fsdp::formats {
namespace {

using nlohmann::json;

constexpr size_t kMaxDepth = 64;
constexpr std::uintmax_t kMaxFileBytes = std::uintmax_t{1} << 30;

// Iterates over the text and reports the parser's progress, so that a builder knows its position.
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

// Returns the parser's explanation without its prefix, "[json.exception.NAME] parse error at POSITION: ".
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

// Builds the value from the parser's events. Refuses duplicate keys, which nlohmann's own builder would merge silently,
// and nesting without limit. A parser callback could detect both, but nlohmann's builder with a callback visits all
// siblings so far at the end of each object: files of 20,000 tensors took seconds.
class ValueBuilder {
 public:
  // `reader`: receives the members of the object under the outermost object's key `key`; may be null.
  ValueBuilder(std::string_view text, const char* const* reached, const std::string& source, const std::string& key,
               MemberReader* reader)
      : text_(text), reached_(reached), source_(source), key_(key), reader_(reader) {}

  json take() { return std::move(root_); }

  bool null() { return add(nullptr); }
  bool boolean(bool value) { return add(value); }
  bool number_integer(json::number_integer_t value) { return add(value); }
  bool number_unsigned(json::number_unsigned_t value) { return add(value); }
  bool number_float(json::number_float_t value, const std::string&) { return add(value); }
  bool string(std::string& value) { return add(std::move(value)); }
  bool binary(json::binary_t& value) { return add(std::move(value)); }

  bool start_object(size_t) { return open(json::object()); }
  bool start_array(size_t) { return open(json::array()); }
  bool end_object() { return close(); }
  bool end_array() { return close(); }
  bool key(std::string& key) {
    const bool is_new = in_reader_object() ? reader_->begin(key) : begin_member(key);
    FSDP_CHECK_WITH(FileError, is_new, location(text_, offset() - 1, source_), ": duplicate key ", quoted_name(key));
    if (in_reader_object()) value_of_key_ = &member_;
    return true;
  }

  bool parse_error(size_t, const std::string&, const json::exception& error) {
    const auto* syntax = dynamic_cast<const json::parse_error*>(&error);
    const size_t at = syntax == nullptr ? offset() : syntax->byte == 0 ? 0 : syntax->byte - 1;
    FSDP_CHECK_WITH(FileError, false, location(text_, at, source_), ": ", explanation(error.what()));
  }

 private:
  size_t offset() const { return static_cast<size_t>(*reached_ - text_.data()); }

  bool begin_member(const std::string& key) {
    const auto [entry, is_new] = open_.back()->get_ref<json::object_t&>().try_emplace(key);
    value_of_key_ = &entry->second;
    readers_next_ = reader_ && open_.size() == 1 && key == key_;
    return is_new;
  }
  // Whether the innermost open object passes its members to the reader.
  bool in_reader_object() const { return readers_object_ && open_.back() == readers_object_; }
  void give_to_reader() {
    if (in_reader_object()) reader_->end(std::exchange(member_, nullptr));
  }

  // Returns the place of the next value.
  json& place() {
    if (open_.empty()) return root_;
    return open_.back()->is_array() ? open_.back()->emplace_back() : *value_of_key_;
  }
  bool add(json value) {
    place() = std::move(value);
    readers_next_ = false;
    if (!open_.empty()) give_to_reader();
    return true;
  }
  bool open(json value) {
    FSDP_CHECK_WITH(FileError, open_.size() < kMaxDepth, location(text_, offset() - 1, source_),
                    ": nested deeper than ", kMaxDepth, " levels");
    json& opened = place();
    opened = std::move(value);
    open_.push_back(&opened);
    if (std::exchange(readers_next_, false) && opened.is_object()) readers_object_ = &opened;
    return true;
  }
  bool close() {
    if (in_reader_object()) readers_object_ = nullptr;
    open_.pop_back();
    if (!open_.empty()) give_to_reader();
    return true;
  }

  std::string_view text_;
  const char* const* reached_;
  const std::string& source_;
  const std::string& key_;
  MemberReader* reader_;
  bool readers_next_ = false;             // the next value belongs to key_
  const json* readers_object_ = nullptr;  // the reader's object while it is open
  json member_;                           // the current member of that object
  json root_;
  std::vector<json*> open_;  // open objects and arrays; none moves while it is open
  json* value_of_key_ = nullptr;
};

json parse(std::string_view text, const std::string& source, const std::string& key, MemberReader* reader) {
  if (const size_t zero = text.find('\0'); zero != std::string_view::npos) {  // the parser would stop there
    FSDP_CHECK_WITH(FileError, false, location(text, zero, source), ": a zero byte, which JSON does not allow");
  }
  const char* reached = text.data();
  ValueBuilder builder(text, &reached, source, key, reader);
  json::sax_parse(TrackingIterator(text.data(), &reached), TrackingIterator(text.data() + text.size(), &reached),
                  &builder);
  return builder.take();
}

}  // namespace

json parse_json(std::string_view text, const std::string& source) { return parse(text, source, {}, nullptr); }

json parse_json(std::string_view text, const std::string& source, const std::string& key, MemberReader& reader) {
  return parse(text, source, key, &reader);
}

json read_json_file(const std::filesystem::path& path) {
  std::error_code failure;
  FSDP_CHECK_WITH(FileError, std::filesystem::is_regular_file(path, failure), path.string(), ": not a readable file",
                  failure ? " (" + failure.message() + ")" : "");
  FSDP_CHECK_WITH(FileError, std::filesystem::file_size(path) <= kMaxFileBytes, path.string(),
                  ": larger than the limit of ", kMaxFileBytes, " bytes for JSON files");
  std::ifstream file(path, std::ios::binary);
  FSDP_CHECK_WITH(FileError, file.is_open(), path.string(), ": cannot be opened: ", std::strerror(errno));
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  FSDP_CHECK_WITH(FileError, !file.bad(), path.string(), ": cannot be read: ", std::strerror(errno));
  return parse_json(text, path.string());
}

std::string quoted_name(std::string_view text) {
  constexpr size_t kMaxShown = 200;
  std::string shown = json(std::string(text.substr(0, kMaxShown))).dump(-1, ' ', true, json::error_handler_t::replace);
  if (text.size() > kMaxShown) shown.insert(shown.size() - 1, "...");
  return shown;
}

std::string json_text(const json& value) {
  if (value.is_string()) return quoted_name(std::string_view(value.get_ref<const std::string&>()));
  std::string text = value.dump(-1, ' ', true, json::error_handler_t::replace);
  if (text.size() <= 200) return text;
  text.resize(200);
  text += "...";
  return text;
}

}  // namespace fsdp::formats
