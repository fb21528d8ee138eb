// 14_fine_tuning.cpp -- methods beside forward, and weights of which a part is taken.
//
// A classifier learns on the body of a model that was trained before: the body's weights come from a file, the head is
// new, and the file that is written has the head alone.
//
// run: 2
// expect: of the file: 2 loaded, 2 left there
// expect: the body has not moved: true
// expect: the head's file has: head.bias head.weight
// expect: accuracy above 0.9: true
#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>

#include <unistd.h>

#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/linear.h>

#include <weft/checkpoints/safetensors.hpp>
#include <weft/nn/layers.hpp>
#include <weft/weft.hpp>

using Run = weft::Fabric<weft::DDP<>, weft::On<weft::Cpu>>;

struct ClassifierImpl : torch::nn::Module {
  explicit ClassifierImpl(int64_t classes) {
    body = register_module("body", torch::nn::Linear(2, 16));
    head = register_module("head", torch::nn::Linear(16, classes));
  }
  at::Tensor forward(at::Tensor const& x) { return head(at::tanh(body(x))); }
  // model.training_step(...) runs this as the model's forward; validation_step, test_step and predict_step are known,
  // too.
  at::Tensor training_step(at::Tensor const& x, at::Tensor const& label) {
    return torch::nn::functional::cross_entropy(forward(x), label);
  }
  // Any other method: model.call<&ClassifierImpl::accuracy>(...).
  double accuracy(at::Tensor const& x, at::Tensor const& label) {
    return forward(x).argmax(1).eq(label).to(at::kFloat).mean().item<double>();
  }
  torch::nn::Linear body = nullptr, head = nullptr;
};
TORCH_MODULE(Classifier);

int main(int argc, char** argv) {
  int const devices = argc > 1 ? std::atoi(argv[1]) : 2;
  auto const folder = std::filesystem::temp_directory_path() / ("weft_14_" + std::to_string(::getpid()));
  std::filesystem::create_directory(folder);
  auto const is_of = [](std::string part) {
    return [part](std::string_view name, at::Tensor const&) { return name.starts_with(part); };
  };

  auto outcome = Run::launch({.devices = devices}, [&](Run& fabric) {
    fabric.seed_everything(7);
    fabric.save_weights(folder / "pretrained.safetensors", fabric.setup(Classifier(10)));

    Classifier module(2);  // another head: the file's does not fit
    auto const report = fabric.load_raw(folder / "pretrained.safetensors", module, {.filter = is_of("body.")});
    fabric.print("of the file: ", report.loaded.size(), " loaded, ", report.filtered.size(), " left there");
    for (auto& parameter : module->body->parameters()) parameter.requires_grad_(false);
    auto const before = module->body->weight.clone();

    auto [model, optimizer] = fabric.setup(module, weft::AdamW{.lr = 0.1});
    auto const x = at::randn({64, 2});
    auto const label = x.select(1, 0).gt(x.select(1, 1)).to(at::kLong);
    for (int step = 0; step < 60; ++step) {
      fabric.backward(model.training_step(x, label));
      optimizer.step();
      optimizer.zero_grad();
    }
    fabric.print("the body has not moved: ", before.equal(model->body->weight) ? "true" : "false");

    fabric.save_weights(folder / "head.safetensors", model, {.filter = is_of("head.")});
    std::string names;
    for (auto const& [name, tensor] : weft::checkpoints::load_safetensors((folder / "head.safetensors").string()))
      names += " " + name;
    fabric.print("the head's file has:", names);
    fabric.print("accuracy above 0.9: ",
                 fabric.all_reduce(model.call<&ClassifierImpl::accuracy>(x, label)) > 0.9 ? "true" : "false");
  });
  std::filesystem::remove_all(folder);
  return outcome.exit_code();
}
