// optim/sgd.hpp -- stochastic gradient descent in one kernel per group.
// In: a description and parameters with gradients. Out: parameters moved as torch::optim::SGD moves them: bit by bit
// without momentum or in bf16 and fp16, and to the last rounding where the kernel joins momentum's multiplication and
// addition.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <c10/core/ScalarType.h>
#include <torch/optim/sgd.h>

#include <weft/optim/description.hpp>
#include <weft/optim/fused.hpp>

namespace weft::inline v0 {
namespace optim {

class FusedSGD : public torch::optim::SGD {
 public:
  FusedSGD(std::vector<torch::optim::OptimizerParamGroup> groups, torch::optim::SGDOptions defaults,
           bool maximize = false)
      : torch::optim::SGD(std::move(groups), std::move(defaults)), maximize_(maximize) {}

  bool maximize() const noexcept { return maximize_; }

  at::Tensor step(LossClosure closure = nullptr) override;

 private:
  void step_group(std::vector<at::Tensor> const& parameters, torch::optim::SGDOptions const& options);

  // The fused kernel keeps a bf16 or fp16 update in fp32 until the end, torch::optim::SGD rounds after every operation
  // (learning rate included). The two part ways from the first step on, so this is torch's sequence, list by list.
  void step_rounded(FusedLists& lists, torch::optim::SGDOptions const& options, bool first_step) const;

  bool maximize_;  // torch::optim::SGDOptions has no such word
};

}  // namespace optim

// weft::SGD{.lr = 0.1, .momentum = 0.9, .groups = {{.when = is_bias, .weight_decay = 0.0}}}
struct SGD {
  struct Group {
    optim::When when{};
    std::optional<double> lr{};
    std::optional<double> momentum{};
    std::optional<double> dampening{};
    std::optional<double> weight_decay{};
    std::optional<bool> nesterov{};
    bool skip = false;  // leave these parameters alone
  };

  double lr = 1e-3;
  double momentum = 0.0;
  double dampening = 0.0;
  double weight_decay = 0.0;
  bool nesterov = false;
  bool maximize = false;
  std::vector<Group> groups{};

  torch::optim::SGDOptions options() const { return options_of(Group{}); }
  torch::optim::SGDOptions options_of(Group const& group) const;

  std::unique_ptr<optim::FusedSGD> make(std::vector<optim::NamedParameter> const& parameters) const;

 private:
  static void check(std::string const& where, torch::optim::SGDOptions const& options);
};

}  // namespace weft

#ifndef WEFT_SEPARATE_COMPILATION
#include <weft/optim/sgd.ipp>
#endif
