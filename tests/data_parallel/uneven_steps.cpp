#include "ranks.hpp"

#include <chrono>
#include <thread>

#include <weft/nn/linear.hpp>

using namespace test;
using Catch::Matchers::ContainsSubstring;
using std::chrono::seconds;

namespace {

/// Rank 0 has a batch more than the others; it comes to it when they are through.
template <class Strategy>
std::string a_batch_more(bool checking) {
  auto const outcome = Run<Strategy>::launch(
      {.devices = 3, .collective_timeout = seconds(3), .check_collectives = checking}, [](Run<Strategy>& fabric) {
        auto [model, optimizer] = fabric.setup(torch::nn::Linear(3, 1), weft::SGD{.lr = 0.1});
        for (int step = 0; step < (fabric.global_rank() == 0 ? 3 : 2); ++step) {
          if (step == 2) std::this_thread::sleep_for(seconds(1));
          fabric.backward(model(torch::ones({2, 3})).sum());
          optimizer.step();
          optimizer.zero_grad();
        }
      });
  if (outcome) return "the job did not fail";
  CHECK(outcome.exit_code() != 0);
  return outcome.failures().front().message;
}

}  // namespace

TEST_CASE("DAT-03: a rank with a batch more is an error that names ranks, not an average with nobody",
          "[data_parallel][known]") {
  for (auto const& message : {a_batch_more<weft::DDP<>>(false), a_batch_more<weft::FSDP<>>(false)}) {
    CHECK_THAT(message,
               ContainsSubstring("of 3 is through, and waited 3000 ms for the others; still elsewhere: rank 0"));
    CHECK_THAT(message, ContainsSubstring("equally many batches"));
  }
}

TEST_CASE("DAT-03: the checking grade names the call that one rank makes and the others don't",
          "[data_parallel][known][checking]") {
  CHECK_THAT(a_batch_more<weft::DDP<>>(true),
             ContainsSubstring("rank 0: all_reduce of [4] of Float by sum; ranks 1, 2: barrier"));
  CHECK_THAT(a_batch_more<weft::FSDP<>>(true),
             ContainsSubstring("rank 0: all_gather of [6] of Float for the root; ranks 1, 2: barrier"));
}
