// Which pages of a mapping have memory.
#pragma once

#include <cstdint>

namespace fsdp {

// Bytes of the pages with memory among those in which this range lies; 0 where the system does not tell. Looks at no
// page, so that none gets memory by it.
int64_t resident_nbytes(const char* begin, int64_t nbytes);

}  // namespace fsdp
