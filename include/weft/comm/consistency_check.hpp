// comm/consistency_check.hpp -- whether ranks say the same, asked only by those who have something new to say.
// In: a text per rank. Out: nothing, or a rank that says something else; no collective, so ranks that don't ask aren't
// disturbed.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <weft/comm/communicator.hpp>

namespace weft::inline v0::comm {

class ConsistencyCheck {
 public:
  /// How long a rank waits for one that doesn't ask: ranks are in the same step, so an answer that comes at all comes
  /// soon.
  static constexpr std::chrono::milliseconds patience{5000};

  ConsistencyCheck(Communicator const& ranks, std::string topic);

  /// The next rank and its text, if that differs; one that doesn't answer counts as unchanged. Nobody is asked while
  /// the text is the one that ranks agreed on last (at first: none).
  ///
  /// Each rank asks the next one alone, and the last the first: where some have news and others don't, or not the same,
  /// there is one whose neighbor differs.
  std::optional<std::pair<int, std::string>> differing(std::string const& text);

 private:
  /// Alike on all ranks, which make the same objects in the same order.
  [[gnu::visibility("default")]] static std::atomic<uint64_t>& instances() {
    static std::atomic<uint64_t> count = 0;
    return count;
  }

  c10::intrusive_ptr<c10d::Store> store_;
  int rank_, size_;
  std::string key_;
  std::string agreed_;
  uint64_t round_ = 0;
};

}  // namespace weft::comm

#ifndef WEFT_SEPARATE_COMPILATION
#include <weft/comm/consistency_check.ipp>
#endif
