// Ranks as on several hosts.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>

#include "comm/cpu_communicator.h"
#include "comm/gloo/gloo_communicator.h"
#include "comm/meeting/meeting_point.h"
#include "support/ranks/thread_ranks.h"

namespace fsdp::testing {

// `comm`: the communicator over hosts; `flat`: the group over Gloo alone.
using HostsBody = std::function<void(Communicator& comm, Communicator& flat)>;
inline void on_hosts(int hosts, int ranks_per_host, const HostsBody& body) {
  const auto point = comm::make_in_memory_meeting_point();
  run_ranks(hosts * ranks_per_host,
            [&](std::shared_ptr<Communicator> flat) {
              GlooOptions options;
              options.timeout = flat->timeout();
              auto gloo = comm::make_host_communicator(point, flat->rank(), flat->size(), options);
              const std::string host = "host" + std::to_string(flat->rank() / ranks_per_host);
              const auto chosen = comm::share_memory(std::move(gloo), {.name = host});
              ASSERT_EQ(chosen.communicator->backend(), "shm+gloo");
              body(*chosen.communicator, *flat);
            },
            {.communicator = "gloo"});
}

}  // namespace fsdp::testing
