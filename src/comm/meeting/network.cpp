#include "comm/meeting/network.h"

#include <c10/util/Exception.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <memory>

#include "base/interruption.h"

namespace fsdp::comm {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kRetryPeriod = std::chrono::milliseconds(100);

using AddressList = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

AddressList resolve(const std::string& host, int port, int socket_type) {
  addrinfo hints{};
  hints.ai_socktype = socket_type;
  addrinfo* found = nullptr;
  const int status = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  TORCH_CHECK_WITH(DistNetworkError, status == 0, "cannot resolve the address '", host, "': ", gai_strerror(status),
                   "; check MASTER_ADDR");
  return {found, &freeaddrinfo};
}

class Socket {
 public:
  explicit Socket(const addrinfo& target)
      : fd_(socket(target.ai_family, target.ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) {}
  ~Socket() {
    if (fd_ >= 0) close(fd_);
  }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;

  // Waits until the deadline, or until waits are interrupted.
  bool connect_to(const addrinfo& target, Clock::time_point deadline) const {
    if (fd_ < 0) return false;
    if (connect(fd_, target.ai_addr, target.ai_addrlen) == 0) return true;
    return errno == EINPROGRESS && await_connection(deadline);
  }
  // Returns an empty string if the address is unknown.
  std::string local_address() const {
    sockaddr_storage local{};
    socklen_t length = sizeof(local);
    if (getsockname(fd_, reinterpret_cast<sockaddr*>(&local), &length) != 0) return {};
    std::array<char, NI_MAXHOST> text{};
    const int status =
        getnameinfo(reinterpret_cast<sockaddr*>(&local), length, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST);
    return status == 0 ? std::string(text.data()) : std::string();
  }

 private:
  bool await_connection(Clock::time_point deadline) const {
    pollfd ready{fd_, POLLOUT, 0};
    do {
      const int events = poll(&ready, 1, static_cast<int>(base::Interruption::kPeriod.count()));
      if (events < 0 && errno != EINTR) return false;
      if (events > 0) return error() == 0;
    } while (!base::Interruption::is_requested() && Clock::now() < deadline);
    return false;
  }
  int error() const {
    int error = 0;
    socklen_t length = sizeof(error);
    return getsockopt(fd_, SOL_SOCKET, SO_ERROR, &error, &length) == 0 ? error : errno;
  }

  int fd_;
};

bool is_listening(const addrinfo* targets, Clock::time_point deadline) {
  for (const addrinfo* target = targets; target != nullptr; target = target->ai_next) {
    if (Socket(*target).connect_to(*target, deadline)) return true;
  }
  return false;
}

}  // namespace

std::string host_name() {
  std::array<char, 256> name{};
  gethostname(name.data(), name.size() - 1);
  return name.data();
}

std::string local_address_towards(const std::string& host) {
  // Connecting a datagram socket sends nothing, but selects the route and thereby the local address.
  constexpr int kAnyPort = 9;
  const auto targets = resolve(host, kAnyPort, SOCK_DGRAM);
  for (const int family : {AF_INET, AF_INET6}) {
    for (const addrinfo* target = targets.get(); target != nullptr; target = target->ai_next) {
      if (target->ai_family != family) continue;
      const Socket socket(*target);
      if (!socket.connect_to(*target, Clock::now())) continue;
      const auto address = socket.local_address();
      if (!address.empty()) return address;
    }
  }
  TORCH_CHECK_WITH(DistNetworkError, false, "no network interface of this host reaches '", host,
                   "'; check MASTER_ADDR");
}

Awaited await_listener(const std::string& host, int port, std::chrono::milliseconds timeout) {
  const auto deadline = Clock::now() + timeout;
  const auto targets = resolve(host, port, SOCK_STREAM);
  while (!is_listening(targets.get(), deadline)) {
    if (Clock::now() >= deadline) return Awaited::kTimedOut;
    if (!base::Interruption::sleep_for(kRetryPeriod)) return Awaited::kInterrupted;
  }
  return Awaited::kListening;
}

}  // namespace fsdp::comm
