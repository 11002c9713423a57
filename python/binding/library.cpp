// The library of the Python package: registers the classes of torch.classes.fsdp_cpp when it is loaded.
#include <torch/custom_class.h>
#include <torch/version.h>

#include <string>

#include "binding/checkpoint.h"
#include "binding/flat_place.h"
#include "binding/gradients.h"
#include "binding/interruption.h"
#include "binding/module_mirror.h"
#include "binding/options.h"
#include "binding/process_group.h"
#include "binding/sharded.h"
#include "binding/whole_parameter.h"
#include "torch_seams/self_check.h"

namespace fsdp::python {
namespace {

// torch.classes.fsdp_cpp.Build: the build of this library.
struct Build : torch::CustomClassHolder {
  // The version of LibTorch that the library was compiled for, without a local part: "2.13.0".
  static std::string torch_version() {
    return c10::str(TORCH_VERSION_MAJOR, ".", TORCH_VERSION_MINOR, ".", TORCH_VERSION_PATCH);
  }
  // Throws if the LibTorch of this process does not behave as the library expects.
  static void check() { seams::self_check(); }
};

}  // namespace

TORCH_LIBRARY(fsdp_cpp, m) {
  m.class_<Build>("Build").def_static("torch_version", &Build::torch_version).def_static("check", &Build::check);
  register_gradients(m);
  register_group(m);
  register_interruption(m);
  register_module_mirror(m);
  register_flat_place(m);
  register_options(m);
  register_whole(m);
  register_sharded(m);
  register_checkpoint(m);
}

}  // namespace fsdp::python
