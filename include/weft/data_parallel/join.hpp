// data_parallel/join.hpp -- ranks with unequal numbers of batches.
// In: engines, and a loop that takes another number of steps on each rank. Out: the loop run to its end everywhere, one
// model on all ranks.
//
// Before each step that communicates a rank says what it comes to, and all hear it from all. Who is through says so,
// again and again, and answers what the others come to with zeros, until nobody has a batch any more. Then the last
// ones' model is everyone's.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <torch/optim/optimizer.h>
#include <torch/serialize/archive.h>

#include <weft/comm/communicator.hpp>
#include <weft/comm/session.hpp>
#include <weft/comm/values.hpp>
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
  Present announce(model::Engine const& engine, Step step) {
    auto const code = code_of(engine, step);
    auto const codes = exchange(code);
    for (std::size_t other = 0; other < codes.size(); ++other)
      if (codes[other] != through && codes[other] != code)
        fail<Error>("weft: join: rank ", ranks_->rank(), " comes to ", describe(code), ", rank ", other, " to ",
                    describe(codes[other]), "; ranks that have a batch must take the same steps");
    return last_;
  }

  /// Of a rank that is through: returns when all are.
  void answer() {
    for (std::int64_t answered = 0;; ++answered) {
      auto const codes = exchange(through);
      auto const code = *std::max_element(codes.begin(), codes.end());
      if (code == through) return;
      if (answered == 1000)
        TORCH_WARN("weft: join: rank ", ranks_->rank(),
                   " has been through for 1000 steps of others, in which it does nothing; give ranks more equal "
                   "numbers of batches");
      engines_[static_cast<std::size_t>((code - 1) / 2)]->answer((code - 1) % 2 == 0 ? Step::forward : Step::backward,
                                                                 last_);
    }
  }

  bool was_uneven() const { return was_uneven_; }
  /// Which rank's model counts in the end: the first of those that had a batch last.
  int source() const { return last_.front(); }

 private:
  static constexpr std::int64_t through = 0;

  std::int64_t code_of(model::Engine const& engine, Step step) const {
    auto const it = std::find_if(engines_.begin(), engines_.end(),
                                 [&](auto const& other) { return other.get() == &engine; });
    return 1 + 2 * (it - engines_.begin()) + static_cast<std::int64_t>(step);
  }
  std::string describe(std::int64_t code) const {
    return core::message(code % 2 == 1 ? "forward" : "backward", " of model ", (code - 1) / 2);
  }

  std::vector<std::int64_t> exchange(std::int64_t code) {
    auto const mine = at::full({1}, code, at::TensorOptions(at::kLong).device(ranks_->device()));
    auto all = at::empty({ranks_->size()}, mine.options());
    ranks_->all_gather_into(all, mine);
    all = all.cpu();
    std::vector<std::int64_t> codes(all.const_data_ptr<std::int64_t>(),
                                    all.const_data_ptr<std::int64_t>() + all.numel());
    Present present;
    for (std::size_t rank = 0; rank < codes.size(); ++rank)
      if (codes[rank] != through) present.push_back(static_cast<int>(rank));
    if (present.empty()) return codes;
    last_ = std::move(present);
    if (last_.size() == codes.size()) return codes;
    was_uneven_ = true;
    if (options_.throw_on_early_termination)
      fail<Error>("weft: join: ", codes.size() - last_.size(), " of ", codes.size(),
                  " ranks have no more batches, rank ", last_.front(),
                  " has; give ranks equally many, or leave throw_on_early_termination out");
    return codes;
  }

  std::shared_ptr<comm::Communicator> ranks_;
  JoinOptions options_;
  std::vector<std::shared_ptr<JoinableEngine>> engines_;
  Present last_;
  bool was_uneven_ = false;
};

namespace detail {

/// Moments and step counts of rank `source`: who stopped before has those of fewer steps, and equal models would part
/// in the next one.
inline void take_optimizer_state(comm::Communicator& ranks, torch::optim::Optimizer& optimizer, int source) {
  std::string bytes;
  if (ranks.rank() == source) {
    torch::serialize::OutputArchive archive;
    optimizer.save(archive);
    std::ostringstream text;
    archive.save_to(text);
    bytes = std::move(text).str();
  }
  bytes = comm::broadcast_bytes(ranks, std::move(bytes), source);
  if (ranks.rank() == source) return;
  torch::serialize::InputArchive archive;
  archive.load_from(bytes.data(), bytes.size(), ranks.device());
  optimizer.load(archive);
}

}  // namespace detail

/// Which rank's values are everyone's now; none if all ranks took equally many steps. Collective.
inline std::optional<int> run_joined(comm::Session& session, JoinOptions options,
                                     std::vector<std::shared_ptr<JoinableEngine>> const& engines,
                                     std::vector<torch::optim::Optimizer*> const& optimizers,
                                     std::function<void()> const& loop) {
  auto const ranks = session.world;
  Join join(ranks, options, engines);
  {
    struct Inside {
      Inside(comm::Session& in, std::vector<std::shared_ptr<JoinableEngine>> const& joined)
          : session(in),
            engines(joined),
            world(in.world),
            for_the_loop(std::make_shared<comm::Communicator>(world->connection(),
                                                              c10d::ProcessGroup::BackendType::CUSTOM, world->store(),
                                                              session.recorder, world->axis(), world->device())),
            closed(
                *for_the_loop,
                "inside of fabric.join, where ranks that are through would be missing in it: call it after the join") {
        session.world = for_the_loop;
        session.joined = true;
      }
      ~Inside() {
        session.world = world;
        session.joined = false;
        for (auto const& engine : engines) engine->set_join(nullptr);
      }
      Inside(Inside const&) = delete;
      Inside& operator=(Inside const&) = delete;
      comm::Session& session;
      std::vector<std::shared_ptr<JoinableEngine>> const& engines;
      std::shared_ptr<comm::Communicator> world, for_the_loop;
      comm::Communicator::Closed closed;
    } const inside(session, engines);
    for (auto const& engine : engines) engine->set_join(&join);  // the second may refuse when the first is in
    loop();
    join.answer();
  }
  if (!join.was_uneven()) return std::nullopt;
  for (auto const& engine : engines) engine->take_model(join.source());
  for (auto* const optimizer : optimizers) detail::take_optimizer_state(*ranks, *optimizer, join.source());
  return join.source();
}

}  // namespace data_parallel
}  // namespace weft
