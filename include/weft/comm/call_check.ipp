// comm/call_check.ipp -- definitions of comm/call_check.hpp.
#pragma once

#include <weft/comm/call_check.hpp>

#include <cstring>
#include <exception>

#include <weft/core/build.hpp>
#include <weft/core/error.hpp>

namespace weft::inline v0::comm {

WEFT_INLINE std::vector<std::string> CallCheck::agree(std::string const& call, std::chrono::milliseconds limit,
                                                      std::string const& own) {
  auto const here = count_++;
  auto const note = call + '\0' + own;
  store_->set(key(here, rank_), std::vector<uint8_t>(note.begin(), note.end()));
  // Whoever is here has read all notes of the call before, so nobody reads those of the one before that any more.
  if (here >= 2) store_->deleteKey(key(here - 2, rank_));
  std::vector<std::pair<std::string, std::string>> calls;  // each with the ranks that make it
  std::vector<std::string> owns;
  for (int other = 0; other < size_; ++other) {
    auto theirs = other == rank_ ? note : note_of(here, other, call, limit.count() > 0 ? limit : timeout_);
    owns.push_back(theirs.substr(theirs.find('\0') + 1));
    theirs.resize(theirs.find('\0'));
    std::size_t i = 0;
    while (i < calls.size() && calls[i].first != theirs) ++i;
    if (i == calls.size()) calls.emplace_back(theirs, "");
    calls[i].second += (calls[i].second.empty() ? "" : ", ") + std::to_string(other);
  }
  if (calls.size() == 1) return owns;
  std::string text;
  for (auto const& [what, ranks] : calls)
    text += (text.empty() ? "" : "; ") + std::string(ranks.find(',') == std::string::npos ? "rank " : "ranks ") +
            ranks + ": " + what;
  fail<CommunicationError>("weft: call ", here, " on axis ", axis_, " differs between its ranks: ", text,
                           axis_ == "world" ? "" : " (counted within the axis)",
                           "; all ranks must run the same units and make the same calls, in the same order");
}

WEFT_INLINE void CallCheck::agree_on_parts(std::string const& call, std::vector<int64_t> const& sends,
                                           std::vector<int64_t> const& receives, std::chrono::milliseconds limit) {
  std::string own;
  for (auto const* counts : {&sends, &receives})
    own.append(reinterpret_cast<char const*>(counts->data()), counts->size() * sizeof(int64_t));
  auto const all = agree(call, limit, own);
  auto const count = [&](int rank, int place) {
    int64_t value = 0;
    std::memcpy(&value, all[static_cast<std::size_t>(rank)].data() + static_cast<std::size_t>(place) * sizeof value,
                sizeof value);
    return value;
  };
  for (int from = 0; from < size_; ++from)
    for (int to = 0; to < size_; ++to)
      if (auto const sent = count(from, to), received = count(to, size_ + from); sent != received)
        fail<CommunicationError>("weft: call ", count_ - 1, " on axis ", axis_, ", rank ", rank_, ": ", call, ": rank ",
                                 from, " sends ", sent, " elements to rank ", to, ", which receives ", received,
                                 " from it; let both say the same size");
}

WEFT_INLINE std::string CallCheck::note_of(std::size_t here, int other, std::string const& mine,
                                           std::chrono::milliseconds limit) const {
  try {
    store_->wait({key(here, other)}, limit);
  } catch (std::exception const& error) {
    std::string const reason = error.what();
    fail<CommunicationError>("weft: call ", here, " on axis ", axis_, ", rank ", rank_, ": ", mine, ": rank ", other,
                             " makes no such call within ", limit.count(), " ms (", reason.substr(0, reason.find('\n')),
                             "); all ranks must run the same units and make the same calls, in the same order");
  }
  auto const bytes = store_->get(key(here, other));
  return {bytes.begin(), bytes.end()};
}

}  // namespace weft::comm
