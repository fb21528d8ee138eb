// tests/optim/compare.hpp -- two optimizers, one problem.
// In: shapes, a dtype, weft's description and torch's optimizer. Out: how far their parameters are apart after some
// steps.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "test.hpp"

#include <weft/optim/description.hpp>

namespace compare {

// Odd on purpose: 0-dim, one element, below and above a vector register, several tasks of the kernel's own split.
inline std::vector<std::vector<std::int64_t>> odd_shapes() {
  return {{}, {1}, {3}, {7, 5}, {16}, {33}, {0, 4}, {129, 3}, {4099}};
}

inline std::vector<at::Tensor> draw(std::vector<std::vector<std::int64_t>> const& shapes, at::ScalarType dtype,
                                    std::int64_t seed) {
  at::Generator generator = at::detail::createCPUGenerator(seed);
  std::vector<at::Tensor> drawn;
  for (auto const& shape : shapes)
    drawn.push_back(at::randn(shape, generator, at::TensorOptions().dtype(at::kDouble)).to(dtype));
  return drawn;
}

inline std::vector<weft::optim::NamedParameter> named(std::vector<at::Tensor> const& tensors) {
  std::vector<weft::optim::NamedParameter> all;
  for (std::size_t i = 0; i < tensors.size(); ++i) all.push_back({"p" + std::to_string(i), tensors[i]});
  return all;
}

struct Distance {
  double relative = 0;  // largest |weft - torch| / max(|torch|, 1)
  bool bitwise = true;
};

using MakeTorch = std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<at::Tensor>)>;

template <class Description>
Distance after_steps(Description const& description, MakeTorch const& make_torch, at::ScalarType dtype,
                     int num_steps = 20, bool negate_for_torch = false,
                     std::vector<std::vector<std::int64_t>> const& shapes = odd_shapes()) {
  std::vector<at::Tensor> ours = draw(shapes, dtype, 1), theirs = draw(shapes, dtype, 1);
  for (auto& p : ours) p.requires_grad_();
  for (auto& p : theirs) p.requires_grad_();
  auto weft_optimizer = description.make(named(ours));
  auto torch_optimizer = make_torch(theirs);
  for (int step = 0; step < num_steps; ++step) {
    std::vector<at::Tensor> gradients = draw(shapes, dtype, 100 + step);
    for (std::size_t i = 0; i < ours.size(); ++i) {
      bool const skipped = i == 4 && step % 3 == 1;  // a parameter that is unused now and then: step counts part ways
      ours[i].mutable_grad() = skipped ? at::Tensor() : gradients[i].clone();
      theirs[i].mutable_grad() = skipped ? at::Tensor() : negate_for_torch ? gradients[i].neg() : gradients[i].clone();
    }
    weft_optimizer->step();
    torch_optimizer->step();
  }
  Distance distance;
  for (std::size_t i = 0; i < ours.size(); ++i) {
    distance.bitwise = distance.bitwise && at::equal(ours[i], theirs[i]);
    if (ours[i].numel() == 0) continue;
    at::Tensor const a = ours[i].detach().to(at::kDouble), b = theirs[i].detach().to(at::kDouble);
    distance.relative = std::max(distance.relative, ((a - b).abs() / b.abs().clamp_min(1)).max().item<double>());
  }
  return distance;
}

}  // namespace compare
