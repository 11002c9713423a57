#include "support/training/all_pairs.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <random>
#include <set>

namespace fsdp::testing {
namespace {

using Pair = std::array<int, 4>;  // two factors and their values

std::set<Pair> pairs_of(const Choice& choice) {
  const int factors = static_cast<int>(choice.size());
  std::set<Pair> pairs;
  for (int a = 0; a < factors; ++a) {
    for (int b = a + 1; b < factors; ++b) pairs.insert({a, choice[a], b, choice[b]});
  }
  return pairs;
}

int64_t count_new(const Choice& choice, const std::set<Pair>& missing) {
  const std::set<Pair> pairs = pairs_of(choice);
  return std::count_if(pairs.begin(), pairs.end(), [&](const Pair& pair) { return missing.count(pair) > 0; });
}

// Returns the next choice: starts from a missing pair and sets each other factor to the value that covers most pairs.
// Of equally good values it takes any, so that runs differ in more than they must.
Choice cover(const std::set<Pair>& missing, const std::vector<int>& sizes, std::mt19937& random) {
  const Pair& first = *missing.begin();
  Choice choice(sizes.size(), -1);
  choice[first[0]] = first[1];
  choice[first[2]] = first[3];
  for (size_t factor = 0; factor < choice.size(); ++factor) {
    if (choice[factor] >= 0) continue;
    int64_t best = -1;
    int value = 0;
    const auto start = static_cast<int>(random() % static_cast<unsigned>(sizes[factor]));
    for (int i = 0; i < sizes[factor]; ++i) {
      choice[factor] = (start + i) % sizes[factor];
      if (const int64_t covered = count_new(choice, missing); covered > best) {
        best = covered;
        value = choice[factor];
      }
    }
    choice[factor] = value;
  }
  return choice;
}

std::set<Pair> pairs_among(const std::vector<int>& sizes) {
  const int factors = static_cast<int>(sizes.size());
  std::set<Pair> pairs;
  for (int a = 0; a < factors; ++a) {
    for (int b = a + 1; b < factors; ++b) {
      for (int u = 0; u < sizes[a]; ++u) {
        for (int v = 0; v < sizes[b]; ++v) pairs.insert({a, u, b, v});
      }
    }
  }
  return pairs;
}

}  // namespace

std::vector<Choice> all_pairs(const std::vector<int>& sizes) {
  std::set<Pair> missing = pairs_among(sizes);
  std::mt19937 random(17);  // the same runs each time
  std::vector<Choice> choices;
  while (!missing.empty()) {
    choices.push_back(cover(missing, sizes, random));
    for (const Pair& pair : pairs_of(choices.back())) missing.erase(pair);
  }
  return choices;
}

}  // namespace fsdp::testing
