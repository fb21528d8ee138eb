#include "ranks.hpp"
#include "same.hpp"

#include <dlfcn.h>
#include <pthread.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>

#include <c10/core/impl/FakeGuardImpl.h>

#include <weft/data_parallel/data_parallel.hpp>
#include <weft/nn/layers.hpp>
#include <weft/strategy/with_strategy.hpp>

using namespace test;
using Catch::Matchers::ContainsSubstring;
using weft::DataParallel;

namespace {

/// Odd sizes, a 0-dim parameter, a module and a weight that are registered twice, a frozen parameter, one that nobody
/// uses, a buffer that forward writes.
struct NetImpl : torch::nn::Cloneable<NetImpl> {
  NetImpl() { reset(); }
  void reset() override {
    in = register_module("in", weft::nn::Linear(5, 7));
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({7})));
    mix = register_module("mix", torch::nn::Linear(torch::nn::LinearOptions(7, 7).bias(false)));
    again = register_module("again", mix);
    tied = register_parameter("tied", mix->weight);
    drop = register_module("drop", torch::nn::Dropout(0.5));
    list = register_module("list", torch::nn::Sequential(weft::nn::Linear(7, 7), torch::nn::Tanh()));
    scale = register_parameter("scale", torch::full({}, 0.7));
    frozen = register_parameter("frozen", torch::full({7}, 0.3), /*requires_grad=*/false);
    unused = register_parameter("unused", torch::ones({3}));
    rows = register_buffer("rows", torch::zeros({}));
    out = register_module("out", torch::nn::Linear(7, 3));
  }
  at::Tensor forward(at::Tensor const& x, double factor = 1) {
    rows.add_(static_cast<double>(x.size(0)));
    return out(list->forward(again(drop(torch::gelu(mix(norm(in(x) + frozen))))) +
                             at::linear(x.sum(1, true).expand({-1, 7}), tied)) *
               scale * factor);
  }
  weft::nn::Linear in = nullptr;
  torch::nn::Linear mix = nullptr, again = nullptr, out = nullptr;
  torch::nn::LayerNorm norm = nullptr;
  torch::nn::Dropout drop = nullptr;
  torch::nn::Sequential list = nullptr;
  at::Tensor scale, frozen, unused, tied, rows;
};
WEFT_MODULE(Net);

at::Tensor numbers(at::IntArrayRef sizes, uint64_t seed) {
  return at::randn(sizes, at::detail::createCPUGenerator(seed));
}

/// Losses, the input's gradient, parameters' gradients and final weights of some steps with batches of these sizes.
template <class Strategy>
std::vector<at::Tensor> trained(int devices, std::vector<int64_t> const& batches) {
  return on_ranks<Strategy>(devices, [batches](Run<Strategy>& fabric) {
    fabric.seed_everything(1);
    auto [model, optimizer] = fabric.setup(Net(), weft::SGD{.lr = 0.1, .momentum = 0.9});
    model->drop->eval();  // its mask would differ, as it does from one batch to another
    expect(fabric.world_size() == 1 && fabric.is_global_zero(), "one process");
    std::vector<at::Tensor> record;
    for (std::size_t step = 0; step < batches.size(); ++step) {
      auto const x = numbers({batches[step], 5}, 10 + step).requires_grad_();
      auto const y = model(x);
      expect(y.size(0) == batches[step], "all rows");
      auto const loss = y.square().mean();
      fabric.backward(loss);
      record.push_back(loss.detach());
      record.push_back(x.grad());
      record.push_back(fabric.clip_gradients(model, optimizer, weft::ClipNorm{0.5}));
      for (auto const& parameter : model.parameters())
        expect(parameter.grad().defined() == (parameter.requires_grad() && !parameter.is_same(model->unused)),
               "gradients where one device has them");
      for (auto const& parameter : model.parameters())
        if (parameter.grad().defined()) record.push_back(parameter.grad().clone());
      optimizer.step();
      optimizer.zero_grad();
    }
    for (auto const& parameter : model.parameters()) record.push_back(parameter.detach().clone());
    return record;
  });
}

}  // namespace

TEST_CASE(
    "DataParallel equals one device: losses, gradients of inputs and parameters, norms, weights; 1 to 4 replicas, odd "
    "batches",
    "[data_parallel][dp]") {
  std::vector<int64_t> const batches{6, 5, 7, 1, 3, 8};
  auto const one = trained<weft::SingleDevice>(1, batches);
  check_same(trained<DataParallel>(1, batches), one);
  for (int const devices : {2, 3, 4}) {
    INFO(devices << " replicas");
    auto const many = trained<DataParallel>(devices, batches);
    REQUIRE(many.size() == one.size());
    for (std::size_t i = 0; i < one.size(); ++i) CHECK(relative_difference(many[i], one[i]) < 2e-5);
  }
}

TEST_CASE("DataParallel cuts a batch as chunk does", "[data_parallel][dp]") {
  for (int64_t const rows : {0, 1, 2, 3, 5, 8, 9})
    for (int const devices : {1, 2, 3, 4}) {
      INFO(rows << " rows, " << devices << " devices");
      auto const division = weft::data_parallel::division_of(rows, devices);
      auto const parts = at::arange(rows).chunk(devices);
      if (rows == 0) {
        CHECK(division.num_parts == 1);
        continue;
      }
      REQUIRE(static_cast<std::size_t>(division.num_parts) == parts.size());
      for (int part = 0; part < division.num_parts; ++part) {
        CHECK(division.begin(part) == parts[static_cast<std::size_t>(part)][0].item<int64_t>());
        CHECK(division.size(part) == parts[static_cast<std::size_t>(part)].size(0));
      }
    }
}

TEST_CASE("NUM-01: averaging is left to the loss under DataParallel: gradients of parts add up",
          "[data_parallel][dp][known]") {
  struct WeightImpl : torch::nn::Cloneable<WeightImpl> {
    WeightImpl() { reset(); }
    void reset() override { w = register_parameter("w", torch::ones({})); }
    at::Tensor forward(at::Tensor const& x) { return w * x; }
    at::Tensor w;
  };
  auto const gradient = on_ranks<DataParallel>(2, [](Run<DataParallel>& fabric) {
    auto model = fabric.setup(std::make_shared<WeightImpl>());
    fabric.backward(model(torch::tensor({2.0f, 4.0f})).mean());
    return model->w.grad().item<double>();
  });
  CHECK(gradient == 3);
}

namespace {

struct Batch {
  at::Tensor tokens;
  std::vector<at::Tensor> images;
  std::optional<at::Tensor> mask;
  std::string name;
};
template <class F>
void weft_visit(Batch& batch, F&& f) {
  f(batch.tokens);
  f(batch.images);
  f(batch.mask);
}

/// Says what arrives at each replica.
struct SeesImpl : torch::nn::Cloneable<SeesImpl> {
  SeesImpl() { reset(); }
  void reset() override { w = register_parameter("w", torch::ones({})); }
  at::Tensor forward(at::Tensor const& x, at::Tensor const& table, double number, std::string const& text) {
    return at::stack({at::scalar_tensor(static_cast<double>(x.size(0))),
                      at::scalar_tensor(static_cast<double>(table.size(0))), at::scalar_tensor(number),
                      at::scalar_tensor(static_cast<double>(text.size()))})
               .unsqueeze(0) *
           w;
  }
  std::map<std::string, at::Tensor> nested(Batch const& batch, std::pair<at::Tensor, at::Tensor> const& more) {
    return {{"tokens", batch.tokens * w},
            {"images", at::cat(batch.images, 1)},
            {"mask", batch.mask ? *batch.mask : at::Tensor()},
            {"sum", more.first.sum()},
            {"scalar", more.second.expand({1})}};
  }
  at::Tensor total(at::Tensor const& x) { return (x * w).sum(); }
  at::Tensor training_step(at::Tensor const& x) { return total(x); }
  std::vector<at::Tensor> uneven(at::Tensor const& x) {
    return std::vector<at::Tensor>(static_cast<std::size_t>(x.size(0)), x);
  }
  at::Tensor by_rows(at::Tensor const& x) { return at::ones({2, x.size(0)}); }
  void nothing(at::Tensor const& x) {
    ++calls();
    expect(x.size(0) == 2, "two rows");
  }
  static int& calls() {
    static int count = 0;
    return count;
  }
  at::Tensor w;
};
WEFT_MODULE(Sees);

template <class Function>
auto with_devices(int devices, Function function) {
  return on_ranks<DataParallel>(devices, [function](Run<DataParallel>& fabric) {
    auto model = fabric.setup(Sees());
    return function(fabric, model);
  });
}

}  // namespace

TEST_CASE("DAT-04: tensors are cut along dim 0 alike; weft::whole, numbers and strings go to each device as they are",
          "[data_parallel][dp][known]") {
  auto const seen = with_devices(
      2, [](auto&, auto& model) { return model(numbers({6, 4}, 1), weft::whole(numbers({5, 4}, 2)), 0.5, "four"); });
  CHECK(seen.equal(torch::tensor({{3.f, 5.f, 0.5f, 4.f}, {3.f, 5.f, 0.5f, 4.f}})));
  auto const message = with_devices(2, [](auto&, auto& model) {
    return message_of([&] { model(numbers({6, 4}, 1), numbers({5, 4}, 2), 0.5, std::string("four")); });
  });
  CHECK_THAT(message, ContainsSubstring("argument 0 has 6 rows and argument 1 has 5; write weft::whole(x)"));
  // To other strategies weft::whole(x) is x.
  auto const single = on_ranks<weft::SingleDevice>(1, [](auto& fabric) {
    return fabric.setup(Sees())(numbers({6, 4}, 1), weft::whole(numbers({5, 4}, 2)), 0.5, "four");
  });
  CHECK(single.equal(torch::tensor({{6.f, 5.f, 0.5f, 4.f}})));
}

TEST_CASE("DAT-04: structs, vectors, optionals and pairs are cut inside; outputs in containers are put together",
          "[data_parallel][dp][known]") {
  Batch const batch{numbers({5, 2}, 1), {numbers({5, 1}, 2), numbers({5, 3}, 3)}, std::nullopt, "name"};
  auto const scalar = torch::tensor(3.0f);
  for (int const devices : {1, 2, 3}) {
    auto const outputs = with_devices(devices, [&](auto&, auto& model) {
      return model.template call<&SeesImpl::nested>(batch, std::pair(batch.tokens, scalar));
    });
    CHECK(outputs.at("tokens").equal(batch.tokens));
    CHECK(outputs.at("images").equal(at::cat(batch.images, 1)));
    CHECK_FALSE(outputs.at("mask").defined());
    CHECK(outputs.at("sum").dim() == (devices == 1 ? 0 : 1));  // no rows: an element for each device
    CHECK(outputs.at("sum").sum().item<double>() == Catch::Approx(batch.tokens.sum().item<double>()));
    CHECK(outputs.at("scalar").equal(scalar.expand({devices})));
  }
  CHECK(batch.tokens.size(0) == 5);  // the caller's own is not changed
}

TEST_CASE("DAT-04: scalar outputs become a vector, and outputs that do not fit are an error with their sizes",
          "[data_parallel][dp][known]") {
  with_devices(3, [](auto& fabric, auto& model) {
    auto const x = numbers({7, 2}, 1);
    auto const totals = model.template call<&SeesImpl::total>(x);
    expect(totals.sizes() == at::IntArrayRef({3}) && totals.requires_grad(), "one total for each device");
    expect(model.training_step(x).equal(totals), "a method by its name, on all devices");
    fabric.backward(totals.sum());
    expect(relative_difference(model->w.grad(), x.sum()) < 1e-6, "one device's gradient");
    expect(contains(message_of([&] { model.template call<&SeesImpl::by_rows>(x); }),
                    "output 0 is [2, 3] of Float on device 0 and [2, 1] of Float on device 2"),
           "sizes");
    expect(contains(message_of([&] { model.template call<&SeesImpl::uneven>(x); }),
                    "device 0 gave 3 tensors and device 2 gave 1"),
           "numbers of tensors");
    model.template call<&SeesImpl::nothing>(numbers({6, 1}, 1));
    expect(SeesImpl::calls() == 3, "each device called");
    expect(message_of([&] { model.template call<&SeesImpl::nothing>(numbers({7, 1}, 1)); }) == "expected: two rows",
           "the replica's own exception");
    return true;
  });
}

TEST_CASE(
    "DataParallel keeps the buffers of the first device, and its modes: training, no_grad, dropout, random numbers",
    "[data_parallel][dp]") {
  on_ranks<DataParallel>(3, [](Run<DataParallel>& fabric) {
    fabric.seed_everything(3);
    auto model = fabric.setup(Net());
    auto const x = numbers({7, 5}, 1);
    model->drop->eval();
    fabric.seed_everything(3);
    auto const before = torch::rand({1});
    fabric.seed_everything(3);
    auto const y = model(x);
    expect(before.equal(torch::rand({1})), "clones draw no random numbers");
    expect(model->rows.item<double>() == 3, "the first replica's rows are kept");
    {
      at::NoGradGuard const no_grad;
      expect(!model(x).requires_grad(), "no_grad reaches all replicas");
    }
    model->drop->train();
    fabric.seed_everything(4);
    auto const a = model(x);
    fabric.seed_everything(4);
    expect(a.equal(model(x)) && !a.equal(y), "dropout drops, alike for one seed");
    model.eval();
    expect(relative_difference(model(x), y) < 1e-6, "eval reaches all replicas");
    expect(!model(x).equal(model(x, 2.0)), "an argument instead of a default");
    // Two forwards before one backward, and a step between a forward and the next: replicas are those of their call.
    fabric.backward(model(x).sum() + model(2 * x).sum());
    auto const first = model->out->weight.grad().clone();
    model->zero_grad();
    fabric.backward(model(x).sum());
    fabric.backward(model(2 * x).sum());
    expect(relative_difference(model->out->weight.grad(), first) < 1e-5, "gradients accumulate");
    auto const shape = model(at::zeros({0, 5}));
    expect(shape.sizes() == at::IntArrayRef({0, 3}), "an empty batch");
    return true;
  });
}

TEST_CASE("DataParallel in autocast: every replica computes in the lower dtype", "[data_parallel][dp]") {
  auto const low = on_ranks<DataParallel>(3, [](Run<DataParallel>& fabric) {
    auto model = fabric.setup(weft::nn::Linear(3, 2));
    at::autocast::set_autocast_enabled(at::kCPU, true);
    auto const y = model(numbers({5, 3}, 1));
    at::autocast::set_autocast_enabled(at::kCPU, false);
    return y.scalar_type() == at::kBFloat16;  // outputs of different dtypes would not be put together
  });
  CHECK(low);
}

TEST_CASE("precisions under DataParallel: the numbers of one device, on the replicas, too", "[data_parallel][dp]") {
  auto const run = []<class Strategy, class Precision>(std::type_identity<Strategy>, std::type_identity<Precision>,
                                                       int devices) {
    using Fabric = weft::Fabric<Strategy, Precision, weft::On<weft::Cpu>>;
    auto outcome = Fabric::launch({.devices = devices}, [](Fabric& fabric) {
      fabric.seed_everything(1);
      auto [model, optimizer] = fabric.setup(Net(), weft::SGD{.lr = 0.1});
      model->drop->eval();
      auto const y = model(numbers({7, 5}, 1), weft::as_is(1.0));
      fabric.backward(y.square().mean());
      optimizer.step();
      return std::vector<at::Tensor>{y.detach(), model->out->weight.detach()};
    });
    if (!outcome) FAIL(outcome.failures().front().message);
    return std::move(*outcome);
  };
  auto const check = [&]<class Precision>(std::type_identity<Precision> precision) {
    auto const one = run(std::type_identity<weft::SingleDevice>(), precision, 1),
               three = run(std::type_identity<DataParallel>(), precision, 3);
    for (std::size_t i = 0; i < one.size(); ++i) {
      CHECK(three[i].scalar_type() == one[i].scalar_type());
      CHECK(relative_difference(three[i].to(at::kFloat), one[i].to(at::kFloat)) < 1e-2);
    }
  };
  check(std::type_identity<weft::Bf16Mixed>());
  check(std::type_identity<weft::Bf16>());
}

TEST_CASE("BatchNorm under DataParallel normalizes each part by itself and keeps the first device's statistics",
          "[data_parallel][dp]") {
  on_ranks<DataParallel>(2, [](Run<DataParallel>& fabric) {
    auto model = fabric.setup(torch::nn::Sequential(torch::nn::BatchNorm1d(3)));
    auto const x = numbers({8, 3}, 1);
    auto const y = model(x);
    torch::nn::BatchNorm1d alone(3), other(3);
    auto const expected = at::cat({alone(x.narrow(0, 0, 4)), other(x.narrow(0, 4, 4))});
    expect(y.equal(expected), "two batches of four");
    expect(model->buffers()[0].equal(alone->running_mean), "statistics of the first four");
    return true;
  });
}

TEST_CASE("collectives of DataParallel are those of one process: values keep their shape, whatever the operation",
          "[data_parallel][dp]") {
  on_ranks<DataParallel>(3, [](Run<DataParallel>& fabric) {
    auto const x = torch::tensor({{1.f, 2.f}, {3.f, 4.f}});
    for (auto const op : {weft::ReduceOp::average, weft::ReduceOp::sum, weft::ReduceOp::max})
      expect(fabric.all_reduce(x, op).equal(x), "x itself");
    expect(fabric.all_gather(x).sizes() == at::IntArrayRef({1, 2, 2}), "one rank's");
    expect(fabric.broadcast(std::string("x")) == "x" && fabric.all_of(true), "one process decides");
    fabric.barrier();
    return true;
  });
}

namespace {

struct BlockImpl : torch::nn::Cloneable<BlockImpl> {
  BlockImpl() { reset(); }
  void reset() override {
    up = register_module("up", torch::nn::Linear(6, 9));
    down = register_module("down", torch::nn::Linear(9, 6));
  }
  at::Tensor forward(at::Tensor const& x) { return x + down(at::dropout(up(x).tanh(), 0.2, is_training())); }
  torch::nn::Linear up = nullptr, down = nullptr;
};
WEFT_MODULE(Block);

template <class... Policies>
std::vector<at::Tensor> blocks_trained(int devices) {
  using Fabric = weft::Fabric<DataParallel, weft::On<weft::Cpu>, Policies...>;
  auto outcome = Fabric::launch({.devices = devices}, [](Fabric& fabric) {
    fabric.seed_everything(3);
    auto [model, optimizer] = fabric.setup(torch::nn::Sequential(Block(), Block()), weft::AdamW{.lr = 0.01});
    std::vector<at::Tensor> weights;
    for (int step = 0; step < 2; ++step) {
      fabric.backward(model(torch::randn({5, 6})).pow(2).mean());
      optimizer.step();
      optimizer.zero_grad();
    }
    for (auto const& parameter : model.parameters()) weights.push_back(parameter.detach().clone());
    return weights;
  });
  if (!outcome) FAIL(outcome.failures().front().message);
  return std::move(*outcome);
}

}  // namespace

TEST_CASE("recomputed and offloaded activations under DataParallel: the bits of kept ones, on the clones, too",
          "[data_parallel][dp][recompute]") {
  for (int const devices : {1, 3}) {
    auto const kept = blocks_trained<>(devices);
    check_same(blocks_trained<weft::ActivationCheckpointing<Block>>(devices), kept);
    check_same(blocks_trained<weft::OffloadActivations<Block>>(devices), kept);
  }
}

TEST_CASE("a model built without memory is whole before DataParallel clones it", "[data_parallel][dp]") {
  auto const run = [](bool deferred) {
    return on_ranks<DataParallel>(2, [deferred](Run<DataParallel>& fabric) {
      fabric.seed_everything(5);
      auto model = fabric.setup(fabric.init_module<weft::nn::Linear>(weft::Init{.deferred = deferred}, 4, 3));
      return model(numbers({5, 4}, 1));
    });
  };
  CHECK(run(true).equal(run(false)));
}

TEST_CASE("what DataParallel cannot do is an error that says what to write", "[data_parallel][dp]") {
  struct TakesImpl : torch::nn::Cloneable<TakesImpl> {
    TakesImpl() { reset(); }
    void reset() override { w = register_parameter("w", torch::ones({})); }
    at::Tensor forward(std::shared_ptr<at::Tensor> const& x) { return w * *x; }
    at::Tensor w;
  };
  struct PlainImpl : torch::nn::Module {
    PlainImpl() { w = register_parameter("w", torch::ones({2})); }
    at::Tensor forward(at::Tensor const& x) { return w * x; }
    at::Tensor w;
  };
  CHECK_THAT(failure_on_ranks<DataParallel>(2, [](auto& fabric) { fabric.setup(std::make_shared<PlainImpl>()); }),
             ContainsSubstring("derive it and the modules in it from torch::nn::Cloneable"));
  CHECK(failure_on_ranks<DataParallel>(1, [](auto& fabric) {
          fabric.setup(std::make_shared<PlainImpl>())(torch::ones({3, 2}));
        }) == "the job did not fail");  // nothing to clone
  CHECK_THAT(failure_on_ranks<DataParallel>(2,
                                            [](auto& fabric) {
                                              auto const shared = std::make_shared<at::Tensor>(torch::ones({4, 2}));
                                              fabric.setup(std::make_shared<TakesImpl>())(shared);
                                            }),
             ContainsSubstring("a tensor behind a shared pointer"));
  CHECK_THAT(failure_on_ranks<DataParallel>(2,
                                            [](auto& fabric) {
                                              fabric.setup(std::make_shared<TakesImpl>())(
                                                  weft::whole(std::make_shared<at::Tensor>(torch::ones({4, 2}))));
                                            }),
             ContainsSubstring("a tensor behind a shared pointer"));
  auto const on_two_nodes = Run<DataParallel>::launch({.devices = 2, .num_nodes = 2}, [](auto&) {});
  CHECK_THAT(on_two_nodes.failures().front().message,
             ContainsSubstring("DataParallel runs on one node, but num_nodes = 2; write DDP<>"));
  auto const listed = Run<DataParallel>::launch({.devices = "0,1"}, [](auto&) {});
  CHECK_THAT(listed.failures().front().message, ContainsSubstring("write a number of processes"));
}

TEST_CASE("CPP-06: a node with CUDA devices and a program without CUDA is an error that names the library",
          "[data_parallel][dp][known]") {
  if (at::hasCUDA()) SKIP("this program has CUDA");
  weft::launch::Machine const machine{[] { return 2; }, nullptr};
  CHECK_THAT(message_of([&] { weft::launch::single_session(machine, {}, /*several_devices=*/true); }),
             ContainsSubstring("link libtorch_cuda and libc10_cuda, with -Wl,--no-as-needed"));
  CHECK_THAT(message_of([&] { weft::launch::single_session(machine, {}); }),
             ContainsSubstring("shows 2 CUDA device(s)"));
}

TEST_CASE("a program with DataParallel on one device, then on two and three", "[.recommendation]") {
  with_devices(1, [](auto&, auto&) { return true; });
  std::fputs("several:\n", stderr);
  for (int const devices : {2, 3}) with_devices(devices, [](auto&, auto&) { return true; });
}

TEST_CASE("DataParallel says once in a program that DDP is faster, if it is on several devices",
          "[data_parallel][dp]") {
  auto const command = std::filesystem::read_symlink("/proc/self/exe").string() +
                       " [.recommendation] 2>&1";  // here another test may have heard it
  auto* const program = ::popen(command.c_str(), "r");
  REQUIRE(program);
  std::string output;
  for (std::array<char, 4096> part; auto const size = std::fread(part.data(), 1, part.size(), program);)
    output.append(part.data(), size);
  INFO(output);
  CHECK(::pclose(program) == 0);
  std::string const sentence = "DDP<> keeps a process and a copy on each device";
  auto const several = output.find("several:"), first = output.find(sentence);
  REQUIRE(first != output.npos);
  CHECK(several < first);
  CHECK(output.find(sentence, first + 1) == output.npos);
}

TEST_CASE("dp is Fabric's name of DataParallel", "[data_parallel][dp]") {
  auto const devices = weft::with_strategy<weft::Named<"dp", DataParallel>, weft::Named<"single", weft::SingleDevice>>(
      "dp", []<class Strategy>(std::type_identity<Strategy>) {
        return on_ranks<Strategy>(2, [](Run<Strategy>& fabric) { return fabric.session().devices.size(); });
      });
  CHECK(devices == 2);
}

namespace {

/// A device whose current stream is a number, of each thread's own.
using Fake = c10::impl::FakeGuardImpl<c10::DeviceType::PrivateUse1>;
std::vector<at::Device> fake_devices() {
  static c10::impl::DeviceGuardImplRegistrar const registered(c10::DeviceType::PrivateUse1, new Fake);
  return {{c10::DeviceType::PrivateUse1, 0}, {c10::DeviceType::PrivateUse1, 1}, {c10::DeviceType::PrivateUse1, 2}};
}

std::atomic<int> threads_left = -1;  // that may still begin; below 0: all

}  // namespace

extern "C" int pthread_create(pthread_t* thread, pthread_attr_t const* attributes, void* (*function)(void*),
                              void* argument) noexcept {
  static auto* const real = reinterpret_cast<decltype(&::pthread_create)>(::dlsym(RTLD_NEXT, "pthread_create"));
  if (threads_left >= 0 && threads_left-- == 0) return EAGAIN;
  return real(thread, attributes, function, argument);
}

TEST_CASE("each replica computes in the caller's stream on its device", "[data_parallel][dp]") {
  auto const devices = fake_devices();
  for (auto const& device : devices)
    Fake().exchangeStream(c10::Stream(c10::Stream::UNSAFE, device, 10 + device.index()));
  std::vector<std::pair<int, int>> found(3);
  weft::data_parallel::run_parts(devices, 3, [&](int part) {
    found[static_cast<std::size_t>(part)] = {
        Fake::getDeviceIndex(), static_cast<int>(Fake::getCurrentStreamIdFor(static_cast<c10::DeviceIndex>(part)))};
  });
  CHECK(found == std::vector<std::pair<int, int>>{{0, 10}, {1, 11}, {2, 12}});
  Fake::resetStreams();
}

TEST_CASE("a replica whose thread cannot begin is an exception, when those that have begun are through",
          "[data_parallel][dp]") {
  auto const devices = fake_devices();
  std::atomic<int> ended = 0;
  threads_left = 1;
  CHECK_THROWS_AS(weft::data_parallel::run_parts(devices, 3,
                                                 [&](int) {
                                                   std::this_thread::sleep_for(std::chrono::milliseconds(20));
                                                   ++ended;
                                                 }),
                  std::system_error);
  threads_left = -1;
  CHECK(ended == 1);
}
