#include "comm/group_partition.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <map>
#include <random>
#include <sstream>

#include "base/text_digest.h"
#include "comm/collective_shapes.h"

namespace fsdp::comm {
namespace {

std::string random_word() {
  std::random_device device;
  return c10::str(device(), "-", device());
}

std::vector<int> parse_members(const std::string& text) {
  std::vector<int> members;
  std::istringstream in(text);
  for (std::string member; std::getline(in, member, ',');) members.push_back(std::stoi(member));
  return members;
}

// `lists`: the list of each rank. Throws the same error on all ranks, or on none.
void check_partition(const std::vector<std::string>& lists, const CollectiveId& id) {
  for (size_t rank = 0; rank < lists.size(); ++rank) {
    const std::vector<int> members = parse_members(lists[rank]);
    check_subgroup(members, static_cast<int>(rank), static_cast<int>(lists.size()), id);
    for (int member : members) {
      const std::string& other = lists[static_cast<size_t>(member)];
      TORCH_CHECK(other == lists[rank], describe("subgroup", id), ": rank ", rank, " names the ranks [", lists[rank],
                  "], but rank ", member, " names [", other, "]");
    }
  }
}

// The summary of one rank's list.
struct Summary {
  std::string hash;
  size_t size = 0;   // 0: the rank cannot be in a group of these members
  std::string word;  // a random word on rank 0, "-" on others
};

Summary summary_of(const Communicator& group, const std::vector<int>& members, const std::string& text,
                   const CollectiveId& id) {
  Summary summary{base::digest_of(text), members.size(), group.rank() == 0 ? random_word() : "-"};
  try {
    check_subgroup(members, group.rank(), group.size(), id);
  } catch (const c10::Error&) {
    summary.size = 0;
  }
  return summary;
}

// Whether each list comes from as many ranks as it has members. As each rank is a member of its own list, these ranks
// are its members.
bool is_partition(const std::vector<Summary>& summaries) {
  std::map<std::string, size_t> givers;
  for (const Summary& one : summaries) ++givers[one.hash];
  for (const Summary& one : summaries) {
    if (givers[one.hash] != one.size) return false;
  }
  return true;
}

}  // namespace

std::string agree_on_partition(Communicator& group, const std::vector<int>& members, const CollectiveId& id) {
  const std::string text = c10::Join(",", members);
  const Summary own = summary_of(group, members, text, id);
  std::vector<Summary> all;
  for (const std::string& line : group.all_gather_bytes(c10::str(own.hash, " ", own.size, " ", own.word), id)) {
    Summary one;
    std::istringstream(line) >> one.hash >> one.size >> one.word;
    all.push_back(std::move(one));
  }
  if (!is_partition(all)) check_partition(group.all_gather_bytes(text, id), id);
  return all.front().word;
}

}  // namespace fsdp::comm
