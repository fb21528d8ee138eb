// nn/sync_batch_norm.hpp -- BatchNorm over the batches of all ranks.
// In: a module with weft::nn::BatchNorm layers, and the ranks. Out: the same layers, which normalize as one process
// would with all ranks' rows in one batch.
//
//   auto [model, optimizer] = fabric.setup(weft::convert_sync_batchnorm(fabric, Net()), weft::SGD{.lr = 0.1});
//
// Ranks may have different numbers of rows, none as well. Two collectives a layer and step: means, variances and counts
// in forward, two sums a channel in backward, so all ranks run the layer and reach it in backward, in one order. In
// eval mode, and in a world of one, the layer is LibTorch's.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <ostream>
#include <string>
#include <type_traits>
#include <vector>

#include <ATen/OpMathType.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/nn/modules/batchnorm.h>

#include <weft/comm/communicator.hpp>
#include <weft/core/error.hpp>
#include <weft/model/model.hpp>
#include <weft/nn/normalization.hpp>
#include <weft/unit/batch_statistics.hpp>
#include <weft/unit/unit.hpp>

namespace weft::inline v0 {
namespace nn {
namespace detail {

using Ranks = std::shared_ptr<comm::Communicator>;

/// All but the channels.
std::vector<std::int64_t> summed_dims(at::Tensor const& x);
/// A value for each channel, to stand beside x.
at::Tensor per_channel(at::Tensor const& values, at::Tensor const& x);

/// Of all ranks' rows: [channels] in double, and how many values a channel has.
struct Moments {
  at::Tensor mean, variance, count;
};

/// Each rank's moments are put together by their counts (Chan, Golub, LeVeque), which loses nothing where means are far
/// from zero.
Moments moments_over(comm::Communicator& ranks, at::Tensor const& x);

struct SyncBatchNormBackward final : torch::autograd::Node {
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override;
  void release_variables() override {
    std::lock_guard const lock(mutex_);
    input.reset_data();
    weight.reset_data();
  }
  std::string name() const override { return "SyncBatchNormBackward"; }

  torch::autograd::SavedVariable input, weight;
  at::Tensor mean, inverse_deviation, count;
  at::ScalarType bias_type = at::kFloat;
  Ranks ranks;
};

class RankStatistics final : public unit::BatchStatistics {
 public:
  explicit RankStatistics(Ranks const& ranks) : ranks_(ranks) {}

  at::Tensor normalize(at::Tensor const& input, at::Tensor const& weight, at::Tensor const& bias,
                       at::Tensor const& running_mean, at::Tensor const& running_var, double factor,
                       double eps) override;

 private:
  static void move(at::Tensor running, at::Tensor const& to, double factor) {
    if (running.defined()) running.mul_(1 - factor).add_(to.to(running.scalar_type()), factor);
  }

  std::weak_ptr<comm::Communicator> ranks_;  // a model may outlive them
};

/// Null where there is nothing to synchronize.
inline std::shared_ptr<unit::BatchStatistics> statistics_over(Ranks const& ranks) {
  return ranks && ranks->size() > 1 ? std::make_shared<RankStatistics>(ranks) : nullptr;
}

/// BatchNorm of inputs with any number of dims behind the channels.
class BatchNormOfAnyImpl : public torch::nn::BatchNormImplBase<0, BatchNormOfAnyImpl> {
 public:
  using torch::nn::BatchNormImplBase<0, BatchNormOfAnyImpl>::BatchNormImplBase;

 protected:
  void _check_input_dim(at::Tensor const& input) override {
    if (input.dim() < 2)
      fail<ConfigurationError>("weft: SyncBatchNorm: expected an input with rows and channels, got ", input.sizes());
  }
};

}  // namespace detail

using torch::nn::BatchNormOptions;

/// The layer by itself: SyncBatchNorm(BatchNormOptions(8), fabric.world()); null ranks, or one: of this process.
struct SyncBatchNormImpl : BatchNormOf<detail::BatchNormOfAnyImpl> {
  explicit SyncBatchNormImpl(BatchNormOptions const& options, std::shared_ptr<comm::Communicator> const& ranks)
      : BatchNormOf(options) {
    statistics = detail::statistics_over(ranks);
  }
  void pretty_print(std::ostream& stream) const override;
};
WEFT_MODULE(SyncBatchNorm);

/// Lets every BatchNorm in the module take its statistics from these ranks; null: from its own batch again. Names,
/// parameters and buffers stay.
void sync_batch_norms(torch::nn::Module& root, std::shared_ptr<comm::Communicator> const& ranks);

}  // namespace nn

/// Over the data axes of the mesh. Before or after setup, on all ranks alike. Strategies of one process change nothing.
template <class Fabric, class M>
M convert_sync_batchnorm(Fabric& fabric, M module) {
  auto const& mesh = fabric.mesh();
  fabric.session().connect_mesh();
  if constexpr (is_model_v<M>) {
    nn::sync_batch_norms(module.module(), mesh.data().ranks);
  } else {
    static_assert(!std::is_void_v<model::impl_of_t<M>>,
                  "weft: convert_sync_batchnorm(fabric, module): pass a module holder, a std::shared_ptr to a module, "
                  "or what setup returned (a module of init_module after setup)");
    if constexpr (!std::is_void_v<model::impl_of_t<M>>) nn::sync_batch_norms(*module, mesh.data().ranks);
  }
  return module;
}

}  // namespace weft

#ifndef WEFT_SEPARATE_COMPILATION
#include <weft/nn/sync_batch_norm.ipp>
#endif
