// Seeds for the readers of torch.save archives, and of checkpoints that consist of such archives.
#pragma once

#include <string>
#include <vector>

namespace fsdp::fuzz {

std::vector<std::string> zip_archive_seeds();
std::vector<std::string> torch_archive_seeds();
std::vector<std::string> dcp_folder_seeds();

}  // namespace fsdp::fuzz
