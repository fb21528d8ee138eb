// data/order.ipp -- definitions of data/order.hpp.
#pragma once

#include <weft/data/order.hpp>

#include <numeric>

#include <ATen/ops/from_blob.h>
#include <ATen/ops/multinomial.h>
#include <ATen/ops/randperm.h>

#include <weft/core/build.hpp>
#include <weft/core/error.hpp>

namespace weft::inline v0::data {

WEFT_INLINE std::vector<std::size_t> random_order(Draw const& draw) {
  return indices_in(at::randperm(static_cast<std::int64_t>(draw.num_samples), draw.generator(),
                                 at::TensorOptions().dtype(at::kLong)));
}

WEFT_INLINE std::vector<std::size_t> sample_order(std::size_t num_samples, bool shuffle, std::uint64_t seed,
                                                  std::uint64_t epoch) {
  if (shuffle) return random_order({num_samples, seed, epoch});
  std::vector<std::size_t> order(num_samples);
  std::iota(order.begin(), order.end(), std::size_t{0});
  return order;
}

WEFT_INLINE Order weighted(std::vector<double> weights, std::size_t num_draws, bool replacement) {
  if (num_draws == 0) num_draws = weights.size();
  return [weights = std::move(weights), num_draws, replacement](Draw const& draw) {
    if (weights.size() != draw.num_samples)
      fail<ConfigurationError>("weft: weighted: ", weights.size(), " weights for ", draw.num_samples,
                               " samples: give one for each sample");
    at::Tensor const chances = at::from_blob(const_cast<double*>(weights.data()),
                                             {static_cast<std::int64_t>(weights.size())}, at::kDouble);
    return indices_in(at::multinomial(chances, static_cast<std::int64_t>(num_draws), replacement, draw.generator()));
  };
}

WEFT_INLINE Share::Share(std::shared_ptr<std::vector<std::size_t> const> order, std::size_t total, std::size_t start,
                         std::size_t num_ranks, std::size_t rank, Uneven uneven)
    : order_(std::move(order)),
      total_(total),
      start_(std::min(start, total)),
      num_ranks_(num_ranks),
      rank_(rank),
      uneven_(uneven) {}

WEFT_INLINE std::size_t Share::size() const {
  std::size_t const whole = (total_ - start_) / num_ranks_, left = (total_ - start_) % num_ranks_;
  if (uneven_ == Uneven::drop) return whole;
  return whole + (uneven_ == Uneven::keep ? rank_ < left : left != 0);
}

}  // namespace weft::data
