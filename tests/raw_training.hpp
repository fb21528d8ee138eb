// raw_training.hpp -- what ranks compute, by LibTorch alone and in one process: a reference that has the bits of the
// processor it runs on.
// In: a shape of examples/formula.hpp, how many ranks, where bf16 stands in. Out: losses, gradient norms, a digest of
// the final weights.
//
// [Note: bits of a processor] Kernels of bf16 and the order of their sums differ between processors (with AMX, with
// AVX-512 only, without), so recorded bits hold on machines like the one they were recorded on. Bits are compared with
// this reference; a recorded curve is held to the bound that every processor keeps, and recorded bits are held where
// this reference has them, too. [processor] marks tests that tests/driver.py runs again as other processors.
#pragma once

#include "test.hpp"

#include <memory>
#include <string>
#include <vector>

#include <ATen/autocast_mode.h>

#include "../examples/formula.hpp"
#include "../examples/sha256.hpp"

namespace test {

/// Where bf16 stands: nowhere; in operations that autocast chooses; in copies of fp32 parameters, made for each
/// forward; everywhere.
enum class Bf16In { nothing, autocast, parameter_copies, everything };

struct RawRun {
  std::string shape = "tiny";
  Bf16In bf16 = Bf16In::nothing;
  int64_t ranks = 1;
  int64_t accumulate = 1;
  double clip = 0;     // largest gradient norm; 0: no clipping
  bool adamw = false;  // lr 0.003, weight decay 0.01; else SGD, lr 0.5
  int64_t steps = 10;
};

struct RawCurve {
  std::vector<double> losses, grad_norms;
  std::string final_sha256;
};

/// Restores autocast as it was.
class Bf16Autocast {
 public:
  explicit Bf16Autocast(bool on)
      : was_(at::autocast::is_autocast_enabled(at::kCPU)), dtype_(at::autocast::get_autocast_dtype(at::kCPU)) {
    if (on) at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
    at::autocast::set_autocast_enabled(at::kCPU, on || was_);
  }
  ~Bf16Autocast() {
    at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, was_);
    at::autocast::set_autocast_dtype(at::kCPU, dtype_);
  }
  Bf16Autocast(Bf16Autocast const&) = delete;
  Bf16Autocast& operator=(Bf16Autocast const&) = delete;

 private:
  bool was_;
  at::ScalarType dtype_;
};

/// Trains as `run.ranks` ranks would, one after another: gradients are averaged in fp32, neighbors first, as two axes
/// of two ranks do.
inline RawCurve raw_training(RawRun const& run) {
  auto const& shape = formula::shapes().at(run.shape);
  auto const model_of = [&](bool bf16) {
    llama::LanguageModel model(shape);
    formula::initialize(*model, 0);
    if (bf16) model->to(at::kBFloat16);
    return model;
  };
  auto computing = model_of(run.bf16 == Bf16In::parameter_copies || run.bf16 == Bf16In::everything);
  auto const kept = run.bf16 == Bf16In::parameter_copies ? model_of(false) : computing;
  auto const copies = computing->parameters(), parameters = kept->parameters();
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  if (run.adamw)
    optimizer = std::make_unique<torch::optim::AdamW>(parameters, torch::optim::AdamWOptions(0.003).weight_decay(0.01));
  else
    optimizer = std::make_unique<torch::optim::SGD>(parameters, torch::optim::SGDOptions(0.5));

  RawCurve curve;
  int64_t const count = shape.batch / run.ranks;
  for (int64_t step = 0; step < run.steps; ++step) {
    at::NoGradGuard const no_grad;
    double loss_sum = 0;
    std::vector<std::vector<at::Tensor>> gradients;  // of each rank, fp32
    if (kept.get() != computing.get())
      for (std::size_t i = 0; i < copies.size(); ++i) copies[i].copy_(parameters[i]);
    for (int64_t rank = 0; rank < run.ranks; ++rank) {
      std::vector<at::Tensor> own(copies.size());
      for (int64_t micro = 0; micro < run.accumulate; ++micro) {
        at::AutoGradMode const grad(true);
        auto const [inputs, targets] = formula::tokens((step * run.accumulate + micro) * shape.batch + rank * count,
                                                       count, shape, 0);
        at::Tensor loss;
        {
          Bf16Autocast const autocast(run.bf16 == Bf16In::autocast);
          loss = llama::loss_of(computing->forward(inputs), targets);
        }
        if (run.accumulate > 1) loss = loss / static_cast<double>(run.accumulate);
        loss.backward();
        loss_sum += loss.item<double>();
        at::NoGradGuard const again;
        for (std::size_t i = 0; i < copies.size(); ++i) {
          auto const gradient = copies[i].grad().to(at::kFloat);
          own[i] = own[i].defined() ? own[i] + gradient : gradient;
          copies[i].mutable_grad() = at::Tensor();
        }
      }
      gradients.push_back(std::move(own));
    }
    double squares = 0;
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      std::vector<at::Tensor> sums;
      for (auto const& own : gradients) sums.push_back(own[i] / static_cast<double>(run.ranks));
      while (sums.size() > 1) {
        std::vector<at::Tensor> halved;
        for (std::size_t j = 0; j + 1 < sums.size(); j += 2) halved.push_back(sums[j] + sums[j + 1]);
        if (sums.size() % 2 == 1) halved.push_back(sums.back());
        sums = std::move(halved);
      }
      parameters[i].mutable_grad() = sums[0].to(parameters[i].scalar_type());
      squares += parameters[i].grad().to(at::kDouble).square().sum().item<double>();
    }
    curve.losses.push_back(loss_sum / static_cast<double>(run.ranks));
    curve.grad_norms.push_back(std::sqrt(squares));
    if (run.clip > 0 && curve.grad_norms.back() > run.clip)
      for (auto const& parameter : parameters)
        parameter.mutable_grad().mul_(run.clip / (curve.grad_norms.back() + 1e-6));
    optimizer->step();
    optimizer->zero_grad();
  }
  Sha256 digest;
  for (auto const& parameter : parameters) {
    auto const dense = parameter.detach().to(at::kFloat).contiguous();
    digest.add(dense.const_data_ptr(), dense.nbytes());
  }
  curve.final_sha256 = digest.hex();
  return curve;
}

}  // namespace test
