#include "ranks.hpp"

#include <torch/nn/cloneable.h>
#include <torch/nn/modules/linear.h>

#include <weft/data_parallel/data_parallel.hpp>
#include <weft/strategy/with_strategy.hpp>

namespace standard {  // tests are compiled several in one file

using namespace test;

struct NetImpl : torch::nn::Cloneable<NetImpl> {  // as DataParallel asks of a model
  NetImpl() { reset(); }
  void reset() override {
    in = register_module("in", torch::nn::Linear(5, 7));
    out = register_module("out", torch::nn::Linear(7, 3));
  }
  at::Tensor forward(at::Tensor const& x) { return out(torch::tanh(in(x))); }
  torch::nn::Linear in = nullptr, out = nullptr;
};
WEFT_MODULE(Net);

TEST_CASE("a program that chooses by name trains under each standard strategy", "[strategy]") {
  for (std::string const name :
       {"dp", "ddp", "ddp_spawn", "ddp_fork", "ddp_notebook", "ddp_find_unused_parameters_true", "fsdp"}) {
    INFO(name);
    auto const loss = weft::with_strategy<weft::standard_strategies<Net>>(name, [](auto chosen) {
      using Strategy = typename decltype(chosen)::type;
      return on_ranks<Strategy>(2, [](Run<Strategy>& fabric) {
        fabric.seed_everything(1);
        auto [model, optimizer] = fabric.setup(Net(), weft::SGD{.lr = 0.1});
        double last = 0;
        for (int step = 0; step < 3; ++step) {
          auto const loss = model(at::ones({4, 5})).pow(2).mean();
          fabric.backward(loss);
          optimizer.step();
          optimizer.zero_grad();
          last = loss.template item<double>();
        }
        return last;
      });
    });
    static double const first = loss;
    CHECK(loss == Catch::Approx(first));
  }
}

}  // namespace standard
