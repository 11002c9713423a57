// Checks whose failure is an error of a type of this library.
#pragma once

#include <c10/util/StringUtil.h>

#include "fsdp/errors.h"

// Throws `Type`, which is made of a message alone, unless `condition` holds. The arguments after it are the message. As
// TORCH_CHECK_WITH, which knows c10's types only.
#define FSDP_CHECK_WITH(Type, condition, ...) \
  if (!(condition)) throw Type(::c10::str(__VA_ARGS__))
