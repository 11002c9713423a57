// Reads a pickle that may use the globals of .metadata files.
#include "formats/dcp/dcp_globals.h"
#include "formats/pickle/pickle_reader.h"
#include "reader_check.h"

using namespace fsdp;

namespace {

using formats::PickleValue;

size_t count_values(const PickleValue& value) {
  size_t count = 1;
  for (const PickleValue* item : value.items) count += count_values(*item);
  for (const PickleValue* part : {value.arguments, value.state}) count += part != nullptr ? count_values(*part) : 0;
  return count;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const formats::PickleLimits limits{.max_values = 1 << 16};
  fuzz::check_reader(size, "x.pickle: byte ", [&] {
    const auto tree = formats::read_pickle(fuzz::text_of(data, size), "x.pickle", formats::dcp::globals(), limits);
    fuzz::require(count_values(tree.root()) <= limits.max_values, "a walk over the tree ends");
  });
  return 0;
}
