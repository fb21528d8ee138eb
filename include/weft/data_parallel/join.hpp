// data_parallel/join.hpp -- ranks with unequal numbers of batches.
// In: engines, and a loop that takes another number of steps on each rank. Out: the loop run to its end everywhere, one
// model on all ranks.
//
// Before each step that communicates a rank says what it comes to, and all hear it from all. Who is through says so,
// again and again, and answers what the others come to with zeros, until nobody has a batch any more. Then the last
// ones' model is everyone's.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <torch/optim/optimizer.h>

#include <weft/comm/communicator.hpp>
#include <weft/comm/session.hpp>
#include <weft/core/error.hpp>
#include <weft/model/engine.hpp>

namespace weft::inline v0 {

struct JoinOptions {
  bool divide_by_initial_world_size =
      true;  // a batch weighs the same in every step; false: averages are over the ranks that still have one
  bool throw_on_early_termination = false;  // all ranks throw when the first is through
};

namespace data_parallel {

class Join;
enum class JoinStep { forward, backward };

/// An engine whose ranks may have unequal numbers of batches. While there is a join, it announces each step that
/// communicates.
class JoinableEngine : public model::Engine {
 public:
  /// Begins a join, or ends it (null). Local.
  virtual void set_join(Join* join) = 0;
  /// Communicates for a rank that is through, with the ranks that take the step.
  virtual void answer(JoinStep step, std::vector<int> const& present) = 0;
  /// Copies the parameters and buffers of one rank to all. Collective.
  virtual void take_model(int source) = 0;
};

class Join {
 public:
  using Step = JoinStep;
  using Present = std::vector<int>;  // the ranks that come to a step, in order

  Join(std::shared_ptr<comm::Communicator> ranks, JoinOptions options,
       std::vector<std::shared_ptr<JoinableEngine>> engines)
      : ranks_(std::move(ranks)), options_(options), engines_(std::move(engines)) {}

  JoinOptions const& options() const { return options_; }

  /// Of a rank that comes to a step of an engine.
  Present announce(model::Engine const& engine, Step step);

  /// Of a rank that is through: returns when all are.
  void answer();

  bool was_uneven() const { return was_uneven_; }
  /// Which rank's model counts in the end: the first of those that had a batch last.
  int source() const { return last_.front(); }

 private:
  static constexpr std::int64_t through = 0;

  std::int64_t code_of(model::Engine const& engine, Step step) const;
  std::string describe(std::int64_t code) const {
    return core::message(code % 2 == 1 ? "forward" : "backward", " of model ", (code - 1) / 2);
  }

  std::vector<std::int64_t> exchange(std::int64_t code);

  std::shared_ptr<comm::Communicator> ranks_;
  JoinOptions options_;
  std::vector<std::shared_ptr<JoinableEngine>> engines_;
  Present last_;
  bool was_uneven_ = false;
};

namespace detail {

/// Moments and step counts of rank `source`: who stopped before has those of fewer steps, and equal models would part
/// in the next one.
void take_optimizer_state(comm::Communicator& ranks, torch::optim::Optimizer& optimizer, int source);

}  // namespace detail

/// Which rank's values are everyone's now; none if all ranks took equally many steps. Collective.
std::optional<int> run_joined(comm::Session& session, JoinOptions options,
                              std::vector<std::shared_ptr<JoinableEngine>> const& engines,
                              std::vector<torch::optim::Optimizer*> const& optimizers,
                              std::function<void()> const& loop);

}  // namespace data_parallel
}  // namespace weft

#ifndef WEFT_SEPARATE_COMPILATION
#include <weft/data_parallel/join.ipp>
#endif
