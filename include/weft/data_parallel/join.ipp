// data_parallel/join.ipp -- definitions of data_parallel/join.hpp.
#pragma once

#include <weft/data_parallel/join.hpp>

#include <algorithm>
#include <cstddef>
#include <sstream>

#include <ATen/ATen.h>
#include <torch/serialize/archive.h>

#include <weft/comm/values.hpp>
#include <weft/core/build.hpp>

namespace weft::inline v0::data_parallel {

WEFT_INLINE auto Join::announce(model::Engine const& engine, Step step) -> Present {
  auto const code = code_of(engine, step);
  auto const codes = exchange(code);
  for (std::size_t other = 0; other < codes.size(); ++other)
    if (codes[other] != through && codes[other] != code)
      fail<Error>("weft: join: rank ", ranks_->rank(), " comes to ", describe(code), ", rank ", other, " to ",
                  describe(codes[other]), "; ranks that have a batch must take the same steps");
  return last_;
}

WEFT_INLINE void Join::answer() {
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

WEFT_INLINE std::int64_t Join::code_of(model::Engine const& engine, Step step) const {
  auto const it = std::find_if(engines_.begin(), engines_.end(),
                               [&](auto const& other) { return other.get() == &engine; });
  return 1 + 2 * (it - engines_.begin()) + static_cast<std::int64_t>(step);
}

WEFT_INLINE std::vector<std::int64_t> Join::exchange(std::int64_t code) {
  auto const mine = at::full({1}, code, at::TensorOptions(at::kLong).device(ranks_->device()));
  auto all = at::empty({ranks_->size()}, mine.options());
  ranks_->all_gather_into(all, mine);
  all = all.cpu();
  std::vector<std::int64_t> codes(all.const_data_ptr<std::int64_t>(), all.const_data_ptr<std::int64_t>() + all.numel());
  Present present;
  for (std::size_t rank = 0; rank < codes.size(); ++rank)
    if (codes[rank] != through) present.push_back(static_cast<int>(rank));
  if (present.empty()) return codes;
  last_ = std::move(present);
  if (last_.size() == codes.size()) return codes;
  was_uneven_ = true;
  if (options_.throw_on_early_termination)
    fail<Error>("weft: join: ", codes.size() - last_.size(), " of ", codes.size(), " ranks have no more batches, rank ",
                last_.front(), " has; give ranks equally many, or leave throw_on_early_termination out");
  return codes;
}

}  // namespace weft::data_parallel

namespace weft::inline v0::data_parallel::detail {

WEFT_INLINE void take_optimizer_state(comm::Communicator& ranks, torch::optim::Optimizer& optimizer, int source) {
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

}  // namespace weft::data_parallel::detail

namespace weft::inline v0::data_parallel {

WEFT_INLINE std::optional<int> run_joined(comm::Session& session, JoinOptions options,
                                          std::vector<std::shared_ptr<JoinableEngine>> const& engines,
                                          std::vector<torch::optim::Optimizer*> const& optimizers,
                                          std::function<void()> const& loop) {
  auto const ranks = session.mesh->data().ranks;
  Join join(ranks, options, engines);
  {
    struct Inside {
      Inside(comm::Session& in, std::vector<std::shared_ptr<JoinableEngine>> const& joined)
          : session(in), engines(joined), world(in.world), groups(in.mesh->groups()) {
        auto closed_groups = groups;
        for (auto& group : closed_groups) group = closed(group);
        session.world = closed(world);
        session.mesh->replace_groups(closed_groups);
        session.joined = true;
      }
      ~Inside() {
        session.world = world;
        session.mesh->replace_groups(groups);
        session.joined = false;
        for (auto const& engine : engines) engine->set_join(nullptr);
      }
      Inside(Inside const&) = delete;
      Inside& operator=(Inside const&) = delete;
      /// The same ranks for everybody but the engines, which have theirs: what the loop calls on them is an error.
      std::shared_ptr<comm::Communicator> closed(std::shared_ptr<comm::Communicator> const& group) const {
        if (!group) return nullptr;
        auto const same = std::make_shared<comm::Communicator>(group->connection(),
                                                               c10d::ProcessGroup::BackendType::CUSTOM, group->store(),
                                                               session.recorder, group->axis(), group->device());
        same->close(
            "inside of fabric.join, where ranks that are through would be missing in it: call it after the join");
        return same;
      }
      comm::Session& session;
      std::vector<std::shared_ptr<JoinableEngine>> const& engines;
      std::shared_ptr<comm::Communicator> world;
      std::vector<std::shared_ptr<comm::Communicator>> groups;
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

}  // namespace weft::data_parallel
