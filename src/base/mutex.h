// A mutex, and annotations that name what it guards. Clang checks them (-Werror=thread-safety): an access without the
// lock does not compile. Other compilers ignore them.
#pragma once

#include <mutex>

#if defined(__clang__)
#define FSDP_THREAD_ANNOTATION(x) __attribute__((x))
#else
#define FSDP_THREAD_ANNOTATION(x)
#endif

// On a member: it is read and written only while `mutex` is held.
#define FSDP_GUARDED_BY(mutex) FSDP_THREAD_ANNOTATION(guarded_by(mutex))
// On a function: the caller holds `mutex`.
#define FSDP_REQUIRES(mutex) FSDP_THREAD_ANNOTATION(requires_capability(mutex))
// On a function: the caller does not hold `mutex`, because the function takes it.
#define FSDP_EXCLUDES(mutex) FSDP_THREAD_ANNOTATION(locks_excluded(mutex))

namespace fsdp::base {

class FSDP_THREAD_ANNOTATION(capability("mutex")) Mutex {
 public:
  void lock() FSDP_THREAD_ANNOTATION(acquire_capability()) { mutex_.lock(); }
  bool try_lock() FSDP_THREAD_ANNOTATION(try_acquire_capability(true)) { return mutex_.try_lock(); }
  void unlock() FSDP_THREAD_ANNOTATION(release_capability()) { mutex_.unlock(); }

 private:
  std::mutex mutex_;
};

// Holds a mutex until the end of the scope.
class FSDP_THREAD_ANNOTATION(scoped_lockable) MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) FSDP_THREAD_ANNOTATION(acquire_capability(mutex)) : mutex_(mutex) { mutex_.lock(); }
  // Takes over a mutex that the caller has locked.
  MutexLock(Mutex& mutex, std::adopt_lock_t) FSDP_REQUIRES(mutex) : mutex_(mutex) {}
  ~MutexLock() FSDP_THREAD_ANNOTATION(release_capability()) { mutex_.unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

}  // namespace fsdp::base
