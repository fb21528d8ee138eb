// torch
// What setup takes as an optimizer, what setup_dataloader takes as a dataset.
#include <memory>
#include <optional>
#include <vector>

#include <weft/data/loader.hpp>
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
struct Numbers {};
struct Stateful : torch::data::datasets::BatchDataset<Stateful, std::optional<int>, std::size_t> {
  std::optional<int> get_batch(std::size_t) override { return std::nullopt; }
  std::optional<std::size_t> size() const override { return std::nullopt; }
};
struct Dataset : torch::data::datasets::Dataset<Dataset> {
  torch::data::Example<> get(std::size_t) override { return {}; }
  std::optional<std::size_t> size() const override { return 1; }
};

#if defined(CASE_number)  // expect-error: weft: setup: pass an optimizer description (weft::AdamW{.lr = ...}) or a torch::optim::Optimizer
constexpr bool fits = weft::optim::assert_optimizer<double>();
#elif defined(CASE_no_make)  // expect-error: weft: setup: pass an optimizer description (weft::AdamW{.lr = ...}) or a torch::optim::Optimizer
constexpr bool fits = weft::optim::assert_optimizer<LearningRate>();
#elif defined(CASE_make_of_something_else)  // expect-error: weft: setup: pass an optimizer description (weft::AdamW{.lr = ...}) or a torch::optim::Optimizer
constexpr bool fits = weft::optim::assert_optimizer<MakesAnInt>();
#elif defined(CASE_no_dataset)  // expect-error: weft: setup_dataloader: pass a torch::data dataset by value
constexpr bool fits = weft::data::assert_dataset<Numbers>();
#elif defined(CASE_stateful_dataset)  // expect-error: not a stateful one, which cannot be cut over ranks
constexpr bool fits = weft::data::assert_dataset<Stateful>();
#else  // control
constexpr bool fits = weft::optim::assert_optimizer<OwnDescription>() && weft::optim::assert_optimizer<weft::SGD const&>() &&
                      weft::optim::assert_optimizer<torch::optim::SGD&>() && weft::data::assert_dataset<Dataset>();
#endif
