#include "binding/scope_thread.h"

namespace fsdp::python {

ScopeThread::ScopeThread(Scope scope) {
  std::promise<void> opened;
  std::future<void> is_open = opened.get_future();
  std::shared_future<void> may_close = close_.get_future().share();
  std::packaged_task<void()> task([scope = std::move(scope), &opened, may_close] {
    bool entered = false;
    try {
      scope([&] {
        entered = true;
        opened.set_value();
        may_close.wait();
      });
    } catch (...) {
      if (!entered) opened.set_exception(std::current_exception());
      throw;
    }
  });
  ended_ = task.get_future();
  thread_ = std::thread(std::move(task));
  try {
    is_open.get();
  } catch (...) {
    thread_.join();
    throw;
  }
}

ScopeThread::~ScopeThread() {
  if (thread_.joinable()) {
    close_.set_value();
    thread_.join();
  }
}

void ScopeThread::close() {
  close_.set_value();
  thread_.join();
  ended_.get();
}

}  // namespace fsdp::python
