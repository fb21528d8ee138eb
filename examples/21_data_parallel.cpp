// 21_data_parallel.cpp -- one process, several devices: the batch is cut into rows, the model copied to each device for
// each call.
//
// Gradients of all parts meet at the model, so the numbers are those of one device with the whole batch. On<Cpu> makes
// replicas on the CPU, to try it out; leave it out, and the devices are the GPUs of the node. A model that is copied is
// torch::nn::Cloneable. DDP<>, with a process for each device, is faster.
//
// run: 3
// expect: 1 device:  loss after 400 steps 0.0000
// expect: 3 devices: loss after 400 steps 0.0000
// expect: rows on the first device in the last step: 10, 4
// expect: the largest difference of a weight is below 1e-5
#include <cstdio>
#include <cstdlib>
#include <utility>

#include <weft/data_parallel/data_parallel.hpp>
#include <weft/nn/layers.hpp>
#include <weft/weft.hpp>

/// Picks rows of a table, which is no batch, and adds them to a layer's output.
struct NetImpl : torch::nn::Cloneable<NetImpl> {
  NetImpl() { reset(); }
  void reset() override {
    linear = register_module("linear", weft::nn::Linear(4, 2));
    rows = register_buffer("rows", at::zeros({}, at::kLong));
  }
  at::Tensor forward(at::Tensor const& x, at::Tensor const& index, at::Tensor const& table) {
    rows.fill_(x.size(0));  // kept, since the first device runs the model itself
    return linear(x) + table.index_select(0, index);
  }
  weft::nn::Linear linear = nullptr;
  at::Tensor rows;
};
WEFT_MODULE(Net);

using Run = weft::Fabric<weft::DataParallel, weft::On<weft::Cpu>>;

int main(int argc, char** argv) {
  auto const train = [](int devices) {
    auto outcome = Run::launch({.devices = devices}, [devices](Run& fabric) {
      fabric.seed_everything(7);
      auto [model, optimizer] = fabric.setup(Net(), weft::SGD{.lr = 0.2});
      auto const truth = at::randn({4, 2}), table = at::randn({5, 2});
      double loss_value = 0;
      for (int step = 0; step < 400; ++step) {
        auto const x = at::randn({10, 4}), index = at::randint(5, {10}, at::kLong);
        auto const y = model(
            x, index,
            weft::whole(table));  // x and index are cut along dim 0, alike; the table goes to each device as it is
        auto const loss = (y - x.matmul(truth) - table.index_select(0, index)).square().mean();
        fabric.backward(loss);
        optimizer.step();
        optimizer.zero_grad();
        loss_value = loss.item<double>();
      }
      std::printf("%d device%s loss after 400 steps %.4f\n", devices, devices == 1 ? ": " : "s:", loss_value);
      return std::pair(model->linear->weight.detach().clone(), model->rows.item<int64_t>());
    });
    if (!outcome) std::exit(outcome.exit_code());
    return *outcome;
  };
  auto const one = train(1), many = train(argc > 1 ? std::atoi(argv[1]) : 3);
  std::printf("rows on the first device in the last step: %ld, %ld\n", static_cast<long>(one.second),
              static_cast<long>(many.second));
  bool const close = (one.first - many.first).abs().max().item<double>() < 1e-5;
  std::printf("the largest difference of a weight is %s 1e-5\n", close ? "below" : "above");
  return close ? 0 : 1;
}
