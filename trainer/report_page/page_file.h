// The file of a page.
#pragma once

#include <string>

namespace fsdp::trainer {

// Throws a FileError if the folder of `target` does not exist; creates no folders. `option`: names the file, for the
// message.
void check_folder_of_page(const std::string& target, const std::string& option);

}  // namespace fsdp::trainer
