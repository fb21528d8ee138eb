// data/sampler.hpp -- a rank's samples for torch's own data loader.
// In: how many samples there are, the ranks, a seed and an epoch. Out: a torch::data sampler of this rank's indices.
// weft's loader needs none.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <torch/data/samplers/base.h>
#include <torch/serialize/input-archive.h>
#include <torch/serialize/output-archive.h>

#include <weft/data/order.hpp>

namespace weft::inline v0::data {

struct SamplerOptions {
  std::size_t num_ranks = 1;
  std::size_t rank = 0;
  bool shuffle = true;
  std::uint64_t seed = 0;
  Uneven uneven = Uneven::pad;
};

// torch's data loader keeps its own copy of a sampler, and a set_epoch on the original would never reach it: copies of
// this one share the epoch, which acts on the next reset().
class DistributedSampler : public torch::data::samplers::Sampler<> {
 public:
  explicit DistributedSampler(std::size_t num_samples, SamplerOptions options = {});

  // Takes effect when the next pass begins.
  void set_epoch(std::uint64_t epoch) { epoch_->store(epoch); }
  std::uint64_t epoch() const { return epoch_->load(); }

  // Samples on this rank per epoch.
  std::size_t size() const { return share(nullptr).size(); }
  SamplerOptions const& options() const { return options_; }
  std::size_t position() const { return next_; }

  void reset(std::optional<std::size_t> new_size = std::nullopt) override {
    if (new_size) num_samples_ = *new_size;
    draw();
  }

  std::optional<std::vector<std::size_t>> next(std::size_t batch_size) override;

  void save(torch::serialize::OutputArchive& archive) const override;
  // Goes on within the saved epoch. The next reset() begins that epoch anew, unless set_epoch says otherwise.
  void load(torch::serialize::InputArchive& archive) override;

 private:
  void draw();
  Share share(std::shared_ptr<std::vector<std::size_t> const> order) const {
    return Share(std::move(order), num_samples_, 0, options_.num_ranks, options_.rank, options_.uneven);
  }

  std::size_t num_samples_;
  SamplerOptions options_;
  std::shared_ptr<std::atomic<std::uint64_t>> epoch_;
  bool drawn_ = false;  // the first order is drawn when it is asked for, so that copies are cheap
  std::uint64_t drawn_epoch_ = 0;
  Share share_;
  std::size_t next_ = 0;
};

}  // namespace weft::data

#ifndef WEFT_SEPARATE_COMPILATION
#include <weft/data/sampler.ipp>
#endif
