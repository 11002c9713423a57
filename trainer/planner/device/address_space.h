// Addresses without memory behind them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fsdp::planner {

// Reserves a range of addresses, as large as the limits of the process allow, up to 64 TiB. A program that reads or
// writes there ends with a message that names the operator that ran last.
class AddressSpace {
 public:
  AddressSpace();
  ~AddressSpace();
  AddressSpace(const AddressSpace&) = delete;
  AddressSpace& operator=(const AddressSpace&) = delete;

  uint64_t begin() const { return begin_; }
  uint64_t nbytes() const { return nbytes_; }
  bool contains(const void* address) const { return reinterpret_cast<uint64_t>(address) - begin_ < nbytes_; }

 private:
  uint64_t begin_ = 0;
  uint64_t nbytes_ = 0;
};

// Sets the name that the message contains. `name` must stay valid.
void note_last_operator(const char* name);

}  // namespace fsdp::planner
