// 10_seeds_and_ranks.cpp -- what ranks have in common, what each has of its own, and who goes first.
//
// run: 3
// expect: the corpus was written by rank 0, once
// expect: start weights are equal on all ranks: true
// expect: dropout masks differ between ranks: true
// expect: rank 2 heard: weft: rank_zero_first: rank 2 of 3 did not run, because rank 0 failed: the mirror is down
// expect: one rank has seen enough, so all stop after step 4
// run: 1
// expect: start weights are equal on all ranks: true
// expect: one rank has seen enough, so all stop after step 4
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>

#include <unistd.h>

#include <torch/nn/modules/linear.h>

#include <weft/nn/layers.hpp>
#include <weft/weft.hpp>

using Run = weft::Fabric<weft::DDP<>, weft::On<weft::Cpu>>;

int main(int argc, char** argv) {
  int const devices = argc > 1 ? std::atoi(argv[1]) : 3;
  auto const file = std::filesystem::temp_directory_path() / ("weft_10_" + std::to_string(::getpid()));

  auto outcome = Run::launch({.devices = devices}, [&](Run& fabric) {
    // Rank 0 prepares what the others then find. On several nodes without a common disk: {.local = true}.
    auto const text = fabric.rank_zero_first([&] {
      if (!std::filesystem::exists(file)) std::ofstream(file) << "rank " << fabric.global_rank();
      std::string who;
      std::getline(std::ifstream(file), who);
      return who;
    });
    fabric.print("the corpus was written by ", text, ", once");

    // Without a seed: $PL_GLOBAL_SEED, else 0. Ranks draw different dropout masks, and start from one model all the
    // same.
    fabric.seed_everything(42, {.per_rank = true});
    auto model = fabric.setup(torch::nn::Linear(4, 4));
    auto const weights = fabric.all_gather(model->weight.detach());
    fabric.print("start weights are equal on all ranks: ",
                 weights.eq(weights[0]).all().item<bool>() ? "true" : "false");
    auto const masks = fabric.all_gather(at::dropout(at::ones({64}), 0.5, /*train=*/true));
    if (fabric.world_size() > 1)
      fabric.print("dropout masks differ between ranks: ", masks[0].equal(masks[1]) ? "false" : "true");

    // What rank 0 can't do is an error on all ranks, which all may handle.
    std::string heard = "nothing";
    try {
      fabric.rank_zero_first([&] {
        if (fabric.global_rank() == 0) throw std::runtime_error("the mirror is down");
      });
    } catch (std::exception const& error) {
      heard = error.what();
    }
    heard = fabric.broadcast(heard, fabric.world_size() - 1);
    fabric.print("rank ", fabric.world_size() - 1, " heard: ", heard);

    // Ranks that decide alone would part: one would stop, and the others wait for it.
    for (int step = 1; step <= 10; ++step) {
      bool const enough = fabric.global_rank() == fabric.world_size() - 1 && step == 4;
      if (fabric.any_of(enough)) {
        fabric.print("one rank has seen enough, so all stop after step ", step);
        break;
      }
    }
  });
  std::filesystem::remove(file);
  return outcome.exit_code();
}
