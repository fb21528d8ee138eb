// comm/consistency_check.hpp -- whether ranks say the same, asked only by those who have something new to say.
// In: a text per rank. Out: nothing, or a rank that says something else; no collective, so ranks that don't ask aren't
// disturbed.
#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <weft/comm/communicator.hpp>

namespace weft::inline v0::comm {

class ConsistencyCheck {
 public:
  /// How long a rank waits for one that doesn't ask: ranks are in the same step, so an answer that comes at all comes
  /// soon.
  static constexpr std::chrono::milliseconds patience{5000};

  ConsistencyCheck(Communicator const& ranks, std::string topic)
      : store_(ranks.store()),
        rank_(ranks.rank()),
        size_(ranks.size()),
        key_("weft/" + std::move(topic) + "/" + std::to_string(instances()++)) {}

  /// The next rank and its text, if that differs; one that doesn't answer counts as unchanged. Nobody is asked while
  /// the text is the one that ranks agreed on last (at first: none).
  ///
  /// Each rank asks the next one alone, and the last the first: where some have news and others don't, or not the same,
  /// there is one whose neighbor differs.
  std::optional<std::pair<int, std::string>> differing(std::string const& text) {
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

 private:
  /// Alike on all ranks, which make the same objects in the same order.
  static uint64_t& instances() {
    static uint64_t count = 0;
    return count;
  }

  c10::intrusive_ptr<c10d::Store> store_;
  int rank_, size_;
  std::string key_;
  std::string agreed_;
  uint64_t round_ = 0;
};

}  // namespace weft::comm
