#include "test.hpp"

#include <weft/init/deferred_init.hpp>

#include <exception>
#include <sstream>
#include <thread>

#include <weft/nn/nn.hpp>
#include <weft/nn/transformer.hpp>
#include <weft/report/allocator.hpp>
#include <weft/unit/unit.hpp>

namespace {

/// A module from a function: what it registers is all it is.
struct MadeImpl : torch::nn::Module {
  using Make = std::function<void(MadeImpl&)>;
  explicit MadeImpl(Make const& make) { make(*this); }
  at::Tensor& parameter(at::Tensor tensor) { return register_parameter(name("p"), std::move(tensor)); }
  at::Tensor& buffer(at::Tensor tensor) { return register_buffer(name("b"), std::move(tensor)); }
  template <class Module>
  Module module(Module it) {
    register_module(name("m"), it);
    return it;
  }
  std::vector<at::Tensor> kept{};  // not registered

 private:
  std::string name(std::string const& kind) { return kind + std::to_string(count_++); }
  int count_ = 0;
};
using Made = std::shared_ptr<MadeImpl>;

struct Case {
  std::string name;
  MadeImpl::Make make;
  std::vector<std::string> early{};  // operations that LibTorch cannot say the shapes of without values
};

template <class Module, class... Arguments>
MadeImpl::Make layer(Arguments... arguments) {
  return [=](MadeImpl& made) { made.module(Module(arguments...)); };
}

/// What a program sees of a module.
std::vector<at::Tensor> state_of(MadeImpl const& made) {
  auto state = made.parameters();
  for (auto const& buffer : made.buffers()) state.push_back(buffer);
  state.insert(state.end(), made.kept.begin(), made.kept.end());
  return state;
}

void check_equal_to_eager(Case const& it) {
  INFO(it.name);
  torch::manual_seed(3);
  Made const eager = std::make_shared<MadeImpl>(it.make);
  auto const drawn_after = at::rand({3});

  torch::manual_seed(3);
  Made deferred;
  weft::InitReport report;
  {
    weft::DeferredInit const scope;
    deferred = std::make_shared<MadeImpl>(it.make);
    report = scope.report();
  }
  std::vector<std::string> early;
  for (auto const& read : report.early_reads) early.push_back(read.operation);
  CHECK(early == it.early);
  for (auto const& parameter : deferred->parameters())
    CHECK((weft::init::is_deferred(parameter) || !early.empty()));  // values that are given have memory
  weft::materialize(deferred);
  CHECK(at::equal(at::rand({3}), drawn_after));

  REQUIRE(deferred->named_parameters().keys() == eager->named_parameters().keys());
  auto const want = state_of(*eager), got = state_of(*deferred);
  REQUIRE(got.size() == want.size());
  for (std::size_t i = 0; i < want.size(); ++i) {
    INFO("tensor " << i);
    CHECK_FALSE(weft::init::is_deferred(got[i]));
    CHECK(at::equal(got[i], want[i]));
    CHECK(got[i].dtype() == want[i].dtype());
    CHECK(got[i].strides() == want[i].strides());
    CHECK(got[i].requires_grad() == want[i].requires_grad());
    CHECK(got[i].is_leaf() == want[i].is_leaf());
    CHECK(got[i].is_inference() == want[i].is_inference());
    for (std::size_t j = 0; j < i; ++j) CHECK(got[i].is_alias_of(got[j]) == want[i].is_alias_of(want[j]));
  }
}

std::vector<Case> const torch_layers{
    {"Linear", layer<torch::nn::Linear>(9, 5)},
    {"Bilinear", layer<torch::nn::Bilinear>(3, 4, 5)},
    {"Embedding", layer<torch::nn::Embedding>(11, 4)},
    {"Embedding(padding_idx)", layer<torch::nn::Embedding>(torch::nn::EmbeddingOptions(11, 4).padding_idx(3))},
    {"EmbeddingBag", layer<torch::nn::EmbeddingBag>(torch::nn::EmbeddingBagOptions(11, 4).padding_idx(2))},
    {"Conv1d", layer<torch::nn::Conv1d>(torch::nn::Conv1dOptions(4, 6, 3).groups(2))},
    {"Conv2d", layer<torch::nn::Conv2d>(3, 5, 3)},
    {"Conv3d", layer<torch::nn::Conv3d>(2, 3, 2)},
    {"ConvTranspose1d", layer<torch::nn::ConvTranspose1d>(4, 6, 3)},
    {"ConvTranspose2d", layer<torch::nn::ConvTranspose2d>(3, 5, 3)},
    {"ConvTranspose3d", layer<torch::nn::ConvTranspose3d>(2, 3, 2)},
    {"BatchNorm1d", layer<torch::nn::BatchNorm1d>(7)},
    {"BatchNorm2d", layer<torch::nn::BatchNorm2d>(7)},
    {"BatchNorm3d", layer<torch::nn::BatchNorm3d>(7)},
    {"InstanceNorm1d",
     layer<torch::nn::InstanceNorm1d>(torch::nn::InstanceNorm1dOptions(7).affine(true).track_running_stats(true))},
    {"InstanceNorm2d", layer<torch::nn::InstanceNorm2d>(torch::nn::InstanceNorm2dOptions(7).affine(true))},
    {"InstanceNorm3d", layer<torch::nn::InstanceNorm3d>(torch::nn::InstanceNorm3dOptions(7).affine(true))},
    {"LayerNorm", layer<torch::nn::LayerNorm>(torch::nn::LayerNormOptions({3, 5}))},
    {"GroupNorm", layer<torch::nn::GroupNorm>(3, 9)},
    {"PReLU", layer<torch::nn::PReLU>(torch::nn::PReLUOptions().num_parameters(5))},
    {"RNN", layer<torch::nn::RNN>(torch::nn::RNNOptions(5, 7).num_layers(2))},
    {"LSTM", layer<torch::nn::LSTM>(torch::nn::LSTMOptions(5, 7).num_layers(2).bidirectional(true).proj_size(3))},
    {"GRU", layer<torch::nn::GRU>(5, 7)},
    {"RNNCell", layer<torch::nn::RNNCell>(5, 7)},
    {"LSTMCell", layer<torch::nn::LSTMCell>(5, 7)},
    {"GRUCell", layer<torch::nn::GRUCell>(5, 7)},
    {"MultiheadAttention",
     layer<torch::nn::MultiheadAttention>(torch::nn::MultiheadAttentionOptions(8, 2).add_bias_kv(true))},
    {"MultiheadAttention of other widths",
     layer<torch::nn::MultiheadAttention>(torch::nn::MultiheadAttentionOptions(8, 2).kdim(5).vdim(6))},
    {"TransformerEncoderLayer", layer<torch::nn::TransformerEncoderLayer>(8, 2)},
    {"TransformerDecoderLayer", layer<torch::nn::TransformerDecoderLayer>(8, 2)},
    {"TransformerEncoder",
     [](MadeImpl& made) { made.module(torch::nn::TransformerEncoder(torch::nn::TransformerEncoderLayer(8, 2), 3)); }},
    {"TransformerDecoder",
     [](MadeImpl& made) { made.module(torch::nn::TransformerDecoder(torch::nn::TransformerDecoderLayer(8, 2), 2)); }},
    {"Transformer", layer<torch::nn::Transformer>(torch::nn::TransformerOptions(8, 2, 2, 2))},
    {"AdaptiveLogSoftmaxWithLoss",
     layer<torch::nn::AdaptiveLogSoftmaxWithLoss>(torch::nn::AdaptiveLogSoftmaxWithLossOptions(64, 12, {4, 8}))},
    {"Sequential",
     [](MadeImpl& made) {
       made.module(torch::nn::Sequential(torch::nn::Linear(3, 4), torch::nn::ReLU(), torch::nn::BatchNorm1d(4)));
     }},
};

struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(int64_t width) {
    up = register_module("up", weft::nn::Linear(width, 2 * width));
    down = register_module("down", weft::nn::Linear(2 * width, width));
  }
  at::Tensor forward(at::Tensor const& x) { return x + down(torch::relu(up(x))); }
  weft::nn::Linear up = nullptr, down = nullptr;
};
WEFT_MODULE(Block);

std::vector<Case> const weft_layers{
    {"Linear", layer<weft::nn::Linear>(9, 5)},
    {"Bilinear", layer<weft::nn::Bilinear>(3, 4, 5)},
    {"Embedding", layer<weft::nn::Embedding>(torch::nn::EmbeddingOptions(11, 4).padding_idx(3))},
    {"EmbeddingBag", layer<weft::nn::EmbeddingBag>(11, 4)},
    {"Conv1d", layer<weft::nn::Conv1d>(4, 6, 3)},
    {"Conv2d", layer<weft::nn::Conv2d>(3, 5, 3)},
    {"Conv3d", layer<weft::nn::Conv3d>(2, 3, 2)},
    {"ConvTranspose1d", layer<weft::nn::ConvTranspose1d>(4, 6, 3)},
    {"ConvTranspose2d", layer<weft::nn::ConvTranspose2d>(3, 5, 3)},
    {"ConvTranspose3d", layer<weft::nn::ConvTranspose3d>(2, 3, 2)},
    {"BatchNorm1d", layer<weft::nn::BatchNorm1d>(7)},
    {"BatchNorm2d", layer<weft::nn::BatchNorm2d>(7)},
    {"BatchNorm3d", layer<weft::nn::BatchNorm3d>(7)},
    {"InstanceNorm1d", layer<weft::nn::InstanceNorm1d>(torch::nn::InstanceNorm1dOptions(7).affine(true))},
    {"InstanceNorm3d", layer<weft::nn::InstanceNorm3d>(torch::nn::InstanceNorm3dOptions(7).affine(true))},
    {"InstanceNorm2d", layer<weft::nn::InstanceNorm2d>(torch::nn::InstanceNorm2dOptions(7).affine(true))},
    {"LayerNorm", layer<weft::nn::LayerNorm>(torch::nn::LayerNormOptions({3, 5}))},
    {"GroupNorm", layer<weft::nn::GroupNorm>(3, 9)},
    {"RMSNorm", layer<weft::nn::RMSNorm>(7)},
    {"PReLU", layer<weft::nn::PReLU>()},
    {"RNN", layer<weft::nn::RNN>(5, 7)},
    {"LSTM", layer<weft::nn::LSTM>(5, 7)},
    {"GRU", layer<weft::nn::GRU>(5, 7)},
    {"RNNCell", layer<weft::nn::RNNCell>(5, 7)},
    {"LSTMCell", layer<weft::nn::LSTMCell>(5, 7)},
    {"GRUCell", layer<weft::nn::GRUCell>(5, 7)},
    {"MultiheadAttention", layer<weft::nn::MultiheadAttention>(8, 2)},
    {"TransformerEncoderLayer", layer<weft::nn::TransformerEncoderLayer>(8, 2)},
    {"TransformerDecoderLayer", layer<weft::nn::TransformerDecoderLayer>(8, 2)},
    {"TransformerDecoder",
     [](MadeImpl& made) { made.module(weft::nn::TransformerDecoder(weft::nn::TransformerDecoderLayer(8, 2), 2)); }},
    {"TransformerEncoder",
     [](MadeImpl& made) { made.module(weft::nn::TransformerEncoder(weft::nn::TransformerEncoderLayer(8, 2), 3)); }},
    {"Transformer", layer<weft::nn::Transformer>(torch::nn::TransformerOptions(8, 2, 2, 2))},
    {"WEFT_MODULE", layer<Block>(6)},
};

std::vector<Case> const constructors{
    {"clone of a tensor",
     [](MadeImpl& made) { made.parameter(made.parameter(torch::randn({5, 3})).detach().clone()); }},
    {"clone of a module",
     [](MadeImpl& made) {
       made.module(torch::nn::Linear(
           std::dynamic_pointer_cast<torch::nn::LinearImpl>(made.module(torch::nn::Linear(3, 4))->clone())));
     }},
    {"empty.normal_() * c", [](MadeImpl& made) { made.parameter(torch::empty({5, 3}).normal_() * 0.02); }},
    {"randn * c", [](MadeImpl& made) { made.parameter(0.02 * torch::randn({5, 3})); }},
    {"rand, randint, bernoulli, normal",
     [](MadeImpl& made) {
       made.parameter(torch::rand({5, 3}));
       made.buffer(torch::randint(7, {5}));
       made.buffer(torch::bernoulli(torch::full({9}, 0.5)));
       made.parameter(torch::normal(1.0, 2.0, {3, 4}));
       made.parameter(torch::empty({20}).exponential_());
       made.parameter(torch::rand_like(torch::ones({3})));
     }},
    {"zeros, ones, full, eye",
     [](MadeImpl& made) {
       made.parameter(torch::zeros({5}));
       made.parameter(torch::ones({2, 3}));
       made.parameter(torch::full({4}, 2.5));
       made.buffer(torch::full({4}, 2, at::kLong));
       made.parameter(torch::eye(3));
       made.parameter(torch::zeros_like(torch::ones({3})));
     }},
    {"arange, linspace",
     [](MadeImpl& made) {
       made.buffer(torch::arange(7));
       made.buffer(torch::arange(0.0, 3.0, 0.5));
       made.buffer(torch::linspace(0, 1, 5));
     }},
    {"rope table",
     [](MadeImpl& made) {
       auto const angle = torch::outer(
           torch::arange(6, at::kDouble),
           torch::pow(torch::scalar_tensor(10000.0, at::kDouble), -2.0 * torch::arange(4, at::kDouble) / 8));
       made.buffer(torch::stack({angle.cos(), angle.sin()}).to(at::kFloat));
       made.kept.push_back(torch::polar(torch::ones({6, 4}, at::kDouble), angle));
     },
     {"aten::polar"}},
    {"causal mask", [](MadeImpl& made) { made.buffer(torch::full({5, 5}, -INFINITY).triu(1)); }},
    {"tied weights",
     [](MadeImpl& made) {
       auto const embedding = made.module(torch::nn::Embedding(6, 4));
       auto head = made.module(torch::nn::Linear(torch::nn::LinearOptions(4, 6).bias(false)));
       head->weight = head->register_parameter("tied", embedding->weight);
     }},
    {"a draw between two parameters",
     [](MadeImpl& made) {
       made.parameter(torch::empty({5}).normal_());
       torch::randn({3});
       made.parameter(torch::empty({5}).normal_());
     }},
    {"to(dtype)",
     [](MadeImpl& made) {
       made.module(torch::nn::Linear(3, 4))->to(at::kBFloat16);
       made.module(torch::nn::BatchNorm1d(4));
       made.to(at::kDouble);
     }},
    {"in place, by index",
     [](MadeImpl& made) {
       torch::NoGradGuard const no_grad;
       auto& weight = made.parameter(torch::randn({5, 3}));
       weight[1].zero_();
       weight.index_put_({torch::tensor({0, 2}), torch::indexing::Slice(0, 2)}, torch::ones({2, 2}));
       weight.slice(1, 0, 2).mul_(3);
       weight.t()[0].add_(1);
       weight.masked_fill_(torch::eye(5, 3).to(at::kBool), 9.0);
       weight.index({4}).copy_(torch::arange(3));
     }},
    {"an initialization over another",
     [](MadeImpl& made) {
       for (int i = 0; i < 3; ++i) made.module(torch::nn::Linear(4, 3));
       torch::NoGradGuard const no_grad;
       for (auto& parameter : made.parameters())
         if (parameter.dim() > 1) torch::nn::init::xavier_normal_(parameter);
       for (auto& parameter : made.parameters()) parameter.mul_(0.5);
     }},
    {"every torch::nn::init",
     [](MadeImpl& made) {
       using namespace torch::nn::init;
       torch::NoGradGuard const no_grad;
       auto const weight = [&] { return made.parameter(torch::empty({4, 5, 3})); };
       constant_(weight(), 3);
       dirac_(weight());
       eye_(made.parameter(torch::empty({4, 5})));
       normal_(weight());
       ones_(weight());
       uniform_(weight());
       kaiming_normal_(weight());
       kaiming_uniform_(weight());
       xavier_normal_(weight());
       xavier_uniform_(weight());
       zeros_(weight());
     },
     {"aten::eye"}},
    {"a generator of one's own",
     [](MadeImpl& made) {
       auto generator = at::detail::createCPUGenerator(5);
       made.parameter(torch::empty({20}).normal_(0, 1, generator));
       made.parameter(torch::randn({5}));
       made.parameter(torch::empty({20}).normal_(0, 1, generator));
     }},
    {"a seed on the way",
     [](MadeImpl& made) {
       made.parameter(torch::randn({5}));
       torch::manual_seed(77);
       made.parameter(torch::randn({5}));
     }},
    {"memory formats and empty tensors",
     [](MadeImpl& made) {
       made.parameter(torch::randn({2, 3, 4, 5}).contiguous(at::MemoryFormat::ChannelsLast));
       made.parameter(torch::randn({3, 4}).t());
       made.parameter(torch::randn({0, 4}));
       made.parameter(torch::randn({}));
     }},
    {"one parameter from others",
     [](MadeImpl& made) {
       auto const a = torch::randn({3, 4});
       made.parameter(torch::cat({a, torch::zeros({2, 4})}));
       made.parameter(torch::where(a > 0, a, torch::zeros_like(a)));
       auto const parts = torch::randn({6, 2}).chunk(3);
       for (auto const& part : parts) made.parameter(part);
       made.parameter(std::get<0>(torch::linalg_qr(torch::randn({3, 3}))));
     },
     {"aten::where"}},
    {"torch::tensor",
     [](MadeImpl& made) {
       made.buffer(torch::tensor(1.5));
       made.parameter(torch::randn({3}) * torch::tensor({1.0, 2.0, 3.0}));
       std::vector<float> const values{1, 2, 3};
       made.buffer(torch::tensor(values));
       made.buffer(torch::tensor(std::vector<int64_t>{4, 5}));
       made.buffer(torch::tensor({{1, 2}, {3, 4}}, at::kDouble));
     }},
    {"a generator's state saved, and set again",
     [](MadeImpl& made) {
       auto generator = at::detail::getDefaultCPUGenerator();
       for (int i = 0; i < 2; ++i) {
         made.parameter(torch::randn({5}));
         auto const before = generator.get_state();
         generator.set_current_seed(42);
         made.parameter(torch::randn({5}));
         auto const between = generator.get_state();
         made.parameter(torch::randn({5}));
         generator.set_state(between);
         made.parameter(torch::randn({5}));
         generator.set_state(before);
       }
     }},
    {"a copy of a generator",
     [](MadeImpl& made) {
       auto generator = at::detail::createCPUGenerator(5);
       made.parameter(torch::randn({5}, generator));
       auto copy = generator.clone();
       made.parameter(torch::randn({5}, copy));
       made.parameter(torch::randn({5}, generator));
       made.parameter(torch::randn({5}, copy));
     }},
    {"another default dtype for a while",
     [](MadeImpl& made) {
       auto const before = at::get_default_dtype();
       at::set_default_dtype(caffe2::TypeMeta::Make<double>());
       made.parameter(torch::randn({5}));
       made.module(torch::nn::Linear(3, 2));
       made.buffer(torch::arange(3) / 2);
       at::set_default_dtype(before);
       made.parameter(torch::randn({5}));
     }},
    {"inference mode",
     [](MadeImpl& made) {
       {
         c10::InferenceMode const mode;
         made.buffer(torch::randn({3, 4}).t()).mul_(2);
         made.buffer(torch::arange(5).pow(2));
       }
       made.parameter(torch::randn({3}));
     }},
    {"a tensor that is an argument twice",
     [](MadeImpl& made) {
       torch::NoGradGuard const no_grad;
       auto& weight = made.parameter(torch::randn({5}));
       weight.add_(weight);
       weight.copy_(weight);
       weight.mul_(weight.detach());
       weight.narrow(0, 0, 2).copy_(weight.narrow(0, 2, 2));
     }},
    {"memory that is gone, or changed by pointer",
     [](MadeImpl& made) {
       std::vector<float> values{1, 2, 3};
       auto const lent = torch::from_blob(values.data(), {3});
       made.parameter(torch::randn({3}).copy_(lent));
       made.parameter(torch::randn({3}).mul_(lent));
       made.buffer(lent.clone());
       values.assign(3, -1);
     }},
    {"resize_, set_",
     [](MadeImpl& made) {
       auto const larger = torch::empty({2});
       larger.resize_({5}).normal_();
       made.parameter(larger);
       auto const other = torch::empty({0});
       other.set_(torch::randn({4}));
       made.parameter(other);
     },
     {"aten::resize_", "aten::set_"}},
    {"under autocast",
     [](MadeImpl& made) {
       at::autocast::set_autocast_enabled(at::kCPU, true);
       auto const a = torch::randn({3, 3});
       made.buffer(a.mm(a));
       at::autocast::set_autocast_enabled(at::kCPU, false);
     },
     {"aten::mm"}},
    {"views of views, by index, in lists",
     [](MadeImpl& made) {
       torch::NoGradGuard const no_grad;
       using torch::indexing::None, torch::indexing::Slice;
       auto weight = made.parameter(torch::randn({6, 5}));
       weight.view({5, 6}).narrow(0, 1, 2).t().select(0, 1).uniform_();
       weight.index_put_({torch::tensor({1, 1, 2})}, torch::ones({3, 5}), /*accumulate=*/true);
       weight.index_put_({weight > 1}, 0.0);
       auto table = torch::zeros({10, 8});
       auto const angle = torch::arange(10).unsqueeze(1) * torch::exp(torch::arange(0, 8, 2) * -0.3);
       table.index_put_({Slice(), Slice(0, None, 2)}, torch::sin(angle));
       table.index_put_({Slice(), Slice(1, None, 2)}, torch::cos(angle));
       made.buffer(table.unsqueeze(0));
       std::vector<at::Tensor> list{weight, made.parameter(torch::randn({3, 1}).expand({3, 4}))};
       at::_foreach_mul_({list[0]}, 0.5);
       auto const flat = torch::randn({20});
       made.parameter(flat.narrow(0, 0, 6).view({2, 3}));
       made.parameter(flat.narrow(0, 6, 14));
       made.parameter(torch::einsum("ij,kj->ik", {torch::randn({3, 4}), torch::randn({2, 4})}));
     }},
    {"weights tied by their data",
     [](MadeImpl& made) {
       auto const a = made.module(torch::nn::Linear(3, 3)), b = made.module(torch::nn::Linear(3, 3));
       a->weight.set_data(b->weight.data());
       torch::NoGradGuard const no_grad;
       b->weight.mul_(2);
     }},
};

TEST_CASE("a module built without memory is the eager one once it has memory: layers of torch::nn",
          "[unit][deferred]") {
  for (auto const& it : torch_layers) check_equal_to_eager(it);
}

TEST_CASE("a module built without memory is the eager one once it has memory: layers of weft::nn", "[unit][deferred]") {
  for (auto const& it : weft_layers) check_equal_to_eager(it);
}

TEST_CASE("a module built without memory is the eager one once it has memory: constructors", "[unit][deferred]") {
  for (auto const& it : constructors) check_equal_to_eager(it);
}

// ---- what a constructor may do beside ------------------------------------------------------------------------------

/// Two parameters with a seed, eagerly: what several tests compare with.
std::vector<at::Tensor> two_drawn(uint64_t seed) {
  torch::manual_seed(seed);
  auto first = at::randn({50}), second = at::randn({50});
  return {first, second};
}
Made drawn(std::vector<int64_t> const& sizes = {50}) {
  return std::make_shared<MadeImpl>([&](MadeImpl& made) { made.parameter(at::randn(sizes)); });
}
at::Tensor only(Made const& made) { return made->parameters().at(0); }

TEST_CASE("a constructor that reads a drawn value gets it, with all that was recorded before, and the report says so",
          "[unit][deferred]") {
  double seen[2];
  auto const make = [&](MadeImpl& made) {
    made.parameter(torch::randn({100}));
    auto& second = made.parameter(torch::randn({50}));
    seen[made.is_training()] = second.max().item<double>();
    made.parameter(torch::randn({10}) * second.detach().mean().item<double>());
  };
  torch::manual_seed(4);
  MadeImpl const eager(make);
  double const want = std::exchange(seen[1], 0.0);
  torch::manual_seed(4);
  Made deferred;
  {
    weft::DeferredInit const scope;
    deferred = std::make_shared<MadeImpl>(make);
    auto const report = scope.report();
    REQUIRE(report.early_reads.size() == 1);
    CHECK(report.early_reads[0].operation == "aten::max");
    CHECK(report.early_bytes() == 600);
  }
  CHECK(seen[1] == want);
  auto const parameters = deferred->parameters();
  CHECK_FALSE(weft::init::is_deferred(parameters[1]));
  CHECK(weft::init::is_deferred(parameters[2]));
  weft::materialize(deferred);
  for (std::size_t i = 0; i < 3; ++i) CHECK(at::equal(deferred->parameters()[i], eager.parameters()[i]));
}

TEST_CASE("a value that no draw goes into takes nothing else with it", "[unit][deferred]") {
  weft::DeferredInit const scope;
  auto const weight = torch::randn({100});
  auto const rates = torch::linspace(0, 1, 5);
  CHECK(rates[2].item<float>() == 0.5f);
  CHECK(weft::init::is_deferred(weight));
  CHECK(scope.report().early_bytes() == 20);
}

TEST_CASE("a tensor without memory is an error after the scope, by name, and not before setup alone",
          "[unit][deferred]") {
  torch::nn::Linear linear = nullptr;
  {
    weft::DeferredInit const scope;
    linear = torch::nn::Linear(3, 2);
  }
  CHECK(linear->weight.sizes() == at::IntArrayRef({2, 3}));
  CHECK(linear->weight.device() == at::kCPU);
  using Catch::Matchers::ContainsSubstring;
  auto const& weight = linear->weight;
  auto const refused = [&](std::string const& operation, std::function<void()> const& use) {
    INFO(operation);
    auto const is_refused = [&] {
      CHECK_THROWS_WITH(use(), ContainsSubstring("weft: aten::" + operation + " uses a tensor of [") &&
                                   ContainsSubstring("its initialization is deferred and it has no memory yet: pass "
                                                     "its module to setup, or call weft::materialize(module)"));
    };
    is_refused();
    torch::NoGradGuard const no_grad;
    is_refused();
    c10::InferenceMode const inference;
    is_refused();
  };
  refused("addmm", [&] { linear(at::ones({1, 3})); });
  refused("sum", [&] { weight.sum(); });
  refused("_local_scalar_dense", [&] { weight[0][0].item<float>(); });
  refused("clone", [&] { linear->clone(); });
  refused("clone", [&] { weight.t().contiguous(); });
  refused("_to_copy", [&] { linear->to(at::kDouble); });
  refused("_to_copy", [&] { std::stringstream() << weight; });
  refused("uniform_", [&] {
    torch::NoGradGuard const no_grad;
    linear->weight.uniform_();
  });
  refused("fill_", [&] { weight.data().fill_(1); });
  refused("copy_", [&] { at::ones({2, 3}).copy_(weight.detach()); });
  refused("resize_", [&] { weight.data().resize_({9, 9}); });
  refused("equal", [&] { static_cast<void>(at::equal(weight, weight)); });
  refused("cat", [&] { torch::nn::utils::parameters_to_vector(linear->parameters()); });
  refused("sum", [&] {
    std::exception_ptr error;
    std::thread([&] {
      try {
        weight.sum();
      } catch (...) {
        error = std::current_exception();
      }
    }).join();
    std::rethrow_exception(error);
  });
  refused("mul_", [&] {
    torch::optim::AdamW optimizer(linear->parameters(), 0.1);  // which looks at shapes only
    linear->weight.mutable_grad() = at::ones({2, 3});
    optimizer.step();
  });
  linear->weight.mutable_grad() = at::Tensor();
  // Shapes are there.
  CHECK(weight.t().narrow(0, 0, 2).sizes() == at::IntArrayRef({2, 2}));
  CHECK(at::zeros_like(weight).sum().item<float>() == 0);
#if TORCH_VERSION_MAJOR * 100 + TORCH_VERSION_MINOR >= 215
  auto const by_pointer =
      ContainsSubstring("initialization is deferred and it has no memory yet: pass its module to setup");
  CHECK_THROWS_WITH(weight.data_ptr<float>(), by_pointer);
  CHECK_THROWS_WITH(weight.data_ptr(), by_pointer);
  CHECK_THROWS_WITH(weight.storage().data(), by_pointer);
  std::stringstream file;
  CHECK_THROWS_WITH(torch::save(linear, file), by_pointer);
#else  // a storage's sentence cannot be taken away again, so there is LibTorch's own, and a pointer without a type is
       // null
  CHECK_THROWS_WITH(weight.data_ptr<float>(), ContainsSubstring("its data is not allocated yet"));
  CHECK(weight.data_ptr() == nullptr);
#endif
  weft::materialize(linear);
  CHECK(linear(at::ones({1, 3})).isfinite().all().item<bool>());
  CHECK_FALSE(weight.key_set().has(c10::DispatchKey::DeferredInit));  // nor does an operation take a detour
}

TEST_CASE(
    "a pointer into a tensor without memory is refused in the scope, and may be had under a scope that defers nothing",
    "[unit][deferred]") {
  weft::DeferredInit const scope;
  CHECK_THROWS(torch::zeros({3}).data_ptr<float>());
  std::vector<float> const values{1, 2, 3};
  CHECK_THROWS(at::tensor(values));  // torch::tensor(values) is among the constructors above
  weft::DeferredInit const now({.deferred = false});
  CHECK(at::tensor(values).sum().item<double>() == 6);
  CHECK(*torch::ones({3}).data_ptr<float>() == 1);
}

TEST_CASE("what is filled by a pointer is filled when there is memory", "[unit][deferred]") {
  int calls = 0;
  auto const count = [&calls](at::Tensor const& tensor) {
    ++calls;
    for (int64_t i = 0; i < tensor.numel(); ++i) tensor.data_ptr<float>()[i] = static_cast<float>(i);
  };
  auto const make = [&](MadeImpl& made) {
    weft::fill_with(made.parameter(torch::randn({4})), count);
    weft::fill_with(made.parameter(torch::empty({3})), count);
  };
  torch::manual_seed(1);
  MadeImpl const eager(make);
  auto const after = at::rand({2});
  CHECK(calls == 2);
  torch::manual_seed(1);
  Made deferred;
  {
    weft::DeferredInit const scope;
    deferred = std::make_shared<MadeImpl>(make);
  }
  CHECK(calls == 2);
  CHECK(weft::materialize(deferred).uninitialized.empty());
  CHECK(calls == 4);
  for (std::size_t i = 0; i < 2; ++i) CHECK(at::equal(deferred->parameters()[i], eager.parameters()[i]));
  CHECK(at::equal(deferred->parameters()[1], at::arange(3).to(at::kFloat)));
  CHECK(at::equal(at::rand({2}), after));
}

TEST_CASE("scopes in scopes are one sequence; an inner one may build at once", "[unit][deferred]") {
  auto const make = [] {
    std::vector<at::Tensor> tensors;
    weft::DeferredInit const outer;
    tensors.push_back(at::randn({50}));
    {
      weft::DeferredInit const inner;
      tensors.push_back(at::randn({50}));
    }
    tensors.push_back(at::randn({50}));
    CHECK(weft::init::is_deferred(tensors[2]));
    {
      weft::DeferredInit const now({.deferred = false});
      tensors.push_back(at::randn({50}));
    }
    for (auto const& tensor : tensors) CHECK_FALSE(weft::init::is_deferred(tensor));
    tensors.push_back(at::randn({50}));
    CHECK(weft::init::is_deferred(tensors[4]));
    return std::make_shared<MadeImpl>([&](MadeImpl& made) {
      for (auto const& tensor : tensors) made.parameter(tensor);
    });
  };
  torch::manual_seed(8);
  auto const deferred = make();
  weft::materialize(deferred);
  torch::manual_seed(8);
  for (auto const& parameter : deferred->parameters()) CHECK(at::equal(parameter, at::randn({50})));
}

TEST_CASE("a constructor that throws leaves the generator where it would have", "[unit][deferred]") {
  auto const want = two_drawn(5);
  torch::manual_seed(5);
  Made second;
  {
    weft::DeferredInit const scope;
    CHECK_THROWS_WITH(MadeImpl([](MadeImpl& made) {
                        made.parameter(at::randn({50}));
                        throw std::runtime_error("no such file");
                      }),
                      "no such file");
  }
  CHECK(at::ones({2}).sum().item<double>() == 2);  // nothing is deferred any more
  {
    weft::DeferredInit const scope;
    second = drawn();
  }
  weft::materialize(second);
  CHECK(at::equal(only(second), want[1]));
}

TEST_CASE("modules get the numbers of the order in which they were built, in whichever order they get memory",
          "[unit][deferred]") {
  auto const want = two_drawn(6);
  bool const second_first = GENERATE(false, true);
  torch::manual_seed(6);
  Made first, second;
  {
    weft::DeferredInit const scope;
    first = drawn();
  }
  {
    weft::DeferredInit const scope;
    second = drawn();
  }
  weft::materialize(second_first ? second : first);
  CHECK(weft::init::is_deferred(only(second)) == !second_first);
  CHECK_FALSE(weft::init::is_deferred(only(first)));
  weft::materialize(second_first ? first : second);
  CHECK(at::equal(only(first), want[0]));
  CHECK(at::equal(only(second), want[1]));
}

TEST_CASE("a seed between construction and setup is that of what comes after", "[unit][deferred]") {
  auto const want = two_drawn(6);
  torch::manual_seed(6);
  Made made;
  {
    weft::DeferredInit const scope;
    made = drawn();
  }
  torch::manual_seed(7);
  auto const after = at::randn({50});
  torch::manual_seed(7);
  weft::materialize(made);
  CHECK(at::equal(only(made), want[0]));
  CHECK(at::equal(at::randn({50}), after));
}

TEST_CASE("a state of a generator that means the end of a draw is refused once that has been drawn early",
          "[unit][deferred]") {
  weft::DeferredInit const scope;
  auto generator = at::detail::getDefaultCPUGenerator();
  auto const weight = at::randn({5});
  auto const state = generator.get_state();
  static_cast<void>(weight.sum().item<float>());
  generator.set_state(state);
  CHECK_THROWS_WITH(at::randn({5}),
                    Catch::Matchers::ContainsSubstring(
                        "given a state that it had while aten::randn was deferred, and values have been read since"));
  torch::manual_seed(0);
}

TEST_CASE("and such a state at the end of a scope is an error of setup", "[unit][deferred]") {
  Made made;
  {
    weft::DeferredInit const scope;
    auto generator = at::detail::getDefaultCPUGenerator();
    auto const first = at::randn({5});
    auto const state = generator.get_state();
    static_cast<void>(first.sum().item<float>());
    made = drawn();
    generator.set_state(state);
  }
  CHECK_THROWS_WITH(
      weft::materialize(made),
      Catch::Matchers::ContainsSubstring("set_state failed when it was replayed: weft: a generator was given a state"));
  torch::manual_seed(0);
}

TEST_CASE("another thread builds as ever, or in a scope of its own", "[unit][deferred]") {
  auto const want = two_drawn(9);
  torch::manual_seed(9);
  Made here, there;
  at::Tensor eager;
  {
    weft::DeferredInit const scope;
    here = drawn();
    std::thread([&] {
      eager = at::ones({3});
      weft::DeferredInit const own;
      there = drawn();
    }).join();
  }
  CHECK(eager.sum().item<double>() == 3);
  CHECK(weft::init::is_deferred(only(there)));
  std::thread([&] {
    weft::DeferredInit const scope;
    CHECK_THROWS_WITH(only(here) * 2, Catch::Matchers::ContainsSubstring("deferred on another thread"));
  }).join();
  std::thread([&] { weft::materialize(here); }).join();
  CHECK(at::equal(only(here), want[0]));
  weft::materialize(there);  // from where the generator happened to be: two threads that draw from one have no order
  CHECK(only(there).std().item<double>() > 0);
}

TEST_CASE("a tensor with memory is read as it was when it was used", "[unit][deferred]") {
  auto const table = at::ones({50}), other = at::ones({50});
  Made made;
  {
    weft::DeferredInit const scope;
    made = std::make_shared<MadeImpl>([&](MadeImpl& it) {
      it.parameter(at::randn({50}).copy_(table));
      table.fill_(2);
      it.parameter(at::randn({50}).copy_(table));
      it.buffer(at::zeros({50}).copy_(other));
    });
  }
  other.fill_(3);
  CHECK_THROWS_WITH(
      weft::materialize(made),
      Catch::Matchers::ContainsSubstring(
          "aten::copy_ failed when it was replayed: it reads a tensor of [50] that was changed in place since"));
  CHECK(made->parameters()[0].sum().item<double>() == 50);
}

TEST_CASE("empty: nothing is drawn, the rest is made, and the report names what has no values", "[unit][deferred]") {
  torch::manual_seed(2);
  auto const after = at::rand({3});
  torch::manual_seed(2);
  Made made;
  {
    weft::DeferredInit const scope({.empty = true});
    made = std::make_shared<MadeImpl>([](MadeImpl& it) {
      it.module(torch::nn::Linear(3, 4));
      it.module(torch::nn::BatchNorm1d(5));
      it.parameter(torch::randn({4}) * 2);
      it.parameter(torch::randn({4})).data().fill_(7);
      it.parameter(torch::empty({4}));
      it.buffer(torch::arange(4));
    });
  }
  auto const report = weft::materialize(made);
  CHECK(report.uninitialized == std::vector<std::string>{"p2", "p4", "m0.weight", "m0.bias"});
  auto const parameters = made->named_parameters();
  CHECK(at::equal(parameters["m1.weight"], at::ones({5})));
  CHECK(at::equal(parameters["p3"], at::full({4}, 7.0)));
  CHECK(at::equal(made->named_buffers()["b5"], at::arange(4)));
  CHECK(at::equal(made->named_buffers()["m1.running_var"], at::ones({5})));
  CHECK_FALSE(weft::init::is_deferred(parameters["m0.weight"]));
  CHECK(at::equal(at::rand({3}), after));
}

TEST_CASE("tensors for which the module says no device and dtype get the scope's", "[unit][deferred]") {
  bool const deferred = GENERATE(true, false);
  auto const make = [](MadeImpl& it) {
    it.module(torch::nn::Linear(3, 4));
    it.module(torch::nn::BatchNorm1d(5));
    it.buffer(torch::arange(4));
    it.buffer(torch::ones({3}, at::kDouble));
    it.buffer(torch::full({2}, 1.5));
    it.buffer(torch::zeros({2}, at::Device(at::kCPU)));
    it.buffer(torch::randint(5, {2}));
  };
  auto const types = [](MadeImpl const& made) {
    std::vector<at::ScalarType> list;
    for (auto const& tensor : state_of(made)) list.push_back(tensor.scalar_type());
    return list;
  };
  using enum at::ScalarType;
  Made low;
  {
    weft::DeferredInit const scope({.deferred = deferred, .dtype = at::kBFloat16});
    low = std::make_shared<MadeImpl>(make);
  }
  weft::materialize(low);
  CHECK(types(*low) == std::vector{BFloat16, BFloat16, BFloat16, BFloat16, Long, Double, BFloat16, BFloat16, Long,
                                   BFloat16, BFloat16, Long});
  torch::manual_seed(1);
  auto const weight = at::empty({4, 3}, BFloat16);
  {
    torch::NoGradGuard const no_grad;
    torch::nn::init::kaiming_uniform_(weight, std::sqrt(5.0));
  }
  torch::manual_seed(1);
  {
    weft::DeferredInit const scope({.deferred = deferred, .dtype = at::kBFloat16});
    low = std::make_shared<MadeImpl>(make);
  }
  weft::materialize(low);
  CHECK(at::equal(only(low), weight));

  weft::DeferredInit const scope({.deferred = false, .device = at::kMeta});
  MadeImpl const elsewhere(make);
  CHECK(elsewhere.parameters()[0].is_meta());
  CHECK(elsewhere.named_buffers()["b5"].is_cpu());
}

TEST_CASE("backward through a conversion that was deferred is refused", "[unit][deferred]") {
  at::Tensor low;
  torch::nn::Linear linear = nullptr;
  {
    weft::DeferredInit const scope;
    linear = torch::nn::Linear(3, 2);
    low = linear->weight.to(at::kBFloat16);
  }
  weft::materialize(linear);
  CHECK(low.requires_grad());
  CHECK(at::equal(low, linear->weight.to(at::kBFloat16)));
  CHECK_THROWS_WITH(low.sum().backward(), Catch::Matchers::ContainsSubstring("convert it in forward"));
}

// ---- memory --------------------------------------------------------------------------------------------------------

TEST_CASE("a parameter is complete before the next one has memory", "[unit][deferred]") {
  static constexpr int64_t width = 100, matrix = 4 * width * width, row = 4 * width;
  using Make = std::function<void(MadeImpl&)>;
  struct Expected {
    std::string name;
    Make make;
    std::size_t beside;  // what the last operation of a parameter needs beside it
  };
  auto const stack = [](MadeImpl& made) {
    for (int i = 0; i < 6; ++i) made.module(torch::nn::Linear(width, width));
  };
  auto const expected =
      GENERATE_COPY(from_range(std::vector<Expected>{{"layers", stack, matrix},
                                                     {"drawn again in a second pass",
                                                      [&](MadeImpl& made) {
                                                        stack(made);
                                                        torch::NoGradGuard const no_grad;
                                                        for (auto& parameter : made.parameters())
                                                          parameter.normal_(0, 0.02);
                                                      },
                                                      matrix},
                                                     {"scaled in a second pass",
                                                      [&](MadeImpl& made) {
                                                        stack(made);
                                                        torch::NoGradGuard const no_grad;
                                                        for (auto& parameter : made.parameters()) parameter.mul_(0.5);
                                                      },
                                                      matrix},
                                                     {"converted at the end",
                                                      [&](MadeImpl& made) {
                                                        stack(made);
                                                        made.to(at::kBFloat16);
                                                      },
                                                      matrix + matrix / 2},
                                                     {"randn * c",
                                                      [](MadeImpl& made) {
                                                        for (int i = 0; i < 6; ++i)
                                                          made.parameter(torch::randn({width, width}) * 0.5);
                                                      },
                                                      2 * matrix},
                                                     {"modules that are let go",
                                                      [&](MadeImpl& made) {
                                                        for (int i = 0; i < 6; ++i) torch::nn::Linear(width, width);
                                                        made.parameter(torch::ones({width}));
                                                      },
                                                      matrix}}));
  INFO(expected.name);
  weft::report::MemoryCount const memory;
  Made made;
  {
    weft::DeferredInit const scope;
    made = std::make_shared<MadeImpl>(expected.make);
  }
  std::size_t const states = 4 * at::detail::getDefaultCPUGenerator().get_state().nbytes();  // of the generator
  CHECK(memory.all().peak_bytes < states);
  memory.reset_peaks();
  weft::init::initialize(*made, [&](at::Tensor const& tensor) {
    CHECK_FALSE(weft::init::is_deferred(tensor));
    CHECK(memory.all().peak_bytes < expected.beside + 2 * row + states);
    tensor.storage().unsafeGetStorageImpl()->set_data_ptr_noswap({nullptr, at::kCPU});  // handed on
    memory.reset_peaks();
  });
  CHECK(memory.all().peak_bytes < expected.beside + 2 * row + states);
}

}  // namespace
