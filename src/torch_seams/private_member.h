// Access to a private data member by its pointer-to-member, through explicit instantiation (which the standard exempts
// from access checks). Only for the seams in this folder.
#pragma once

namespace fsdp::seams {

template <class Tag, typename Tag::type Member>
struct PrivateMember {
  friend typename Tag::type private_member(Tag) { return Member; }
};

}  // namespace fsdp::seams
