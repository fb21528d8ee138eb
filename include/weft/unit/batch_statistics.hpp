// unit/batch_statistics.hpp -- where a BatchNorm that trains has mean and variance from.
// In: a batch, and what the layer holds. Out: the batch normalized by statistics that may be of more than this batch.
#pragma once

#include <memory>

#include <ATen/core/Tensor.h>

namespace weft::inline v0::unit {

class BatchStatistics {
 public:
  virtual ~BatchStatistics() = default;
  /// Moves running_mean and running_var, where they are defined, by `factor`; weight and bias may be undefined as well.
  virtual at::Tensor normalize(at::Tensor const& input, at::Tensor const& weight, at::Tensor const& bias,
                               at::Tensor const& running_mean, at::Tensor const& running_var, double factor,
                               double eps) = 0;
};

/// The part of weft's BatchNorm layers that does not depend on their type; found by dynamic_cast from
/// torch::nn::Module. A clone keeps the statistics, a layer in a cloned parent has its own again.
struct HasBatchStatistics {
  virtual ~HasBatchStatistics() = default;
  std::shared_ptr<BatchStatistics> statistics;  // null: of the batch itself, as LibTorch computes them
};

}  // namespace weft::unit
