// comm/call_check.hpp -- whether the ranks of a group are about to make the same call.
// In: what each rank is about to do, as a text. Out: nothing, or an error on every rank that says which ranks do what.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

namespace weft::inline v0::comm {

/// The checking grade of one group: LaunchOptions::check_collectives switches it on. Ranks compare notes through the
/// store, not by a collective: that would be one more that could differ.
class CallCheck {
 public:
  CallCheck(c10::intrusive_ptr<c10d::Store> store, int rank, int size, std::string axis,
            std::chrono::milliseconds timeout)
      : store_(std::move(store)), rank_(rank), size_(size), axis_(std::move(axis)), timeout_(timeout) {}

  /// Blocks until every rank of the group is about to make its next call, for `limit` at most (0: the group's own
  /// timeout). What a rank says as `own` may differ; returned is everybody's, in rank order.
  std::vector<std::string> agree(std::string const& call, std::chrono::milliseconds limit = {},
                                 std::string const& own = {});

  /// The same where rank i sends sends[r] elements to rank r, which is to receive as many from it.
  void agree_on_parts(std::string const& call, std::vector<int64_t> const& sends, std::vector<int64_t> const& receives,
                      std::chrono::milliseconds limit = {});

 private:
  std::string key(std::size_t call, int rank) const {
    return "weft/call/" + std::to_string(call) + "/" + std::to_string(rank);
  }

  std::string note_of(std::size_t here, int other, std::string const& mine, std::chrono::milliseconds limit) const;

  c10::intrusive_ptr<c10d::Store> store_;
  int rank_, size_;
  std::string axis_;
  std::chrono::milliseconds timeout_;
  std::size_t count_ = 0;
};

}  // namespace weft::comm

#ifndef WEFT_SEPARATE_COMPILATION
#include <weft/comm/call_check.ipp>
#endif
