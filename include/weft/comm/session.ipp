// comm/session.ipp -- definitions of comm/session.hpp.
#pragma once

#include <weft/comm/session.hpp>

#include <algorithm>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <weft/core/build.hpp>
#include <weft/core/error.hpp>

namespace weft::inline v0::comm {

WEFT_INLINE std::shared_ptr<Communicator> Session::connect(std::string axis, std::vector<int> const& members,
                                                           Communicator* parent) {
  auto const own = std::find(members.begin(), members.end(), ranks.global_rank);
  std::string name = axis + ":";
  for (auto member = members.begin(); member != members.end(); ++member) {
    name += " " + std::to_string(*member);
    if (*member < 0 || *member >= ranks.world_size || std::find(members.begin(), member, *member) != member)
      fail<CommunicationError>("weft: connecting axis ", axis, ": member ", *member,
                               " is not a rank of the world, or is listed twice; write different ranks of 0 to ",
                               ranks.world_size - 1);
  }
  if (own == members.end())
    fail<CommunicationError>("weft: connecting axis ", axis, ": rank ", ranks.global_rank,
                             " is not among the group's members (", name, "); members alone connect a group");
  if (!connect_backend)
    fail<CommunicationError>("weft: connecting axis ", axis,
                             ": this program has one process; groups need a strategy with several");
  name += " #" + std::to_string(num_groups_[name]++);
  auto here = endpoint;
  here.store = c10::make_intrusive<c10d::PrefixStore>(name, endpoint.store);
  here.rank = static_cast<int>(own - members.begin());
  here.size = static_cast<int>(members.size());
  if (parent) {
    here.parent = parent->connection();
    here.color = *std::min_element(members.begin(), members.end());
  }
  if (!endpoint.store) return connect_backend(here, recorder, std::move(axis), device);
  // Ranks that connect groups in different orders wait for each other; when their time is up, each says where the
  // others are.
  auto const place = [](int rank) { return "weft/connecting/" + std::to_string(rank); };
  endpoint.store->set(place(ranks.global_rank), name);
  try {
    return connect_backend(here, recorder, axis, device);
  } catch (CommunicationError const& error) {
    std::string elsewhere;
    for (int const member : members) {
      if (member == ranks.global_rank || !endpoint.store->check({place(member)})) continue;
      auto const bytes = endpoint.store->get(place(member));
      if (std::string const theirs(bytes.begin(), bytes.end()); theirs != name)
        elsewhere += core::message("; rank ", member, " is at ", theirs);
    }
    if (elsewhere.empty()) throw;
    fail<CommunicationError>(error.what(), "; this rank is at ", name, elsewhere,
                             "; connect groups in one order on all of their ranks");
  }
}

}  // namespace weft::comm
