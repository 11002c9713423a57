// Determines which pages of a mapping are resident.
#pragma once

#include <cstdint>

namespace fsdp::comm {

// Returns the bytes of the resident pages among the pages that the range touches; 0 if the system does not tell. Does
// not access the pages, so none becomes resident by it.
int64_t resident_nbytes(const char* begin, int64_t nbytes);

}  // namespace fsdp::comm
