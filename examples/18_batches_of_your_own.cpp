// 18_batches_of_your_own.cpp -- samples and batches are structs, and workers make them.
//
// A dataset is any type with size() and get(index). Its samples open themselves up by weft_visit, and name the struct
// that a batch of them is: tensors are stacked, numbers become a tensor, strings a list. Workers read ahead; what get
// draws from its worker's generator is the same with any number of them.
//
// run:
// expect: 48 shapes, batches of 8 on each of 2 ranks, 3 steps an epoch
// expect: the first batch: images [8, 1, 8, 8], labels [8], first name cross-
// expect: after 30 epochs every shape is told from the other
// expect: no worker and two workers give the same noise
#include <string>
#include <vector>

#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/container/sequential.h>

#include <weft/nn/layers.hpp>
#include <weft/weft.hpp>

struct Pictures {
  at::Tensor images, labels;
  std::vector<std::string> names;
};
template <class F>
void weft_visit(Pictures& batch, F&& f) {
  f(batch.images), f(batch.labels), f(batch.names);
}
struct Sample {
  using Batch = Pictures;
  at::Tensor image;
  int label;
  std::string name;
};
template <class F>
void weft_visit(Sample& sample, F&& f) {
  f(sample.image), f(sample.label), f(sample.name);
}

// Squares and crosses with noise.
struct Shapes {
  std::size_t size() const { return 48; }
  Sample get(std::size_t index) const {  // const: workers share the dataset, and none has a copy
    bool const cross = index % 2 == 1;
    auto image = 0.3 * at::rand({1, 8, 8}, weft::data::this_worker().generator());
    for (int64_t i = 1; i < 7; ++i)
      for (int64_t j = 1; j < 7; ++j)
        if (cross ? i == j || i + j == 7 : i == 1 || i == 6 || j == 1 || j == 6) image[0][i][j] += 1;
    return {image, cross, (cross ? "cross-" : "square-") + std::to_string(index)};
  }
};

using Run = weft::Fabric<weft::DDP<>, weft::On<weft::Cpu>>;

int main() {
  return Run::launch(
             {.devices = 2},
             [](Run& fabric) {
               fabric.seed_everything(1);
               auto [model, optimizer] = fabric.setup(
                   torch::nn::Sequential(torch::nn::Flatten(), torch::nn::Linear(64, 2)), weft::AdamW{.lr = 1e-2});
               auto loader = fabric.setup_dataloader(Shapes(), {.batch_size = 8, .shuffle = true, .workers = 2});
               fabric.print("48 shapes, batches of ", loader.options().batch_size, " on each of ", fabric.world_size(),
                            " ranks, ", loader.size(), " steps an epoch");

               double right = 0;
               for (int epoch = 0; epoch < 30; ++epoch) {
                 right = 0;
                 for (Pictures& batch : loader) {
                   if (epoch == 0 && loader.state().samples == 16)
                     fabric.print("the first batch: images ", batch.images.sizes(), ", labels ", batch.labels.sizes(),
                                  ", first name ", batch.names[0].substr(0, batch.names[0].find('-') + 1));
                   auto const scores = model(batch.images);
                   right += scores.argmax(1).eq(batch.labels).sum().item<double>();
                   fabric.backward(torch::nn::functional::cross_entropy(scores, batch.labels));
                   optimizer.step();
                   optimizer.zero_grad();
                 }
               }
               if (fabric.all_reduce(right, weft::ReduceOp::sum) == 48)
                 fabric.print("after 30 epochs every shape is told from the other");

               auto const noise = [&](std::size_t workers) {
                 auto again = fabric.setup_dataloader(Shapes(), {.batch_size = 48, .workers = workers});
                 return again.begin()->images;
               };
               if (noise(0).equal(noise(2))) fabric.print("no worker and two workers give the same noise");
             })
      .exit_code();
}
