// Determines names and addresses of hosts.
#pragma once

#include <chrono>
#include <string>

namespace fsdp::comm {

// Returns the name that this host has for itself.
std::string host_name();

// Returns the numeric address of the interface through which this host reaches `host` (a name or an address); IPv4 if
// there is a choice. Sends nothing. Throws, naming `host`, if the name is unknown or there is no route.
std::string local_address_towards(const std::string& host);

// Blocks until something listens at host:port, at most for `timeout`, or until waits are interrupted
// (base/interruption.h). Throws, naming `host`, if the name is unknown.
enum class Awaited { kListening, kTimedOut, kInterrupted };
Awaited await_listener(const std::string& host, int port, std::chrono::milliseconds timeout);

}  // namespace fsdp::comm
