#include "ranks.hpp"

#include <weft/nn/embedding.hpp>
#include <weft/nn/linear.hpp>
#include <weft/nn/normalization.hpp>

using namespace test;

namespace {

/// Odd sizes, a 0-dim parameter, a normalization, a weight that is used twice.
struct OddImpl : torch::nn::Module {
  OddImpl() {
    in = register_module("in", torch::nn::Linear(5, 7));
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({7})));
    mix = register_module("mix", torch::nn::Linear(torch::nn::LinearOptions(7, 7).bias(false)));
    scale = register_parameter("scale", torch::full({}, 0.7));
    out = register_module("out", torch::nn::Linear(7, 3));
  }
  at::Tensor forward(at::Tensor const& x) { return out(mix(torch::gelu(mix(norm(in(x))))) * scale); }
  torch::nn::Linear in = nullptr, mix = nullptr, out = nullptr;
  torch::nn::LayerNorm norm = nullptr;
  at::Tensor scale;
};
TORCH_MODULE(Odd);

/// NUM-07: the last layer shares weight and bias with the first, a norm between, dim halved in the middle.
struct TiedImpl : torch::nn::Module {
  TiedImpl() {
    first = register_module("first", torch::nn::Linear(8, 8));
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({8})));
    down = register_module("down", torch::nn::Linear(8, 4));
    up = register_module("up", torch::nn::Linear(4, 8));
    last = register_module("last", first);
  }
  at::Tensor forward(at::Tensor const& x) { return last(up(torch::relu(down(norm(first(x)))))); }
  torch::nn::Linear first = nullptr, down = nullptr, up = nullptr, last = nullptr;
  torch::nn::LayerNorm norm = nullptr;
};
TORCH_MODULE(Tied);

/// Everything that has to agree: losses, gradient norms, last gradients, final weights.
using Record = std::pair<std::vector<double>, std::vector<at::Tensor>>;

template <class Module, class Strategy, class Description>
Record train(int world, Description description, int64_t inputs, int64_t accumulate) {
  return on_ranks<Strategy>(world, [=](Run<Strategy>& fabric) {
    fabric.seed_everything(1);
    Module module;
    auto [model, optimizer] = fabric.setup(module, description);
    Record record;
    int64_t const global = 12, local = global / fabric.world_size();
    for (int64_t step = 0; step < 20; ++step) {
      double loss_sum = 0;
      for (int64_t micro = 0; micro < accumulate; ++micro) {
        auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(100 + step * accumulate + micro));
        auto const x = at::randn({global, inputs}, generator).narrow(0, fabric.global_rank() * local, local);
        auto const guard = fabric.no_backward_sync(model, micro + 1 < accumulate);
        auto const loss = model(x).pow(2).mean() / static_cast<double>(accumulate);
        fabric.backward(loss);
        loss_sum += loss.template item<double>();
      }
      record.first.push_back(fabric.all_reduce(loss_sum));
      record.first.push_back(fabric.clip_gradients(model, optimizer, weft::ClipNorm{0.5}).template item<double>());
      if (step == 19)
        for (auto const& parameter : model.parameters()) record.second.push_back(parameter.grad().clone());
      optimizer.step();
      optimizer.zero_grad();
    }
    for (auto const& parameter : model.parameters()) record.second.push_back(parameter.detach().clone());
    // Every rank must have come to the same bits.
    for (auto const& tensor : record.second) {
      auto const all = fabric.all_gather(tensor);
      for (int64_t rank = 0; rank < all.size(0); ++rank) expect(all[rank].equal(tensor), "equal bits on all ranks");
    }
    return record;
  });
}

template <class Module, class Strategy, class Description>
void compare(Description description, int64_t inputs, int64_t accumulate = 1) {
  auto const reference = train<Module, weft::SingleDevice>(1, description, inputs, accumulate);
  for (int world : {1, 2, 3, 4}) {
    INFO("world " << world);
    auto const record = train<Module, Strategy>(world, description, inputs, accumulate);
    REQUIRE(record.first.size() == reference.first.size());
    for (std::size_t i = 0; i < record.first.size(); ++i)
      CHECK(record.first[i] == Catch::Approx(reference.first[i]).epsilon(1e-5));
    REQUIRE(record.second.size() == reference.second.size());
    for (std::size_t i = 0; i < record.second.size(); ++i)
      CHECK(relative_difference(record.second[i], reference.second[i]) < 1e-4);
  }
}

}  // namespace

TEST_CASE("DDP equals one process: losses, gradient norms, gradients, weights; worlds 1 to 4", "[data_parallel]") {
  SECTION("SGD with momentum") { compare<Odd, weft::DDP<>>(weft::SGD{.lr = 0.1, .momentum = 0.9}, 5); }
  SECTION("AdamW, accumulating 3 micro-batches") { compare<Odd, weft::DDP<>>(weft::AdamW{.lr = 1e-2}, 5, 3); }
  SECTION("small buckets") { compare<Odd, weft::DDP<weft::Bucket<64>>>(weft::SGD{.lr = 0.1}, 5); }
  SECTION("one bucket for each parameter") { compare<Odd, weft::DDP<weft::Bucket<1>>>(weft::SGD{.lr = 0.1}, 5); }
  SECTION("gradients beside the buckets") {
    compare<Odd, weft::DDP<weft::GradientsInBuckets<false>>>(weft::SGD{.lr = 0.1}, 5);
  }
  SECTION("find-unused where nothing is unused") { compare<Odd, weft::DDP<weft::FindUnused>>(weft::SGD{.lr = 0.1}, 5); }
  SECTION("static graph") { compare<Odd, weft::DDP<weft::StaticGraph>>(weft::SGD{.lr = 0.1}, 5); }
  SECTION("static graph, accumulating") { compare<Odd, weft::DDP<weft::StaticGraph>>(weft::SGD{.lr = 0.1}, 5, 2); }
}

TEST_CASE("NUM-07: stage parity: tied first and last layer, accumulation 2", "[data_parallel][known]") {
  compare<Tied, weft::DDP<>>(weft::SGD{.lr = 0.05}, 8, 2);
  compare<Tied, weft::DDP<weft::StaticGraph>>(weft::AdamW{.lr = 1e-2}, 8, 2);
}

TEST_CASE("NUM-20: a parameter shared by two modules stays one parameter", "[data_parallel][known]") {
  auto const names = on_ranks(2, [](Run<>& fabric) {
    auto model = fabric.setup(Tied());
    expect(model->first->weight.is_same(model->last->weight), "one tensor under both names");
    std::vector<std::string> names;
    for (auto const& row : model.table().rows()) {
      names.push_back(row.name);
      for (auto const& alias : row.aliases) names.push_back(row.name + " = " + alias);
    }
    return names;
  });
  CHECK(names == std::vector<std::string>{"first.weight", "first.weight = last.weight", "first.bias",
                                          "first.bias = last.bias", "norm.weight", "norm.bias", "down.weight",
                                          "down.bias", "up.weight", "up.bias"});
}

namespace {

/// NUM-20: an embedding and a head share their weight; the head's bias is its own.
struct SharedWeightImpl : torch::nn::Module {
  struct HeadImpl : torch::nn::Module {
    explicit HeadImpl(at::Tensor shared) {
      weight = register_parameter("weight", std::move(shared));
      bias = register_parameter("bias", torch::zeros({10}));
    }
    at::Tensor weight, bias;
  };
  SharedWeightImpl() {
    embedding = register_module("embedding", torch::nn::Embedding(10, 4));
    head = register_module("head", std::make_shared<HeadImpl>(embedding->weight));
  }
  at::Tensor forward(at::Tensor const& x) {
    auto const hidden = embedding(x.abs().mul(3).to(at::kLong).clamp_max(9)).sum(1);
    return at::linear(hidden, head->weight, head->bias);
  }
  torch::nn::Embedding embedding = nullptr;
  std::shared_ptr<HeadImpl> head;
};
TORCH_MODULE(SharedWeight);

}  // namespace

TEST_CASE("NUM-20: an embedding and a head that share one weight train like one process, and stay tied after a load",
          "[data_parallel][known]") {
  compare<SharedWeight, weft::DDP<>>(weft::SGD{.lr = 0.1}, 5);
  auto const tied = on_ranks(2, [](Run<>& fabric) {
    auto model = fabric.setup(SharedWeight());
    auto const path = std::filesystem::temp_directory_path() /
                      ("weft-tied-" + std::to_string(::getppid()) + ".safetensors");
    fabric.save_weights(path, model);
    auto const saved = model->embedding->weight.detach().clone();
    {
      at::NoGradGuard const no_grad;
      model->embedding->weight.zero_();
    }
    fabric.load_weights(path, model);
    fabric.barrier();
    if (fabric.is_global_zero()) std::filesystem::remove(path);
    expect(model->embedding->weight.equal(saved), "the saved values");
    return model->embedding->weight.is_same(model->head->weight) && model.parameters().size() == 2;
  });
  CHECK(tied);
}
