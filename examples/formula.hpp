// formula.hpp -- shapes, tokens and initial weights that a formula gives, bit for bit the same in any language.
// In: a shape's name, sample numbers, a seed. Out: the runs that benchmarks/peers/FORMAT.md describes.
#pragma once

#include <cmath>
#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>

#include <ATen/ATen.h>

#include <weft/init/deferred_init.hpp>

#include "llama.hpp"

namespace formula {

struct Run : llama::Shape {
  int64_t batch = 8;  // samples of one micro-batch over all ranks
};

inline std::map<std::string, Run> const& shapes() {
  static std::map<std::string, Run> const all = {
      {"tiny", {{128, 64, 2, 4, 128, 16}, 8}},   {"odd", {{101, 60, 3, 3, 90, 13}, 8}},
      {"small", {{512, 256, 4, 8, 512, 64}, 8}}, {"medium", {{4096, 512, 8, 8, 1408, 128}, 8}},
      {"deep", {{128, 64, 32, 4, 128, 16}, 8}},
  };
  return all;
}

/// Inputs and targets, int64 [count, seq], of samples first .. first + count - 1.
inline std::pair<at::Tensor, at::Tensor> tokens(int64_t first, int64_t count, llama::Shape const& shape, int64_t seed) {
  auto inputs = at::empty({count, shape.seq}, at::kLong), targets = at::empty({count, shape.seq}, at::kLong);
  auto* const in = inputs.data_ptr<int64_t>();
  auto* const out = targets.data_ptr<int64_t>();
  for (int64_t j = 0; j < count; ++j) {
    int64_t const g = first + j;
    auto const token = [&](int64_t t) { return (31 * g + t * (1 + g % 7) + 17 * seed) % shape.vocab; };
    for (int64_t t = 0; t < shape.seq; ++t) {
      in[j * shape.seq + t] = token(t);
      out[j * shape.seq + t] = token(t + 1);
    }
  }
  return {inputs, targets};
}

inline uint32_t fnv1a(std::string const& text) {
  uint32_t hash = 2166136261u;
  for (unsigned char byte : text) hash = (hash ^ byte) * 16777619u;
  return hash;
}

inline void initialize(std::string const& name, at::Tensor const& parameter, uint32_t seed) {
  at::NoGradGuard const no_grad;
  if (parameter.dim() == 1) {
    parameter.fill_(name.ends_with("bias") ? 0.0 : 1.0);
    return;
  }
  uint32_t const base = fnv1a(name) + seed * 0x9E3779B9u;
  float const scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(parameter.size(1)))) * 0x1p-23f;
  weft::fill_with(parameter, [base, scale](at::Tensor const& tensor) {
    auto* const values = tensor.data_ptr<float>();
    for (int64_t i = 0; i < tensor.numel(); ++i) {
      uint32_t x = static_cast<uint32_t>(i) + base;
      x = (x ^ x >> 16) * 0x7FEB352Du;
      x = (x ^ x >> 15) * 0x846CA68Bu;
      x ^= x >> 16;
      values[i] = static_cast<float>(static_cast<int32_t>(x >> 8) - (1 << 23)) * scale;
    }
  });
}

inline void initialize(torch::nn::Module const& module, uint32_t seed) {
  for (auto const& parameter : module.named_parameters()) initialize(parameter.key(), parameter.value(), seed);
}

}  // namespace formula
