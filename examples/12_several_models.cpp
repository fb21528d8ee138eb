// 12_several_models.cpp -- a GAN: two models, two optimizers, and losses that come through one or both.
//
// Then an encoder and a decoder that share one optimizer and one gradient norm. Both train as in one process.
//
// run: 2
// expect: 2 processes: the GAN's samples have mean
// expect: 2 processes: the reconstruction's error went from
// expect: as in one process: true
// run: 3
// expect: as in one process: true
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <tuple>
#include <utility>

#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <weft/nn/layers.hpp>
#include <weft/weft.hpp>

torch::nn::Sequential net(int64_t in, int64_t out) {
  return torch::nn::Sequential(torch::nn::Linear(in, 16), torch::nn::Tanh(), torch::nn::Linear(16, out));
}

/// This rank's rows of what one process would have.
template <class Run>
at::Tensor share(Run& fabric, at::Tensor const& rows) {
  return rows.chunk(fabric.world_size())[fabric.global_rank()];
}

/// The mean of 600 samples after training; the data's is 3.
template <class Run>
double train_gan(Run& fabric) {
  fabric.seed_everything(1);
  auto [generator, of_generator] = fabric.setup(net(2, 1), weft::Adam{.lr = 0.01, .betas = {0.5, 0.999}});
  auto [discriminator, of_discriminator] = fabric.setup(net(1, 1), weft::Adam{.lr = 0.01, .betas = {0.5, 0.999}});
  for (int step = 0; step < 150; ++step) {
    auto const noise = share(fabric, at::randn({60, 2})), real = share(fabric, at::randn({60, 1}) * 0.5 + 3);
    fabric.backward(at::softplus(-discriminator(real)).mean() +
                    at::softplus(discriminator(generator(noise).detach())).mean());
    of_discriminator.step();
    of_discriminator.zero_grad();
    {
      auto const local =
          fabric.no_backward_sync(discriminator);  // its gradients are dropped below: no need to average them
      fabric.backward(at::softplus(-discriminator(generator(noise))).mean());
    }
    of_generator.step();
    of_generator.zero_grad();
    of_discriminator.zero_grad();
  }
  at::NoGradGuard const no_grad;
  return fabric.all_reduce(generator(share(fabric, at::randn({600, 2}))).mean().template item<double>());
}

/// The error of the reconstruction before and after.
template <class Run>
std::pair<double, double> train_autoencoder(Run& fabric) {
  fabric.seed_everything(2);
  auto encoder = fabric.setup(net(6, 2));
  auto decoder = fabric.setup(net(2, 6));
  auto optimizer = fabric.setup_optimizers(std::tie(encoder, decoder), weft::AdamW{.lr = 0.02});
  auto const x = share(fabric, at::sin(at::rand({60, 1}) * 3 + at::arange(6)));
  std::pair<double, double> errors;
  for (int step = 0; step < 60; ++step) {
    auto const loss = (decoder(encoder(x)) - x).pow(2).mean();
    fabric.backward(loss);
    fabric.clip_gradients(std::tie(encoder, decoder), optimizer, weft::ClipNorm{1.0});  // one norm over both
    optimizer.step();
    optimizer.zero_grad();
    (step == 0 ? errors.first : errors.second) = fabric.all_reduce(loss.template item<double>());
  }
  return errors;
}

template <class Strategy>
std::tuple<double, double, double> train(int devices) {
  using Run = weft::Fabric<Strategy, weft::On<weft::Cpu>>;
  auto outcome = Run::launch({.devices = devices}, [](Run& fabric) {
    double const mean = train_gan(fabric);
    auto const [before, after] = train_autoencoder(fabric);
    return std::tuple(mean, before, after);
  });
  if (!outcome) std::exit(outcome.exit_code());
  return outcome.value();
}

int main(int argc, char** argv) {
  int const devices = argc > 1 ? std::atoi(argv[1]) : 2;
  auto const [mean, before, after] = train<weft::DDP<>>(devices);
  std::printf("%d processes: the GAN's samples have mean %.2f, the data 3\n", devices, mean);
  std::printf("%d processes: the reconstruction's error went from %.2f to %.3f\n", devices, before, after);
  auto const [mean_1, before_1, after_1] = train<weft::SingleDevice>(1);
  bool const alike = std::abs(mean - mean_1) < 0.01 && std::abs(before - before_1) < 1e-5 &&
                     std::abs(after - after_1) < 1e-4;
  std::printf("as in one process: %s\n", alike ? "true" : "false");
  return alike ? 0 : 1;
}
