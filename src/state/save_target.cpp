#include "state/save_target.h"

#include "checkpoint/checkpoint_folder_writer.h"
#include "checkpoint/manifest.h"
#include "checkpoint/output_file.h"
#include "state/rank_file_writer.h"
#include "state/together.h"

namespace fsdp {

namespace fs = std::filesystem;
using nlohmann::json;

SaveTarget::SaveTarget(const fs::path& folder, Communicator& world)
    : folder_(folder), what_("saving the checkpoint " + folder.string()), rank_(world.rank()), size_(world.size()) {
  place_ = together(world, what_, [&] {
    if (rank_ != 0) return std::string();
    staged_.emplace(folder);
    return staged_->path().string();
  })[0];
}

std::string SaveTarget::write(const RankPieces& pieces, const std::function<void()>& after_each) const {
  const checkpoint::RankFile file =
      write_rank_file(place_ / checkpoint::rank_file_name(rank_, size_), pieces.pieces, after_each);
  return json{{"file", rank_file_text(file)}, {"leaves", pieces.leaves}}.dump();
}

void SaveTarget::commit(const std::vector<std::string>& written, const json& groups, const json& user) {
  if (!staged_) return;
  const fs::path path = place_ / checkpoint::kManifestName;
  checkpoint::Manifest manifest;
  json leaves = json::object();
  for (const std::string& text : written) {
    const json of_rank = json::parse(text);
    add_rank_file(checkpoint::parse_rank_file(of_rank.at("file").get_ref<const std::string&>(), path.string()),
                  manifest);
    leaves.update(of_rank.at("leaves"));
  }
  manifest.state = {{"optimizer", {{"leaves", std::move(leaves)}, {"groups", groups}}}, {"user", user}};
  checkpoint::write_file(path, manifest_text(std::move(manifest), path.string()));
  staged_->commit();
}

}  // namespace fsdp
