// loader.cpp -- weft's loader beside torch::data's over the same dataset, epoch for epoch in one run.
// Prints a table: medians of the epochs' ratios and their range, and weft's fastest epoch in microseconds a batch.
//
// run: 9
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/data/dataloader.h>
#include <torch/data/datasets/base.h>
#include <torch/data/datasets/map.h>
#include <torch/data/samplers/sequential.h>
#include <torch/data/transforms/stack.h>

#include <weft/data/loader.hpp>

namespace {

constexpr std::size_t num_samples = 8192, batch_size = 64;

/// Rows of 784 numbers and their labels, one by one.
struct Rows : torch::data::datasets::Dataset<Rows> {
  at::Tensor images = at::rand({num_samples, 784}), labels = at::arange(static_cast<int64_t>(num_samples));
  torch::data::Example<> get(std::size_t index) override {
    return {images[static_cast<int64_t>(index)], labels[static_cast<int64_t>(index)]};
  }
  std::optional<std::size_t> size() const override { return num_samples; }
};
/// Whole batches that cost nothing: what is left is the loader's own work.
struct Nothing : torch::data::datasets::BatchDataset<Nothing, torch::data::Example<>> {
  at::Tensor one = at::ones({1});
  torch::data::Example<> get_batch(torch::ArrayRef<std::size_t>) override { return {one, one}; }
  std::optional<std::size_t> size() const override { return num_samples; }
};

template <class Loader>
double epoch_us(Loader& loader) {
  auto const start = std::chrono::steady_clock::now();
  std::size_t batches = 0;
  for (auto& batch : loader) batches += batch.data.defined();
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count() /
         static_cast<double>(batches);
}

template <class Ours, class Theirs>
void compare(char const* what, std::size_t workers, int rounds, Ours ours, Theirs theirs) {
  weft::data::Loader mine(std::move(ours), {.batch_size = batch_size, .workers = workers});
  auto torchs = torch::data::make_data_loader(std::move(theirs), torch::data::samplers::SequentialSampler(num_samples),
                                              torch::data::DataLoaderOptions(batch_size).workers(workers));
  std::vector<double> ratios;
  double fastest = 0;
  for (int round = -1; round < rounds; ++round) {
    double const own = epoch_us(mine), other = epoch_us(*torchs);
    if (round < 0) continue;
    ratios.push_back(own / other);
    fastest = fastest == 0 ? own : std::min(fastest, own);
  }
  std::sort(ratios.begin(), ratios.end());
  std::printf("| %s | %zu | %.2f (%.2f to %.2f) | %.1f |\n", what, workers, ratios[ratios.size() / 2], ratios.front(),
              ratios.back(), fastest);
}

}  // namespace

int main(int argc, char** argv) {
  int const rounds = argc > 1 ? std::atoi(argv[1]) : 25;
  at::set_num_threads(1);
  std::puts("| data | workers | time over torch::data's | weft, us a batch |\n|---|---|---|---|");
  for (std::size_t const workers : {0, 1, 2}) {
    Rows const rows;
    compare("64 rows of 784, one by one", workers, rounds, rows,
            torch::data::datasets::map(rows, torch::data::transforms::Stack<>()));
    compare("batches that cost nothing", workers, rounds, Nothing(), Nothing());
  }
}
