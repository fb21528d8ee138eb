// 23_sync_batch_norm.cpp -- BatchNorm over the batches of all ranks.
//
// With a few rows on each rank, statistics of a rank's own batch are noise. convert_sync_batchnorm lets each
// weft::nn::BatchNorm of a model normalize as one process would with all rows in one batch. The layers stay where they
// are: names, parameters, buffers and the members that hold them.
//
// run: 4
// expect: own statistics:   running mean differs from one process's by 0.008
// expect: own statistics:   outputs differ by 1.
// expect: synchronized:     running mean differs from one process's by 0.000
// expect: synchronized:     outputs differ by 0.000
#include <cstdio>
#include <cstdlib>
#include <utility>

#include <weft/nn/convolution.hpp>
#include <weft/nn/sync_batch_norm.hpp>
#include <weft/weft.hpp>

struct NetImpl : torch::nn::Module {
  NetImpl() {
    conv = register_module("conv", weft::nn::Conv2d(weft::nn::Conv2dOptions(1, 3, 3)));
    norm = register_module("norm", weft::nn::BatchNorm2d(3));
  }
  at::Tensor forward(at::Tensor const& x) { return norm(conv(x)); }
  weft::nn::Conv2d conv = nullptr;
  weft::nn::BatchNorm2d norm = nullptr;
};
TORCH_MODULE(Net);

using Run = weft::Fabric<weft::DDP<>, weft::On<weft::Cpu>>;

int main(int argc, char** argv) {
  auto outcome = Run::launch({.devices = argc > 1 ? std::atoi(argv[1]) : 4}, [](Run& fabric) {
    auto const images = [] { return at::randn({8, 1, 5, 5}) * at::linspace(0.5, 3, 8).view({8, 1, 1, 1}); };
    for (bool const synchronized : {false, true}) {
      fabric.seed_everything(7);
      Net net, whole;  // one process has the same weights and all rows
      for (std::size_t i = 0; i < net->parameters().size(); ++i)
        whole->parameters()[i].set_data(net->parameters()[i].detach().clone());
      if (synchronized) weft::convert_sync_batchnorm(fabric, net);
      auto model = fabric.setup(net);

      auto const x = images();
      auto const rows = x.size(0) / fabric.world_size(), first = rows * fabric.global_rank();
      auto const y = model(x.narrow(0, first, rows));
      auto const expected = whole(x).narrow(0, first, rows);
      char const* const name = synchronized ? "synchronized:    " : "own statistics:  ";
      char line[120];
      std::snprintf(line, sizeof line, "%s running mean differs from one process's by %.5f", name,
                    (net->norm->running_mean - whole->norm->running_mean).abs().max().item<double>());
      fabric.print(line);
      std::snprintf(line, sizeof line, "%s outputs differ by %.5f", name,
                    fabric.all_reduce((y - expected).abs().max().item<double>(), weft::ReduceOp::max));
      fabric.print(line);
    }
  });
  return outcome.exit_code();
}
