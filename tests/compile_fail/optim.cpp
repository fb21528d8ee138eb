// torch
// What setup takes as an optimizer.
#include <memory>
#include <vector>

#include <weft/optim/description.hpp>
#include <weft/optim/sgd.hpp>

struct LearningRate {
  double lr = 0.1;
};
struct MakesAnInt {
  std::unique_ptr<int> make(std::vector<weft::optim::NamedParameter> const&) const { return nullptr; }
};
struct OwnDescription {
  std::unique_ptr<torch::optim::SGD> make(std::vector<weft::optim::NamedParameter> const& parameters) const {
    return std::make_unique<torch::optim::SGD>(std::vector{parameters.front().tensor}, torch::optim::SGDOptions(0.1));
  }
};
#if defined( \
    CASE_number)  // expect-error: weft: setup: pass an optimizer description (weft::AdamW{.lr = ...}) or a torch::optim::Optimizer
constexpr bool fits = weft::optim::assert_optimizer<double>();
#elif defined( \
    CASE_no_make)  // expect-error: weft: setup: pass an optimizer description (weft::AdamW{.lr = ...}) or a torch::optim::Optimizer
constexpr bool fits = weft::optim::assert_optimizer<LearningRate>();
#elif defined( \
    CASE_make_of_something_else)  // expect-error: weft: setup: pass an optimizer description (weft::AdamW{.lr = ...}) or a torch::optim::Optimizer
constexpr bool fits = weft::optim::assert_optimizer<MakesAnInt>();
#else                             // control
constexpr bool fits = weft::optim::assert_optimizer<OwnDescription>() &&
                      weft::optim::assert_optimizer<weft::SGD const&>() &&
                      weft::optim::assert_optimizer<torch::optim::SGD&>();
#endif
