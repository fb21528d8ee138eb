#include "ranks.hpp"
#include "same.hpp"

#include <weft/data_parallel/data_parallel.hpp>
#include <weft/nn/activation.hpp>
#include <weft/nn/linear.hpp>
#include <weft/nn/sync_batch_norm.hpp>

using namespace test;
using Catch::Matchers::ContainsSubstring;

namespace {

using Options = torch::nn::BatchNormOptions;

/// Rows far from zero, different on each rank.
at::Tensor rows(at::IntArrayRef sizes, int seed) {
  return at::randn(sizes, at::detail::createCPUGenerator(static_cast<uint64_t>(seed))) * (1 + seed % 3) + 5;
}

/// What one step of a layer gives: outputs and input gradients of all ranks in order, gradients of weight and bias
/// (summed over ranks), running statistics.
struct Step {
  std::vector<at::Tensor> outputs, input_gradients, rest;
};

template <class Layer>
void add_rest(Step& step, Layer& layer, weft::comm::Communicator* ranks) {
  for (auto const& parameter : layer->parameters()) {
    auto gradient = parameter.grad().clone();
    if (ranks) ranks->all_reduce(gradient);
    step.rest.push_back(gradient);
  }
  for (auto const& buffer : layer->buffers()) step.rest.push_back(buffer.clone());
}

/// The loss of a rank: different for each row.
at::Tensor loss_of(at::Tensor const& y) {
  return (y.to(at::kFloat).pow(3) * at::linspace(0.5, 1.5, y.numel()).view(y.sizes())).sum();
}

/// `numbers[r]` rows on rank r, three steps; every rank's rows by its own layer, synchronized.
template <class Holder>
std::vector<Step> over_ranks(Options const& options, std::vector<int64_t> const& numbers,
                             std::vector<int64_t> const& inner, at::ScalarType dtype, bool last_in_eval) {
  auto const gathered = on_ranks(static_cast<int>(numbers.size()), [=](Run<>& fabric) {
    Holder layer(options);
    fabric.setup(weft::convert_sync_batchnorm(fabric, torch::nn::Sequential(layer, torch::nn::Linear(1, 1))));
    std::vector<std::vector<std::vector<at::Tensor>>> steps;
    for (int step = 0; step < 3; ++step) {
      layer->train(!(last_in_eval && step == 2));
      layer->zero_grad();
      std::vector<int64_t> sizes{numbers[static_cast<std::size_t>(fabric.global_rank())], 3};
      sizes.insert(sizes.end(), inner.begin(), inner.end());
      auto const x = rows(sizes, 10 * step + fabric.global_rank()).to(dtype).requires_grad_();
      auto const y = layer(x);
      expect(y.scalar_type() == dtype, "the input's dtype");
      loss_of(y).backward();
      Step local;
      add_rest(local, layer, fabric.world().get());
      steps.push_back(
          {fabric.all_gather_uneven(y.to(at::kFloat)), fabric.all_gather_uneven(x.grad().to(at::kFloat)), local.rest});
      for (auto const& buffer : layer->buffers())
        expect(fabric.all_gather(buffer).to(at::kDouble).std(0, false).max().template item<double>() == 0,
               "equal statistics on all ranks");
    }
    return steps;
  });
  std::vector<Step> result;
  for (auto const& step : gathered) result.push_back({step[0], step[1], step[2]});
  return result;
}

/// The same by LibTorch's layer in one process, on all ranks' rows in one batch.
template <class Holder>
std::vector<Step> in_one_process(Options const& options, std::vector<int64_t> const& numbers,
                                 std::vector<int64_t> const& inner, at::ScalarType dtype, bool last_in_eval) {
  Holder layer(options);
  std::vector<Step> steps;
  for (int step = 0; step < 3; ++step) {
    layer->train(!(last_in_eval && step == 2));
    layer->zero_grad();
    std::vector<at::Tensor> parts;
    for (std::size_t rank = 0; rank < numbers.size(); ++rank) {
      std::vector<int64_t> sizes{numbers[rank], 3};
      sizes.insert(sizes.end(), inner.begin(), inner.end());
      parts.push_back(rows(sizes, 10 * step + static_cast<int>(rank)).to(dtype));
    }
    auto const x = at::cat(parts).requires_grad_();
    auto const y = layer(x);
    auto loss = at::zeros({});
    Step result;
    for (auto const& part : y.split_with_sizes(numbers)) {
      loss = loss + loss_of(part);
      result.outputs.push_back(part.detach().to(at::kFloat));
    }
    loss.backward();
    for (auto const& part : x.grad().split_with_sizes(numbers)) result.input_gradients.push_back(part.to(at::kFloat));
    add_rest(result, layer, nullptr);
    steps.push_back(std::move(result));
  }
  return steps;
}

template <class Ours, class Theirs>
void compare(Options const& options, std::vector<int64_t> const& numbers, std::vector<int64_t> const& inner,
             at::ScalarType dtype = at::kFloat, double tolerance = 2e-5, bool last_in_eval = true) {
  INFO("rows " << numbers << ", " << dtype);
  auto const ours = over_ranks<Ours>(options, numbers, inner, dtype, last_in_eval);
  auto const theirs = in_one_process<Theirs>(options, numbers, inner, dtype, last_in_eval);
  for (std::size_t step = 0; step < theirs.size(); ++step)
    for (auto const member : {&Step::outputs, &Step::input_gradients, &Step::rest}) {
      REQUIRE((ours[step].*member).size() == (theirs[step].*member).size());
      for (std::size_t i = 0; i < (theirs[step].*member).size(); ++i) {
        INFO("step " << step << ", "
                     << (member == &Step::outputs           ? "output"
                         : member == &Step::input_gradients ? "input gradient"
                                                            : "gradient or buffer")
                     << " " << i);
        auto const &a = (ours[step].*member)[i], &b = (theirs[step].*member)[i];
        REQUIRE(a.sizes() == b.sizes());
        if (b.numel() > 0) CHECK(relative_difference(a.to(at::kDouble), b.to(at::kDouble)) < tolerance);
      }
    }
}

}  // namespace

TEST_CASE(
    "SyncBatchNorm equals one process with all rows: outputs, gradients of inputs and parameters, running statistics",
    "[nn][sync_batch_norm]") {
  using weft::nn::BatchNorm1d, weft::nn::BatchNorm2d, weft::nn::BatchNorm3d;
  compare<BatchNorm1d, torch::nn::BatchNorm1d>(3, {5, 5}, {});
  compare<BatchNorm1d, torch::nn::BatchNorm1d>(3, {4, 1, 7}, {5});
  compare<BatchNorm2d, torch::nn::BatchNorm2d>(3, {2, 3, 1, 4}, {3, 5});
  compare<BatchNorm3d, torch::nn::BatchNorm3d>(Options(3).eps(1e-2), {3, 2}, {2, 3, 2});
}

TEST_CASE("SyncBatchNorm with each option of BatchNorm, one row a rank, and ranks without rows",
          "[nn][sync_batch_norm]") {
  using weft::nn::BatchNorm1d, weft::nn::BatchNorm2d;
  compare<BatchNorm2d, torch::nn::BatchNorm2d>(Options(3).momentum(std::nullopt), {3, 2}, {2, 2});
  compare<BatchNorm1d, torch::nn::BatchNorm1d>(Options(3).affine(false), {3, 2}, {});
  compare<BatchNorm1d, torch::nn::BatchNorm1d>(Options(3).track_running_stats(false), {3, 2}, {}, at::kFloat, 2e-5,
                                               /*last_in_eval=*/false);
  compare<BatchNorm1d, torch::nn::BatchNorm1d>(3, {1, 1, 1}, {});
  compare<BatchNorm1d, torch::nn::BatchNorm1d>(3, {0, 5, 2}, {4});
}

TEST_CASE("SyncBatchNorm of bf16 and fp64 inputs: sums in fp32 at least, outputs in the input's dtype",
          "[nn][sync_batch_norm]") {
  compare<weft::nn::BatchNorm2d, torch::nn::BatchNorm2d>(3, {4, 3}, {3, 3}, at::kBFloat16, 1e-2);
  auto const close = on_ranks(2, [](Run<>& fabric) {
    weft::nn::BatchNorm1d layer(3);
    layer->to(at::kDouble);
    fabric.setup(weft::convert_sync_batchnorm(fabric, torch::nn::Sequential(layer)));
    torch::nn::BatchNorm1d whole(3);
    whole->to(at::kDouble);
    auto const x = at::cat({rows({4, 3}, 1), rows({4, 3}, 2)}).to(at::kDouble) + 1e6;
    auto const y = layer(x.chunk(2)[fabric.global_rank()]);
    return relative_difference(y, whole(x).chunk(2)[fabric.global_rank()]);
  });
  CHECK(close < 1e-9);
  auto const dtype = on_ranks(2, [](Run<>& fabric) {
    auto model = fabric.setup(
        weft::convert_sync_batchnorm(fabric, torch::nn::Sequential(weft::nn::Linear(4, 3), weft::nn::BatchNorm1d(3))));
    at::autocast::set_autocast_enabled(at::kCPU, true);
    auto const y = model(rows({5, 4}, fabric.global_rank()));
    at::autocast::set_autocast_enabled(at::kCPU, false);
    fabric.backward(y.sum());
    return y.scalar_type() == at::kBFloat16 && model.parameters()[0].grad().scalar_type() == at::kFloat;
  });
  CHECK(dtype);
}

namespace {

/// Members that hold their layers, a list, and a layer that is registered twice.
struct NetImpl : torch::nn::Cloneable<NetImpl> {
  NetImpl() { reset(); }
  void reset() override {
    in = register_module("in", weft::nn::Linear(4, 3));
    norm = register_module("norm", weft::nn::BatchNorm1d(3));
    list = register_module("list",
                           torch::nn::Sequential(weft::nn::Linear(3, 3), weft::nn::BatchNorm1d(3), torch::nn::Tanh()));
    out = register_module("out", weft::nn::Linear(3, 2));
  }
  at::Tensor forward(at::Tensor const& x) { return out(list->forward(norm(in(x)))); }
  weft::nn::Linear in = nullptr, out = nullptr;
  weft::nn::BatchNorm1d norm = nullptr;
  torch::nn::Sequential list = nullptr;
};
WEFT_MODULE(Net);

/// Weights and statistics after steps on a batch of 12 rows, divided among the ranks.
template <class Strategy, class... Policies>
std::vector<at::Tensor> trained(int world) {
  using Fabric = weft::Fabric<Strategy, weft::On<weft::Cpu>, Policies...>;
  auto outcome = Fabric::launch({.devices = world}, [](Fabric& fabric) {
    fabric.seed_everything(1);
    auto [model, optimizer] = fabric.setup(weft::convert_sync_batchnorm(fabric, Net()),
                                           weft::SGD{.lr = 0.1, .momentum = 0.9});
    for (int step = 0; step < 4; ++step) {
      auto const local = 12 / fabric.world_size();
      fabric.backward(model(rows({12, 4}, step).narrow(0, fabric.global_rank() * local, local)).square().mean());
      optimizer.step();
      optimizer.zero_grad();
    }
    std::vector<at::Tensor> result;
    auto const whole = fabric.summon_full_params(model);
    for (auto const& parameter : model.parameters()) result.push_back(parameter.detach().clone());
    for (auto const& buffer : model->buffers()) result.push_back(buffer.to(at::kFloat));
    return result;
  });
  if (!outcome) FAIL(outcome.failures().front().message);
  return std::move(*outcome);
}

void check_close(std::vector<at::Tensor> const& a, std::vector<at::Tensor> const& b) {
  REQUIRE(a.size() == b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    INFO("tensor " << i);
    CHECK((a[i] - b[i]).abs().max().item<double>() < 2e-5 * std::max(1.0, b[i].abs().max().item<double>()));
  }
}

}  // namespace

TEST_CASE(
    "a converted model trains like one process under DDP and FSDP, also when its layers are recomputed; worlds 1 to 4",
    "[nn][sync_batch_norm]") {
  auto const one = trained<weft::SingleDevice>(1);
  check_same(trained<weft::DDP<>>(1), one);
  check_same(trained<weft::DataParallel>(1), one);
  for (int const world : {2, 3, 4}) {
    INFO("world " << world);
    check_close(trained<weft::DDP<>>(world), one);
    check_close(trained<weft::FSDP<weft::FullShard, weft::WrapPolicy<weft::nn::Linear, weft::nn::BatchNorm1d>>>(world),
                one);
  }
  check_close(trained<weft::FSDP<weft::ShardGradOp>>(2), one);
  check_same(trained<weft::DDP<>, weft::ActivationCheckpointing<weft::nn::BatchNorm1d>>(2), trained<weft::DDP<>>(2));
}

TEST_CASE(
    "CPP-05: conversion is in place: members, lists and the registry keep one layer, with its names, tensors and "
    "printing",
    "[nn][sync_batch_norm][known]") {
  on_ranks(2, [](Run<>& fabric) {
    Net net;
    auto const tensors = net->named_parameters(), buffers = net->named_buffers();
    std::ostringstream before, after;
    before << *net;
    auto const* const layer = net->norm.get();
    auto model = fabric.setup(net);
    weft::convert_sync_batchnorm(fabric, model);  // after setup, too
    after << *net;
    expect(net->norm.get() == layer && net->named_modules()["norm"].get() == layer, "the same layer");
    for (auto const& tensor : net->named_parameters())
      expect(tensor.value().is_same(tensors[tensor.key()]), tensor.key());
    for (auto const& buffer : net->named_buffers()) expect(buffer.value().is_same(buffers[buffer.key()]), buffer.key());
    expect(before.str() == after.str(), "printed alike");
    fabric.backward(model(rows({3, 4}, fabric.global_rank())).sum());
    expect(fabric.all_gather(net->norm->running_mean).std(0, false).max().item<double>() == 0,
           "statistics of both ranks");
    return true;
  });
}

TEST_CASE("SyncBatchNorm as a layer of its own", "[nn][sync_batch_norm]") {
  on_ranks(2, [](Run<>& fabric) {
    weft::nn::SyncBatchNorm layer(weft::nn::BatchNormOptions(3).momentum(std::nullopt), fabric.world());
    std::ostringstream text;
    text << layer;
    expect(text.str() == "weft::nn::SyncBatchNorm(3, eps=1e-05, momentum=None, affine=true, track_running_stats=true)",
           text.str());
    torch::nn::BatchNorm2d whole(torch::nn::BatchNorm2dOptions(3).momentum(std::nullopt));
    auto const x = rows({6, 3, 2, 2}, 1);
    expect(relative_difference(layer(x.chunk(2)[fabric.global_rank()]), whole(x).chunk(2)[fabric.global_rank()]) < 1e-5,
           "one process's outputs");
    auto const copy = std::dynamic_pointer_cast<weft::nn::SyncBatchNorm::Impl>(layer->clone());
    expect(copy && relative_difference(copy->forward(x.chunk(2)[fabric.global_rank()]),
                                       whole(x).chunk(2)[fabric.global_rank()]) < 1e-5,
           "a clone is synchronized, too");
    expect(contains(message_of([&] { layer(at::ones({3})); }), "an input with rows and channels"),
           "an input without channels");
    weft::nn::SyncBatchNorm alone(weft::nn::BatchNormOptions(3), nullptr);
    torch::nn::BatchNorm2d plain(3);
    expect(alone(x).equal(plain(x)), "without ranks it is BatchNorm");
    return true;
  });
}

TEST_CASE("what cannot be synchronized is an error that says what to write", "[nn][sync_batch_norm]") {
  CHECK_THAT(failure_on_ranks(2,
                              [](Run<>& fabric) {
                                weft::convert_sync_batchnorm(
                                    fabric, torch::nn::Sequential(torch::nn::Linear(2, 2), torch::nn::BatchNorm2d(2)));
                              }),
             ContainsSubstring("1 is torch::nn::BatchNorm2d, whose forward cannot be intercepted: write "
                               "weft::nn::BatchNorm2d, the same layer"));
  CHECK_THAT(failure_on_ranks(2,
                              [](Run<>& fabric) {
                                weft::convert_sync_batchnorm(fabric, torch::nn::Sequential(torch::nn::Linear(2, 2)));
                              }),
             ContainsSubstring("there is nothing to convert"));
  CHECK_THAT(failure_on_ranks(2,
                              [](Run<>& fabric) {
                                weft::nn::SyncBatchNorm layer(weft::nn::BatchNormOptions(2), fabric.world());
                                layer(fabric.is_global_zero() ? at::ones({1, 2}) : at::ones({0, 2}));
                              }),
             ContainsSubstring("expected more than 1 value per channel over all ranks when training, got input size"));
  CHECK_THAT(failure_on_ranks(2,
                              [](Run<>& fabric) {
                                auto [model, optimizer] = fabric.setup(weft::convert_sync_batchnorm(fabric, Net()),
                                                                       weft::SGD{.lr = 0.1});
                                fabric.join(model, optimizer, [] {});
                              }),
             ContainsSubstring("norm has its statistics from all ranks (convert_sync_batchnorm)"));
  CHECK_THAT(
      failure_on_ranks(2,
                       [](Run<>& fabric) {
                         weft::nn::SyncBatchNorm layer(weft::nn::BatchNormOptions(2), fabric.world());
                         auto const x = rows({3, 2}, fabric.global_rank()).requires_grad_();
                         auto const y = layer(x).square().sum();
                         static_cast<void>(torch::autograd::grad({y}, {x}, {}, std::nullopt, /*create_graph=*/true));
                       }),
      ContainsSubstring("SyncBatchNorm has no second derivative"));
}
