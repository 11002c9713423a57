// FQNs of modules as paths in the tree: "" is the root, "layers.0.mlp" is below "layers.0".
#pragma once

#include <string>

namespace fsdp::schedule {

// Whether `path` is `ancestor` itself or below it.
inline bool is_at_or_below(const std::string& path, const std::string& ancestor) {
  if (ancestor.empty() || path == ancestor) return true;
  return path.size() > ancestor.size() && path.compare(0, ancestor.size(), ancestor) == 0 &&
         path[ancestor.size()] == '.';
}

// Calls `visit` with `path` and with each of its ancestors, from the nearest to "".
template <typename Visit>
void for_each_ancestor(const std::string& path, const Visit& visit) {
  for (std::string name = path;;) {
    visit(name);
    if (name.empty()) return;
    const size_t dot = name.rfind('.');
    name.resize(dot == std::string::npos ? 0 : dot);
  }
}

}  // namespace fsdp::schedule
