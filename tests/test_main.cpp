// The entry point of every test program: one thread for each operator, so that results are repeatable.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/Parallel.h>

#include "base/end_process.h"

int main(int argc, char** argv) {
  at::set_num_threads(1);
  ::testing::InitGoogleMock(&argc, argv);
  fsdp::base::end_process(RUN_ALL_TESTS());
}
