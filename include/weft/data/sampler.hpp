// data/sampler.hpp -- which samples this rank sees.
// In: how many samples there are, the ranks, a seed and an epoch. Out: this rank's indices, in PyTorch's order.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/randperm.h>
#include <torch/data/samplers/base.h>
#include <torch/serialize/archive.h>
#include <torch/serialize/input-archive.h>
#include <torch/serialize/output-archive.h>

#include <weft/core/error.hpp>

namespace weft::data {

// What happens to samples that do not divide by the number of ranks. 10 samples, 4 ranks, in order:
//
//   pad    0 4 8 | 1 5 9 | 2 6 0 | 3 7 1     repeats from the start: all ranks are equally long
//   drop   0 4   | 1 5   | 2 6   | 3 7       leaves the last ones out: all ranks are equally long
//   keep   0 4 8 | 1 5 9 | 2 6   | 3 7       each sample once: for evaluation; ranks differ in length
enum class Uneven { pad, drop, keep };

struct SamplerOptions {
  std::size_t num_ranks = 1;
  std::size_t rank = 0;
  bool shuffle = true;
  std::uint64_t seed = 0;
  Uneven uneven = Uneven::pad;
};

// The order of all ranks together before each takes every num_ranks-th: torch.randperm of a generator seeded seed + epoch.
inline std::vector<std::size_t> sample_order(std::size_t num_samples, bool shuffle, std::uint64_t seed, std::uint64_t epoch) {
  std::vector<std::size_t> order(num_samples);
  if (!shuffle) {
    std::iota(order.begin(), order.end(), std::size_t{0});
    return order;
  }
  at::Generator generator = at::detail::createCPUGenerator(seed + epoch);
  at::Tensor const permutation = at::randperm(static_cast<std::int64_t>(num_samples), generator, at::TensorOptions().dtype(at::kLong));
  std::int64_t const* values = permutation.const_data_ptr<std::int64_t>();
  std::copy(values, values + num_samples, order.begin());
  return order;
}

// torch's data loader keeps its own copy of a sampler, and a set_epoch on the original would never reach it: copies of
// this one share the epoch, which acts on the next reset().
class DistributedSampler : public torch::data::samplers::Sampler<> {
 public:
  explicit DistributedSampler(std::size_t num_samples, SamplerOptions options = {})
      : num_samples_(num_samples), options_(options), epoch_(std::make_shared<std::atomic<std::uint64_t>>(0)) {
    if (options_.num_ranks == 0) fail<ConfigurationError>("weft: DistributedSampler: .num_ranks = 0: give the number of ranks, at least 1");
    if (options_.rank >= options_.num_ranks)
      fail<ConfigurationError>("weft: DistributedSampler: .rank = ", options_.rank, " of .num_ranks = ", options_.num_ranks, ": ranks count from 0");
  }

  // Takes effect when the next pass begins.
  void set_epoch(std::uint64_t epoch) { epoch_->store(epoch); }
  std::uint64_t epoch() const { return epoch_->load(); }

  // Samples on this rank per epoch.
  std::size_t size() const {
    std::size_t const whole = num_samples_ / options_.num_ranks;
    std::size_t const left = num_samples_ % options_.num_ranks;
    switch (options_.uneven) {
      case Uneven::drop: return whole;
      case Uneven::keep: return whole + (options_.rank < left ? 1 : 0);
      case Uneven::pad: break;
    }
    return whole + (left != 0 ? 1 : 0);
  }
  SamplerOptions const& options() const { return options_; }
  std::size_t position() const { return next_; }

  void reset(std::optional<std::size_t> new_size = std::nullopt) override {
    if (new_size) num_samples_ = *new_size;
    draw();
  }

  std::optional<std::vector<std::size_t>> next(std::size_t batch_size) override {
    if (!drawn_) draw();
    std::size_t const end = std::min(indices_.size(), next_ + batch_size);
    if (next_ == end) return std::nullopt;
    std::vector<std::size_t> batch(indices_.begin() + static_cast<std::ptrdiff_t>(next_), indices_.begin() + static_cast<std::ptrdiff_t>(end));
    next_ = end;
    return batch;
  }

  void save(torch::serialize::OutputArchive& archive) const override {
    archive.write("epoch", torch::IValue(static_cast<std::int64_t>(drawn_ ? drawn_epoch_ : epoch())));
    archive.write("position", torch::IValue(static_cast<std::int64_t>(next_)));
    archive.write("num_samples", torch::IValue(static_cast<std::int64_t>(num_samples_)));
  }
  // Goes on within the saved epoch. The next reset() begins that epoch anew, unless set_epoch says otherwise.
  void load(torch::serialize::InputArchive& archive) override {
    auto read = [&archive](char const* key) {
      torch::IValue value;
      archive.read(key, value);
      return static_cast<std::uint64_t>(value.toInt());
    };
    std::uint64_t const num_samples = read("num_samples"), epoch = read("epoch"), position = read("position");
    if (num_samples != num_samples_)
      fail<CheckpointError>("weft: DistributedSampler: the saved one had ", num_samples, " samples, this one has ", num_samples_, ": the data set changed");
    set_epoch(epoch);
    draw();
    if (position > indices_.size())
      fail<CheckpointError>("weft: DistributedSampler: the saved position ", position, " lies past this rank's ", indices_.size(), " samples: the number of ranks changed");
    next_ = position;
  }

 private:
  void draw() {
    drawn_ = true;
    drawn_epoch_ = epoch_->load();
    next_ = 0;
    std::vector<std::size_t> const order = sample_order(num_samples_, options_.shuffle, options_.seed, drawn_epoch_);
    indices_.resize(num_samples_ == 0 ? 0 : size());
    // Past the end starts over, as often as needed: fewer samples than ranks is an ordinary case of pad.
    for (std::size_t i = 0; i < indices_.size(); ++i) indices_[i] = order[(options_.rank + i * options_.num_ranks) % num_samples_];
  }

  std::size_t num_samples_;
  SamplerOptions options_;
  std::shared_ptr<std::atomic<std::uint64_t>> epoch_;
  bool drawn_ = false;  // the first order is drawn when it is asked for, so that copies are cheap
  std::uint64_t drawn_epoch_ = 0;
  std::vector<std::size_t> indices_;
  std::size_t next_ = 0;
};

}  // namespace weft::data
