#include "state/save_target.h"

#include <c10/util/Exception.h>

#include <map>
#include <utility>

#include "formats/common/output_file.h"
#include "formats/own/checkpoint_folder_writer.h"
#include "formats/own/manifest.h"
#include "formats/own/run_state.h"
#include "state/merged_groups.h"
#include "state/rank_file_writer.h"
#include "state/saved_optimizer.h"
#include "state/together.h"

namespace fsdp::state {

namespace fs = std::filesystem;

using nlohmann::json;

namespace {

// The state that ranks describe to rank 0, apart from their tensors.
class MergedState {
 public:
  void add(json of_rank, size_t rank) {
    for (auto& [name, leaf] : of_rank.at("leaves").get_ref<json::object_t&>()) leaves_[name] = std::move(leaf);
    groups_.add(parse_groups(of_rank.at("groups")), rank);
    const auto [first, is_new] =
        firsts_.emplace(of_rank.at("stages").get<std::string>(), First{rank, of_rank.at("ignored")});
    if (!is_new) check_ignored(first->second, of_rank.at("ignored"), rank);
  }

  json take_leaves() { return std::move(leaves_); }
  json groups() const { return text_of(groups_.groups()); }

 private:
  // The first rank that holds a part of the model, and its parameters that are not sharded.
  struct First {
    size_t rank;
    json ignored;
  };

  // Checks that a rank has the same parameters that are not sharded as the first one, because only that one writes
  // them.
  static void check_ignored(const First& first, const json& there, size_t rank) {
    TORCH_CHECK(first.ignored.size() == there.size(), "rank ", first.rank, " has ", first.ignored.size(),
                " parameters that are not sharded, rank ", rank, " has ", there.size());
    for (const auto& [name, checksum] : first.ignored.items()) {
      TORCH_CHECK(there.value(name, json()) == checksum, "parameter '", name, "' is not sharded, and rank ", rank,
                  " has other values of it than rank ", first.rank,
                  ": a checkpoint holds one copy. Pass each rank's values as of_rank, under the parameter's name");
    }
  }

  json leaves_ = json::object();
  MergedGroups groups_;
  std::map<std::string, First> firsts_;  // by part of the model
};

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
  const json text{
      {"stages", pieces.stages}, {"leaves", pieces.leaves}, {"groups", pieces.groups}, {"ignored", pieces.ignored}};
  return text.dump() + "\n" + rank_file_text(file);
}

void SaveTarget::commit(const std::vector<std::string>& written, const json& user) {
  if (!staged_) return;
  const fs::path path = place_ / formats::kManifestName;
  formats::Manifest manifest;
  MergedState merged;
  for (size_t rank = 0; rank < written.size(); ++rank) {
    const std::string_view text = written[rank];
    const size_t line = text.find('\n');
    add_rank_file(formats::parse_rank_file(text.substr(line + 1), path.string()), manifest);
    merged.add(json::parse(text.substr(0, line)), rank);
  }
  manifest.state = formats::run_state(merged.take_leaves(), merged.groups(), user);
  formats::write_file(path, manifest_text(std::move(manifest), path.string()));
  staged_->commit();
}

}  // namespace fsdp::state
