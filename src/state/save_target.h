// The folder of a checkpoint that is being saved, shared by the ranks.
#pragma once

#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "formats/common/staged_folder.h"
#include "fsdp/communicator.h"
#include "state/pieces.h"

namespace fsdp::state {

// Rank 0 makes a temporary folder; each rank writes its file there; rank 0 writes the manifest and gives the folder its
// final name. If the object is destroyed before that, rank 0 removes the temporary folder. write and commit do not
// communicate with other ranks. They may be called in another thread than the destructor, one at a time.
class SaveTarget {
 public:
  // Collective; all ranks get the same errors.
  SaveTarget(const std::filesystem::path& folder, Communicator& world);

  // The description of the save in errors and in the names of collectives.
  const std::string& what() const { return what_; }
  const std::filesystem::path& folder() const { return folder_; }

  // Writes this rank's file. Returns what rank 0 must know about it. `after_each`: see write_rank_file.
  std::string write(const RankPieces& pieces, const std::function<void()>& after_each) const;

  // On rank 0, takes the results of write of all ranks, in rank order; on return the checkpoint is complete and on the
  // disk. On other ranks does nothing.
  void commit(const std::vector<std::string>& written, const nlohmann::json& user);

 private:
  std::filesystem::path folder_;
  std::string what_;
  int rank_, size_;
  std::optional<formats::StagedFolder> staged_;  // on rank 0
  std::filesystem::path place_;
};

}  // namespace fsdp::state
