// Which address of this host others can reach.
#pragma once

#include <string>

namespace fsdp {

// The numeric address of the interface through which this host reaches `host` (a name or an address); IPv4 if
// there is a choice. Sends nothing. Throws, naming `host`, if the name is unknown or there is no route.
std::string local_address_towards(const std::string& host);

}  // namespace fsdp
