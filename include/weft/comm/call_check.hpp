// comm/call_check.hpp -- whether the ranks of a group are about to make the same call.
// In: what each rank is about to do, as a text. Out: nothing, or an error on every rank that says which ranks do what.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <weft/core/error.hpp>

namespace weft::comm {

/// The checking grade of one group: LaunchOptions::check_collectives switches it on. Ranks compare notes through the store, not by a collective: that would be one more that could differ.
class CallCheck {
 public:
  CallCheck(c10::intrusive_ptr<c10d::Store> store, int rank, int size, std::string axis, std::chrono::milliseconds timeout)
      : store_(std::move(store)), rank_(rank), size_(size), axis_(std::move(axis)), timeout_(timeout) {}

  /// Blocks until every rank of the group is about to make its next call.
  void agree(std::string const& call) {
    auto const here = count_++;
    store_->set(key(here, rank_), std::vector<uint8_t>(call.begin(), call.end()));
    // Whoever is here has read all notes of the call before, so nobody reads those of the one before that any more.
    if (here >= 2) store_->deleteKey(key(here - 2, rank_));
    std::vector<std::pair<std::string, std::string>> calls;  // each with the ranks that make it
    for (int other = 0; other < size_; ++other) {
      auto const theirs = other == rank_ ? call : call_of(here, other, call);
      std::size_t i = 0;
      while (i < calls.size() && calls[i].first != theirs) ++i;
      if (i == calls.size()) calls.emplace_back(theirs, "");
      calls[i].second += (calls[i].second.empty() ? "" : ", ") + std::to_string(other);
    }
    if (calls.size() == 1) return;
    std::string text;
    for (auto const& [what, ranks] : calls)
      text += (text.empty() ? "" : "; ") + std::string(ranks.find(',') == std::string::npos ? "rank " : "ranks ") + ranks + ": " + what;
    fail<CommunicationError>("weft: call ", here, " on axis ", axis_, " differs between its ranks: ", text,
                             axis_ == "world" ? "" : " (counted within the axis)", "; all ranks must run the same units and make the same calls, in the same order");
  }

 private:
  std::string key(std::size_t call, int rank) const { return "weft/call/" + std::to_string(call) + "/" + std::to_string(rank); }

  std::string call_of(std::size_t here, int other, std::string const& mine) const {
    try {
      store_->wait({key(here, other)}, timeout_);
    } catch (std::exception const& error) {
      std::string const reason = error.what();
      fail<CommunicationError>("weft: call ", here, " on axis ", axis_, ", rank ", rank_, ": ", mine, ": rank ", other, " makes no such call within ", timeout_.count(),
                               " ms (", reason.substr(0, reason.find('\n')), "); all ranks must run the same units and make the same calls, in the same order");
    }
    auto const bytes = store_->get(key(here, other));
    return {bytes.begin(), bytes.end()};
  }

  c10::intrusive_ptr<c10d::Store> store_;
  int rank_, size_;
  std::string axis_;
  std::chrono::milliseconds timeout_;
  std::size_t count_ = 0;
};

}  // namespace weft::comm
