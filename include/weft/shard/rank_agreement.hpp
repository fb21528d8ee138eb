// shard/rank_agreement.hpp -- ranks run the same units in one order and leave the same parameters out.
// In: what this rank ran and left out, and who asks the others. Out: nothing, or an error that names the rank that
// differs.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <weft/comm/consistency_check.hpp>

namespace weft::inline v0::shard {

/// [Note: ranks agree on what is unused] A parameter without gradient keeps an undefined one, and whether it has one is
/// seen by each rank alone. Were ranks to differ, parts of one parameter would move and others not. A rank whose set
/// changed since ranks last agreed asks the others through the store; those that see no change don't answer, which is
/// the error.
///
/// [Note: ranks agree on the order] Were ranks to run units in different orders, their collectives would pair unit with
/// unit wrongly: an error in the backend where sizes differ, wrong values where they don't. Asked for as [Note: ranks
/// agree on what is unused] says.
class RankAgreement {
 public:
  /// Null: nobody is asked.
  RankAgreement(int global_rank, std::unique_ptr<comm::ConsistencyCheck> unused,
                std::unique_ptr<comm::ConsistencyCheck> order);

  /// Who says the name of a parameter that the model has got since setup, or nothing.
  void ask_for_unknown(std::function<std::string()> unknown_parameter) {
    unknown_parameter_ = std::move(unknown_parameter);
  }

  /// A parameter without gradient in this backward pass.
  void note_unused(std::string const& name) { unused_ += (unused_.empty() ? "" : ", ") + name; }
  /// The backward pass is through.
  void agree_on_unused();
  /// Forward is through.
  void agree_on_order(std::vector<std::size_t> const& order,
                      std::function<std::string const&(std::size_t)> const& name_of);

  void close() {
    unused_check_.reset();
    order_check_.reset();
  }

 private:
  /// A unit that runs no more, or a parameter without gradient, may be one that was replaced: the new one is in no
  /// group.
  void refuse_unknown() const;

  int global_rank_;
  std::unique_ptr<comm::ConsistencyCheck> unused_check_, order_check_;
  std::function<std::string()> unknown_parameter_;
  std::vector<std::size_t> agreed_order_;
  std::string unused_, known_unused_;
};

}  // namespace weft::shard

#ifndef WEFT_SEPARATE_COMPILATION
#include <weft/shard/rank_agreement.ipp>
#endif
