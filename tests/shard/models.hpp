// models.hpp -- models made of units, and what a run of them has to agree on.
// In: a strategy and a description. Out: losses, gradient norms, whole gradients and final weights of a short training.
#pragma once

#include "ranks.hpp"

#include <ATen/ExpandUtils.h>

#include <weft/nn/linear.hpp>
#include <weft/nn/normalization.hpp>

namespace test {

/// Odd sizes, a 0-dim parameter, a normalization.
struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(int64_t width = 7) {
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})));
    up = register_module("up", torch::nn::Linear(width, 11));
    down = register_module("down", torch::nn::Linear(torch::nn::LinearOptions(11, width).bias(false)));
    scale = register_parameter("scale", torch::full({}, 0.7));
  }
  at::Tensor forward(at::Tensor const& x) { return x + down(torch::gelu(up(norm(x)))) * scale; }
  torch::nn::LayerNorm norm = nullptr;
  torch::nn::Linear up = nullptr, down = nullptr;
  at::Tensor scale;
};
WEFT_MODULE(Block);

struct StackImpl : torch::nn::Module {
  explicit StackImpl(int64_t num_blocks = 3) {
    in = register_module("in", torch::nn::Linear(5, 7));
    blocks = register_module("blocks", torch::nn::ModuleList());
    for (int64_t i = 0; i < num_blocks; ++i) blocks->push_back(Block());
    out = register_module("out", torch::nn::Linear(7, 3));
  }
  at::Tensor forward(at::Tensor const& x) {
    auto h = in(x);
    for (auto const& block : *blocks) h = block->as<Block>()->forward(h);
    return out(h);
  }
  torch::nn::Linear in = nullptr, out = nullptr;
  torch::nn::ModuleList blocks = nullptr;
};
TORCH_MODULE(Stack);

/// The gradient of one process, of which each rank has a part that the table describes. Collective.
template <class Model>
std::vector<at::Tensor> unsharded_gradients(Model const& model) {
  auto& mesh = *model.state()->session->mesh;
  std::vector<at::Tensor> result;
  for (auto const& row : model.table().rows()) {
    auto const& grad = row.tensor.grad();
    std::vector<weft::plan::Cut> cuts;
    for (auto const& [axis, placement] : row.placements)
      cuts.push_back({placement, mesh.size(axis), mesh.coordinate(axis)});
    auto whole = at::zeros({row.global_numel()}, row.dtype).as_strided(row.global_shape, row.global_strides);
    auto defined = at::full({1}, grad.defined() ? 1.0 : 0.0);
    if (grad.defined()) {
      int64_t taken = 0;
      for (auto const& box : weft::plan::boxes_of(row.global_shape, row.global_strides, cuts)) {
        auto part = whole;
        for (std::size_t d = 0; d < box.sizes.size(); ++d)
          part = part.narrow(static_cast<int64_t>(d), box.offsets[d], box.sizes[d]);
        auto const elements = weft::model::elements_of(grad).narrow(0, taken, part.numel());
        part.copy_(elements.as_strided(part.sizes(), at::infer_dense_strides(part.sizes(), row.global_strides)));
        taken += part.numel();
      }
      expect(taken == grad.numel(), "the boxes of " + row.name + " are the rank's part");
    }
    int ranks = 1;
    for (auto const& axis : weft::model::divided_over(row))
      if (auto const& group = mesh.axis(axis)) {
        group->all_reduce(whole);
        group->all_reduce(defined);
        ranks *= group->size();
      }
    auto const count = defined.template item<double>();
    expect(count == 0 || count == ranks, "the gradient of " + row.name + " is defined on all ranks or on none");
    result.push_back(count > 0 ? whole : at::Tensor());
  }
  return result;
}

/// Everything that has to agree with one process.
using Record = std::pair<std::vector<double>, std::vector<at::Tensor>>;

struct Training {
  int64_t steps = 8;
  int64_t accumulate = 1;
  int64_t batch = 12;
  double clip = 0.5;
};

template <class Strategy, class Module, class Description>
Record train(int world, Module const& make, Description const& description, Training const& t = {}) {
  return on_ranks<Strategy>(world, [&](Run<Strategy>& fabric) {
    fabric.seed_everything(1);
    auto [model, optimizer] = fabric.setup(make(), description);
    Record record;
    auto const& share = fabric.mesh().data();
    int64_t const local = t.batch / share.size();
    for (int64_t step = 0; step < t.steps; ++step) {
      double loss_sum = 0;
      for (int64_t micro = 0; micro < t.accumulate; ++micro) {
        auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(100 + step * t.accumulate + micro));
        auto const x = at::randn({t.batch, 5}, generator).narrow(0, share.coordinate * local, local);
        auto const guard = fabric.no_backward_sync(model, micro + 1 < t.accumulate);
        auto const loss = model(x).pow(2).mean() / static_cast<double>(t.accumulate);
        fabric.backward(loss);
        loss_sum += loss.template item<double>();
      }
      record.first.push_back(fabric.all_reduce(loss_sum));
      record.first.push_back(fabric.clip_gradients(model, optimizer, weft::ClipNorm{t.clip}).template item<double>());
      if (step + 1 == t.steps) record.second = unsharded_gradients(model);
      optimizer.step();
      optimizer.zero_grad();
    }
    for (auto& weight : whole_weights(fabric, model)) record.second.push_back(std::move(weight));
    return record;
  });
}

inline void check_equal(Record const& record, Record const& reference, double tolerance = 1e-5) {
  REQUIRE(record.first.size() == reference.first.size());
  for (std::size_t i = 0; i < record.first.size(); ++i)
    CHECK(record.first[i] == Catch::Approx(reference.first[i]).epsilon(tolerance));
  REQUIRE(record.second.size() == reference.second.size());
  for (std::size_t i = 0; i < record.second.size(); ++i) {
    INFO("tensor " << i);
    REQUIRE(record.second[i].defined() == reference.second[i].defined());
    if (reference.second[i].defined())
      CHECK(relative_difference(record.second[i], reference.second[i]) < 10 * tolerance);
  }
}

}  // namespace test
