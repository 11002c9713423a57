// The folder of a checkpoint that is being saved, shared by the ranks.
#pragma once

#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/staged_folder.h"
#include "fsdp/communicator.h"
#include "state/pieces.h"

namespace fsdp {

// Rank 0 makes a temporary folder; each rank writes its file there; rank 0 writes the manifest and gives the folder its
// name. Destroyed before that, rank 0 removes the temporary folder. write and commit touch no other rank, and may be
// called in another thread than the one that destroys it, one at a time.
class SaveTarget {
 public:
  // Collective; errors are those of all ranks.
  SaveTarget(const std::filesystem::path& folder, Communicator& world);

  // For errors and the names of collectives.
  const std::string& what() const { return what_; }
  const std::filesystem::path& folder() const { return folder_; }

  // Writes this rank's file. Returns what rank 0 must know of it. `after_each`: see write_rank_file.
  std::string write(const RankPieces& pieces, const std::function<void()>& after_each) const;

  // On rank 0, with what all ranks returned of write, in rank order, and its own groups: the checkpoint is complete,
  // and on the disk, on return. On other ranks nothing.
  void commit(const std::vector<std::string>& written, const nlohmann::json& groups, const nlohmann::json& user);

 private:
  std::filesystem::path folder_;
  std::string what_;
  int rank_, size_;
  std::optional<checkpoint::StagedFolder> staged_;  // on rank 0
  std::filesystem::path place_;
};

}  // namespace fsdp
