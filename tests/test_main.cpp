// The entry point of every test program: one thread for each operator, so that results are repeatable.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/Parallel.h>

int main(int argc, char** argv) {
  at::set_num_threads(1);
  ::testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
