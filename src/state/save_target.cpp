#include "state/save_target.h"

#include <c10/util/Exception.h>

#include "formats/common/output_file.h"
#include "formats/own/checkpoint_folder_writer.h"
#include "formats/own/manifest.h"
#include "formats/own/run_state.h"
#include "state/rank_file_writer.h"
#include "state/together.h"

namespace fsdp::state {

namespace fs = std::filesystem;

using nlohmann::json;

namespace {

// Checks that a rank has the same parameters that are not sharded as rank 0, because only rank 0 writes them.
void check_ignored(const json& here, const json& there, size_t rank) {
  TORCH_CHECK(here.size() == there.size(), "rank 0 has ", here.size(), " parameters that are not sharded, rank ", rank,
              " has ", there.size());
  for (const auto& [name, checksum] : here.items()) {
    TORCH_CHECK(there.value(name, json()) == checksum, "parameter '", name, "' is not sharded, and rank ", rank,
                " has other values of it than rank 0: a checkpoint holds one copy. Pass each rank's values as of_rank, "
                "under the parameter's name");
  }
}

}  // namespace

SaveTarget::SaveTarget(const fs::path& folder, Communicator& world)
    : folder_(folder), what_("saving the checkpoint " + folder.string()), rank_(world.rank()), size_(world.size()) {
  place_ = together(world, what_, [&] {
    if (rank_ != 0) return std::string();
    staged_.emplace(folder);
    return staged_->path().string();
  })[0];
}

std::string SaveTarget::write(const RankPieces& pieces, const std::function<void()>& after_each) const {
  const formats::RankFile file =
      write_rank_file(place_ / formats::rank_file_name(rank_, size_), pieces.pieces, after_each);
  return json{{"leaves", pieces.leaves}, {"ignored", pieces.ignored}}.dump() + "\n" + rank_file_text(file);
}

void SaveTarget::commit(const std::vector<std::string>& written, const json& groups, const json& user) {
  if (!staged_) return;
  const fs::path path = place_ / formats::kManifestName;
  formats::Manifest manifest;
  json leaves = json::object();
  json ignored;  // rank 0's
  for (size_t rank = 0; rank < written.size(); ++rank) {
    const std::string_view text = written[rank];
    const size_t line = text.find('\n');
    json of_rank = json::parse(text.substr(0, line));
    add_rank_file(formats::parse_rank_file(text.substr(line + 1), path.string()), manifest);
    for (auto& [name, leaf] : of_rank.at("leaves").get_ref<json::object_t&>()) leaves[name] = std::move(leaf);
    if (rank == 0) ignored = of_rank.at("ignored");
    check_ignored(ignored, of_rank.at("ignored"), rank);
  }
  manifest.state = formats::run_state(std::move(leaves), groups, user);
  formats::write_file(path, manifest_text(std::move(manifest), path.string()));
  staged_->commit();
}

}  // namespace fsdp::state
