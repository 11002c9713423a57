// Writes pickles of protocol 2: each function returns the opcodes that build one value.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

namespace fsdp::formats::pickled {

std::string none();
std::string boolean(bool value);
std::string integer(int64_t value);
std::string unsigned_integer(uint64_t value);
std::string real(double value);
std::string text(const std::string& value);  // UTF-8
// A class, function or constant in a module.
std::string name(const std::string& module, const std::string& name);

// The arguments of the following functions are opcodes.
std::string tuple(const std::vector<std::string>& values);
std::string list(const std::vector<std::string>& values);
using Items = std::vector<std::pair<std::string, std::string>>;  // keys and values
std::string dict(const Items& items);
// The opcodes before and after the keys and values of a dict.
std::string begin_dict();
std::string end_dict();
std::string call(const std::string& callable, const std::vector<std::string>& arguments);
// An object of a class, created without calling the class, with this state.
std::string object(const std::string& type, const std::string& state);
// The opcodes before and after the object's state.
std::string begin_object(const std::string& type);
std::string end_object();
std::string persistent_id(const std::string& id);

// A JSON value: numbers, booleans, strings, lists and dicts; null becomes None.
std::string value_of(const nlohmann::json& value);

// A whole pickle of one value.
std::string file(const std::string& value);

}  // namespace fsdp::formats::pickled
