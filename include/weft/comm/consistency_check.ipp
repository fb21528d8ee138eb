// comm/consistency_check.ipp -- definitions of comm/consistency_check.hpp.
#pragma once

#include <weft/comm/consistency_check.hpp>

#include <exception>
#include <vector>

#include <weft/core/build.hpp>

namespace weft::inline v0::comm {

WEFT_INLINE ConsistencyCheck::ConsistencyCheck(Communicator const& ranks, std::string topic)
    : store_(ranks.store()),
      rank_(ranks.rank()),
      size_(ranks.size()),
      key_("weft/" + std::move(topic) + "/" + std::to_string(instances()++)) {}

WEFT_INLINE std::optional<std::pair<int, std::string>> ConsistencyCheck::differing(std::string const& text) {
  if (size_ == 1 || text == agreed_) return std::nullopt;
  auto const round = key_ + "/" + std::to_string(round_++) + "/";
  store_->set(round + std::to_string(rank_), std::vector<uint8_t>(text.begin(), text.end()));
  int const other = (rank_ + 1) % size_;
  auto const key = round + std::to_string(other);
  std::string theirs = agreed_;
  try {
    store_->wait({key}, patience);
    auto const bytes = store_->get(key);
    theirs.assign(bytes.begin(), bytes.end());
  } catch (std::exception const&) {
  }
  if (theirs != text) return std::pair(other, theirs);
  agreed_ = text;
  return std::nullopt;
}

}  // namespace weft::comm
