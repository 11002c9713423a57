#include "torch_seams/clean_dispatch.h"

#include "torch_seams/dispatch_key.h"

namespace fsdp::seams {

c10::impl::LocalDispatchKeySet CleanDispatchGuard::clean_keys() {
  c10::impl::PODLocalDispatchKeySet raw{};
  raw.set_included(c10::DispatchKeySet(c10::DispatchKey::BackendSelect));
  raw.set_excluded(c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset |
                   c10::DispatchKeySet(kShardedKey) | c10::default_excluded_set);
  return c10::impl::LocalDispatchKeySet(raw);
}

}  // namespace fsdp::seams
