// Inputs for the readers of archives of torch.save, and of checkpoints made of them.
#pragma once

#include <string>
#include <vector>

namespace fsdp::fuzz {

std::vector<std::string> zip_archive_seeds();
std::vector<std::string> torch_archive_seeds();
std::vector<std::string> dcp_folder_seeds();

}  // namespace fsdp::fuzz
