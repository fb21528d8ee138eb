// differing_models.hpp -- ranks that set up different models.
// In: a strategy. Out: checks that every rank names the first difference.
#pragma once

#include "ranks.hpp"

#include <weft/nn/linear.hpp>

namespace test {

template <class Strategy>
void check_differing_models() {
  auto const message = [](auto make) {
    return failure_on_ranks<Strategy>(3, [make](Run<Strategy>& fabric) { fabric.setup(make(fabric.global_rank())); });
  };
  using torch::nn::Linear;
  CHECK_THAT(message([](int rank) { return torch::nn::Sequential(Linear(3, 4), Linear(rank == 2 ? 5 : 4, 2)); }),
             Catch::Matchers::ContainsSubstring(
                 "models differ between ranks: rank 0 has 1.weight [2, 4] Float, rank 2 has 1.weight [2, 5] Float"));
  CHECK_THAT(message([](int rank) {
               return rank == 1 ? torch::nn::Sequential(Linear(3, 4))
                                : torch::nn::Sequential(Linear(3, 4), Linear(4, 2));
             }),
             Catch::Matchers::ContainsSubstring("rank 0 has 1.weight [2, 4] Float, rank 1 has nothing"));
  CHECK_THAT(message([](int rank) {
               torch::nn::Sequential model(Linear(3, 4));
               if (rank == 1) model->to(at::kDouble);
               return model;
             }),
             Catch::Matchers::ContainsSubstring("rank 0 has 0.weight [4, 3] Float, rank 1 has 0.weight [4, 3] Double"));
  CHECK_THAT(message([](int rank) {
               torch::nn::Sequential model(Linear(3, 4));
               if (rank == 2) model->parameters()[1].requires_grad_(false);
               return model;
             }),
             Catch::Matchers::ContainsSubstring("rank 2 has 0.bias [4] Float frozen"));
}

}  // namespace test
