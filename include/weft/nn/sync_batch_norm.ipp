// nn/sync_batch_norm.ipp -- definitions of nn/sync_batch_norm.hpp.
#pragma once

#include <weft/nn/sync_batch_norm.hpp>

#include <utility>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

#include <weft/comm/autograd_node.hpp>
#include <weft/core/build.hpp>
#include <weft/unit/walk.hpp>

namespace weft::inline v0::nn::detail {

WEFT_INLINE std::vector<std::int64_t> summed_dims(at::Tensor const& x) {
  std::vector<std::int64_t> dims{0};
  for (std::int64_t dim = 2; dim < x.dim(); ++dim) dims.push_back(dim);
  return dims;
}

WEFT_INLINE at::Tensor per_channel(at::Tensor const& values, at::Tensor const& x) {
  std::vector<std::int64_t> shape(static_cast<std::size_t>(x.dim()), 1);
  shape[1] = x.size(1);
  return values.view(shape);
}

WEFT_INLINE Moments moments_over(comm::Communicator& ranks, at::Tensor const& x) {
  auto const channels = x.size(1);
  auto const mine = at::zeros({2 * channels + 1}, x.options().dtype(at::kDouble));
  if (x.numel() > 0) {
    auto const moments = at::var_mean(x, summed_dims(x), /*correction=*/0);
    mine.narrow(0, 0, channels).copy_(std::get<1>(moments));
    mine.narrow(0, channels, channels).copy_(std::get<0>(moments));
    mine[2 * channels].fill_(x.numel() / channels);
  }
  auto const all = at::empty({ranks.size(), mine.numel()}, mine.options());
  ranks.all_gather_into(all, mine);
  auto const means = all.narrow(1, 0, channels), variances = all.narrow(1, channels, channels),
             counts = all.narrow(1, 2 * channels, 1);
  auto const count = counts.sum();
  auto const mean = (counts * means).sum(0) / count;
  return {mean, (counts * (variances + (means - mean).square())).sum(0) / count, count};
}

WEFT_INLINE torch::autograd::variable_list SyncBatchNormBackward::apply(torch::autograd::variable_list&& gradients) {
  if (at::GradMode::is_enabled())
    fail<ConfigurationError>(
        "weft: SyncBatchNorm has no second derivative (backward with create_graph=true); use BatchNorm as it is");
  std::lock_guard const lock(mutex_);
  auto const saved = input.unpack(), scale = weight.unpack();
  auto const wide_type = mean.scalar_type();
  auto const x = saved.detach().to(wide_type);
  auto const dy = gradients[0].defined() ? gradients[0].to(wide_type) : at::zeros_like(x);
  auto const dims = summed_dims(x);
  auto const centerd = x - per_channel(mean, x);
  auto const sum_dy = dy.sum(dims), sum_dy_centred = (dy * centerd).sum(dims);
  torch::autograd::variable_list result(3);
  if (task_should_compute_output(0)) {
    auto const sums = at::stack({sum_dy, sum_dy_centred}).to(at::kDouble);
    ranks->all_reduce(sums, ReduceOp::sum, "SyncBatchNorm");
    auto const means = (sums / count).to(wide_type);
    auto const factor = scale.defined() ? inverse_deviation * scale.to(wide_type) : inverse_deviation;
    result[0] = ((dy - per_channel(means[0], x) - centerd * per_channel(means[1] * inverse_deviation.square(), x)) *
                 per_channel(factor, x))
                    .to(saved.scalar_type());
  }
  // This rank's part: the strategy reduces gradients of parameters.
  if (task_should_compute_output(1)) result[1] = (sum_dy_centred * inverse_deviation).to(scale.scalar_type());
  if (task_should_compute_output(2)) result[2] = sum_dy.to(bias_type);
  return result;
}

WEFT_INLINE at::Tensor RankStatistics::normalize(at::Tensor const& input, at::Tensor const& weight,
                                                 at::Tensor const& bias, at::Tensor const& running_mean,
                                                 at::Tensor const& running_var, double factor, double eps) {
  auto const ranks = ranks_.lock();
  if (!ranks)
    fail<Error>(
        "weft: SyncBatchNorm: the fabric of its ranks has been torn down; call eval() on the model, or set it up "
        "again");
  auto const wide_type = at::toOpMathType(input.scalar_type());  // bf16 and fp16 are summed in fp32
  Moments moments;
  at::Tensor output;
  {
    at::NoGradGuard const no_grad;
    auto const x = input.detach();
    moments = moments_over(*ranks, x.to(wide_type));
    auto const count = moments.count.item<double>();
    if (count == 1)
      fail<Error>("weft: SyncBatchNorm, rank ", ranks->rank(),
                  ": expected more than 1 value per channel over all ranks when training, got input size ",
                  input.sizes());
    if (count > 0) move(running_mean, moments.mean, factor);
    if (count > 0) move(running_var, moments.variance * (count / (count - 1)), factor);
    auto const wide = [&](at::Tensor const& it) { return it.defined() ? it.detach().to(wide_type) : it; };
    output = x.numel() == 0 ? at::empty_like(x)
                            : std::get<0>(at::native_batch_norm(x, wide(weight), wide(bias), wide(moments.mean),
                                                                wide(moments.variance), /*training=*/false,
                                                                /*momentum=*/0, eps));
  }
  auto const requires_grad = [](at::Tensor const& it) { return it.defined() && it.requires_grad(); };
  if (!at::GradMode::is_enabled() || !(requires_grad(input) || requires_grad(weight) || requires_grad(bias)))
    return output;
  auto const node = comm::make_node<SyncBatchNormBackward>();
  node->set_next_edges(torch::autograd::collect_next_edges(input, weight, bias));
  node->input = torch::autograd::SavedVariable(input, /*is_output=*/false);
  node->weight = torch::autograd::SavedVariable(weight, /*is_output=*/false);
  node->mean = moments.mean.to(wide_type);
  node->inverse_deviation = (moments.variance + eps).rsqrt().to(wide_type);
  node->count = moments.count;
  if (bias.defined()) node->bias_type = bias.scalar_type();
  node->ranks = ranks;
  torch::autograd::set_history(output, node);
  return output;
}

}  // namespace weft::nn::detail

namespace weft::inline v0::nn {

WEFT_INLINE void SyncBatchNormImpl::pretty_print(std::ostream& stream) const {
  stream << std::boolalpha << "weft::nn::SyncBatchNorm(" << options.num_features() << ", eps=" << options.eps()
         << ", momentum=";
  if (options.momentum())
    stream << *options.momentum();
  else
    stream << "None";
  stream << ", affine=" << options.affine() << ", track_running_stats=" << options.track_running_stats() << ')';
}

WEFT_INLINE void sync_batch_norms(torch::nn::Module& root, std::shared_ptr<comm::Communicator> const& ranks) {
  bool found = false;
  auto const statistics = detail::statistics_over(ranks);
  unit::for_each_module(root, [&](std::string const& path, torch::nn::Module& module) {
    if (auto* const layer = dynamic_cast<unit::HasBatchStatistics*>(&module)) {
      layer->statistics = statistics;
      found = true;
      return;
    }
    auto const refuse = [&](int dims) {
      fail<ConfigurationError>(
          "weft: convert_sync_batchnorm: ", path.empty() ? "the model" : path, " is torch::nn::BatchNorm", dims,
          "d, whose forward cannot be intercepted: write weft::nn::BatchNorm", dims, "d, the same layer");
    };
    if (dynamic_cast<torch::nn::BatchNorm1dImpl*>(&module)) refuse(1);
    if (dynamic_cast<torch::nn::BatchNorm2dImpl*>(&module)) refuse(2);
    if (dynamic_cast<torch::nn::BatchNorm3dImpl*>(&module)) refuse(3);
  });
  if (!found)
    fail<ConfigurationError>(
        "weft: convert_sync_batchnorm: the model has no weft::nn::BatchNorm1d, 2d or 3d, so there is nothing to "
        "convert; leave it out");
}

}  // namespace weft::nn
