#include "testing/program.h"

#include <sys/wait.h>

#include <cstdlib>

#include "support/files/project_paths.h"
#include "support/files/temporary_folder.h"

namespace fsdp::trainer {

ProgramResult run_shell(const std::string& line) {
  const testing::TemporaryFolder folder;
  const std::string script =
      folder.write("script",
                   "unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT\n"
                   "export FSDP=" +
                       fsdp::testing::build_folder() + "/fsdp OMP_NUM_THREADS=1\n" + line + "\n");
  const std::string command =
      "timeout 300 sh " + script + " > " + folder.path("out") + " 2> " + folder.path("err") + " < /dev/null";
  const int wait_status = std::system(command.c_str());
  return {WEXITSTATUS(wait_status), folder.read("out"), folder.read("err")};
}

}  // namespace fsdp::trainer
