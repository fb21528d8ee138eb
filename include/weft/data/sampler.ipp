// data/sampler.ipp -- definitions of data/sampler.hpp.
#pragma once

#include <weft/data/sampler.hpp>

#include <algorithm>

#include <torch/serialize/archive.h>

#include <weft/core/build.hpp>
#include <weft/core/error.hpp>

namespace weft::inline v0::data {

WEFT_INLINE DistributedSampler::DistributedSampler(std::size_t num_samples, SamplerOptions options)
    : num_samples_(num_samples), options_(options), epoch_(std::make_shared<std::atomic<std::uint64_t>>(0)) {
  if (options_.num_ranks == 0)
    fail<ConfigurationError>("weft: DistributedSampler: .num_ranks = 0: give the number of ranks, at least 1");
  if (options_.rank >= options_.num_ranks)
    fail<ConfigurationError>("weft: DistributedSampler: .rank = ", options_.rank,
                             " of .num_ranks = ", options_.num_ranks, ": ranks count from 0");
}

WEFT_INLINE std::optional<std::vector<std::size_t>> DistributedSampler::next(std::size_t batch_size) {
  if (!drawn_) draw();
  std::size_t const count = std::min(share_.size() - next_, batch_size);
  if (count == 0) return std::nullopt;
  std::vector<std::size_t> batch(count);
  for (std::size_t& index : batch) index = share_[next_++];
  return batch;
}

WEFT_INLINE void DistributedSampler::save(torch::serialize::OutputArchive& archive) const {
  archive.write("epoch", torch::IValue(static_cast<std::int64_t>(drawn_ ? drawn_epoch_ : epoch())));
  archive.write("position", torch::IValue(static_cast<std::int64_t>(next_)));
  archive.write("num_samples", torch::IValue(static_cast<std::int64_t>(num_samples_)));
}

WEFT_INLINE void DistributedSampler::load(torch::serialize::InputArchive& archive) {
  auto read = [&archive](char const* key) {
    torch::IValue value;
    archive.read(key, value);
    return static_cast<std::uint64_t>(value.toInt());
  };
  std::uint64_t const num_samples = read("num_samples"), epoch = read("epoch"), position = read("position");
  if (num_samples != num_samples_)
    fail<CheckpointError>("weft: DistributedSampler: the saved one had ", num_samples, " samples, this one has ",
                          num_samples_, ": the data set changed");
  set_epoch(epoch);
  draw();
  if (position > share_.size())
    fail<CheckpointError>("weft: DistributedSampler: the saved position ", position, " lies past this rank's ",
                          share_.size(), " samples: the number of ranks changed");
  next_ = position;
}

WEFT_INLINE void DistributedSampler::draw() {
  drawn_ = true;
  drawn_epoch_ = epoch_->load();
  next_ = 0;
  share_ = share(options_.shuffle ? std::make_shared<std::vector<std::size_t> const>(
                                        random_order({num_samples_, options_.seed, drawn_epoch_}))
                                  : nullptr);
}

}  // namespace weft::data
