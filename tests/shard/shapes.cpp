#include "pieces.hpp"

#include <weft/nn/convolution.hpp>
#include <weft/nn/embedding.hpp>

using namespace test;
using Catch::Matchers::ContainsSubstring;
using weft::FSDP, weft::FullShard, weft::ShardGradOp, weft::NoShard, weft::Bucket, weft::WrapPolicy;

namespace {

/// A unit of every shape there is: 0-dim, smaller than the world, without elements, transposed, channels-last, of
/// another dtype.
struct ShapesImpl : torch::nn::Module {
  ShapesImpl() {
    scale = register_parameter("scale", torch::full({}, 0.7));
    two = register_parameter("two", torch::rand({2}));
    none = register_parameter("none", torch::zeros({0, 3}));
    turned = register_parameter("turned", torch::rand({5, 5}).t());
    conv = register_module("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(5, 6, 2)));
    conv->weight.set_data(conv->weight.detach().contiguous(at::MemoryFormat::ChannelsLast));
    wide = register_parameter("wide", torch::rand({7}, at::kDouble));
  }
  at::Tensor forward(at::Tensor const& x) {
    auto const h = at::linear(x, turned) * scale + two.sum() + none.sum();
    return (conv(h.view({-1, 5, 1, 1}).expand({-1, 5, 2, 2}).contiguous(at::MemoryFormat::ChannelsLast))
                .flatten(1)
                .sum(1, true) *
            wide)
        .sum(1, true)
        .to(at::kFloat);
  }
  at::Tensor scale, two, none, turned, wide;
  torch::nn::Conv2d conv = nullptr;
};
WEFT_MODULE(Shapes);

struct AllShapesImpl : torch::nn::Module {
  AllShapesImpl() {
    one = register_module("one", Shapes());
    factor = register_parameter("factor", torch::full({}, 0.3));
    empty = register_parameter("empty", torch::zeros({0}));
  }
  at::Tensor forward(at::Tensor const& x) { return one(x) * factor + empty.sum(); }
  Shapes one = nullptr;
  at::Tensor factor, empty;
};
TORCH_MODULE(AllShapes);

/// A unit with nothing but an empty parameter, and one without any.
struct HollowImpl : torch::nn::Module {
  explicit HollowImpl(bool has_one) {
    if (has_one) none = register_parameter("none", torch::zeros({0}));
  }
  at::Tensor forward(at::Tensor const& x) { return none.defined() ? x + none.sum() : x * 2; }
  at::Tensor none;
};
WEFT_MODULE(Hollow);
struct HollowsImpl : torch::nn::Module {
  HollowsImpl() {
    a = register_module("a", Hollow(true));
    b = register_module("b", Hollow(false));
    in = register_module("in", torch::nn::Linear(5, 2));
  }
  at::Tensor forward(at::Tensor const& x) { return b(a(in(x))); }
  Hollow a = nullptr, b = nullptr;
  torch::nn::Linear in = nullptr;
};
TORCH_MODULE(Hollows);

template <class Module, class... Strategies, class Description>
void compare(Description const& description, std::vector<int> const& worlds = {1, 2, 3, 4},
             Training const& t = {.steps = 5}) {
  auto const make = [] { return Module(); };
  auto const reference = train<weft::SingleDevice>(1, make, description, t);
  for_each_strategy<Strategies...>([&]<class Strategy>(std::type_identity<Strategy>) {
    for (int world : worlds) {
      INFO("world " << world << ", " << Strategy::sharding::name);
      check_equal(train<Strategy>(world, make, description, t), reference);
    }
  });
}

using Wrap = WrapPolicy<Shapes>;

}  // namespace

TEST_CASE(
    "NUM-28, NUM-29, NUM-32: 0-dim, tiny, empty, strided parameters and two dtypes in one unit train like one process",
    "[shard][known]") {
  compare<AllShapes, FSDP<FullShard, Wrap>, FSDP<ShardGradOp, Wrap>, FSDP<NoShard, Wrap>>(
      weft::SGD{.lr = 0.01, .momentum = 0.9});
  compare<AllShapes, FSDP<FullShard, Wrap>>(weft::AdamW{.lr = 1e-2});
}

TEST_CASE("units with no parameter, or none with elements", "[shard]") {
  using Hollowed = WrapPolicy<Hollow>;
  compare<Hollows, FSDP<FullShard, Hollowed, Bucket<1>>, FSDP<FullShard, Hollowed>,
          FSDP<ShardGradOp, Hollowed, Bucket<1>>, FSDP<NoShard, Hollowed, Bucket<1>>>(weft::SGD{.lr = 0.01});
}

TEST_CASE(
    "outside of forward a parameter is its part, one dim long; inside of it, and under summon_full_params, it has its "
    "own shape",
    "[shard]") {
  using Strategy = FSDP<FullShard, Wrap>;
  for (int world : {2, 3, 4})
    CHECK(on_ranks<Strategy>(world, [](Run<Strategy>& fabric) {
      AllShapes module;
      std::vector<at::Tensor> const before = module->parameters();
      std::vector<std::vector<int64_t>> shapes;
      for (auto const& parameter : before) shapes.push_back(parameter.sizes().vec());
      auto model = fabric.setup(module);
      auto const check_parts = [&] {
        int64_t held = 0;
        for (auto const& row : model.table().rows()) {
          auto const range = weft::plan::flat_range(std::get<weft::FlatShard>(row.placements.at(0).placement),
                                                    row.global_numel(), fabric.global_rank());
          expect(row.tensor.dim() == 1 && row.tensor.numel() == range.end - range.begin, row.name + " is its part");
          expect(row.global_shape == shapes[*model.table().index_of(row.tensor)], "the table's shape");
          held += row.tensor.numel();
        }
        auto const total = fabric.all_reduce(static_cast<double>(held), weft::ReduceOp::sum);
        int64_t elements = 0;
        for (auto const& row : model.table().rows()) elements += row.global_numel();
        expect(total == static_cast<double>(elements), "the parts are the whole");
      };
      check_parts();
      for (int step = 0; step < 2; ++step) {
        fabric.backward(model(at::ones({2, 5})).sum());
        check_parts();
      }
      {
        auto const whole = fabric.summon_full_params(model);
        for (std::size_t i = 0; i < before.size(); ++i)
          expect(before[i].sizes() == at::IntArrayRef(shapes[i]), "its own shape");
      }
      check_parts();
      for (std::size_t i = 0; i < before.size(); ++i)
        expect(before[i].is_same(module->parameters()[i]) && before[i].is_same(model.parameters()[i]),
               "the same tensor for life");
      return 1;
    }));
}

namespace {

/// NUM-07 inside of one unit: the last layer shares weight and bias with the first, a norm between, dim halved in the
/// middle.
struct TiedImpl : torch::nn::Module {
  TiedImpl() {
    first = register_module("first", torch::nn::Linear(5, 5));
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({5})));
    down = register_module("down", torch::nn::Linear(5, 2));
    up = register_module("up", torch::nn::Linear(2, 5));
    last = register_module("last", first);
  }
  at::Tensor forward(at::Tensor const& x) { return last(up(torch::relu(down(norm(first(x)))))); }
  torch::nn::Linear first = nullptr, down = nullptr, up = nullptr, last = nullptr;
  torch::nn::LayerNorm norm = nullptr;
};
WEFT_MODULE(Tied);
struct AroundTiedImpl : torch::nn::Module {
  AroundTiedImpl() {
    tied = register_module("tied", Tied());
    out = register_module("out", torch::nn::Linear(5, 2));
  }
  at::Tensor forward(at::Tensor const& x) { return out(tied(x)); }
  Tied tied = nullptr;
  torch::nn::Linear out = nullptr;
};
TORCH_MODULE(AroundTied);

/// NUM-20: an embedding and a head, two units, share one weight.
struct HeadImpl : torch::nn::Module {
  explicit HeadImpl(at::Tensor shared) { weight = register_parameter("weight", std::move(shared)); }
  at::Tensor forward(at::Tensor const& x) { return at::linear(x, weight); }
  at::Tensor weight;
};
WEFT_MODULE(Head);
struct SharedImpl : torch::nn::Module {
  SharedImpl() {
    embedding = register_module("embedding", weft::nn::Embedding(10, 4));
    head = register_module("head", Head(embedding->weight));
  }
  at::Tensor forward(at::Tensor const& x) { return head(embedding(x.abs().mul(3).to(at::kLong).clamp_max(9)).sum(1)); }
  weft::nn::Embedding embedding = nullptr;
  Head head = nullptr;
};
WEFT_MODULE(Shared);
struct AroundSharedImpl : torch::nn::Module {
  AroundSharedImpl() {
    shared = register_module("shared", Shared());
    out = register_module("out", torch::nn::Linear(10, 2));
  }
  at::Tensor forward(at::Tensor const& x) { return out(shared(x)); }
  Shared shared = nullptr;
  torch::nn::Linear out = nullptr;
};
TORCH_MODULE(AroundShared);

}  // namespace

TEST_CASE("NUM-07, NUM-20: weights tied inside one unit train like one process under each sharding, and stay one",
          "[shard][known]") {
  compare<AroundTied, FSDP<FullShard, WrapPolicy<Tied>>, FSDP<ShardGradOp, WrapPolicy<Tied>>,
          FSDP<NoShard, WrapPolicy<Tied>>>(weft::SGD{.lr = 0.05}, {1, 2, 3}, {.steps = 10, .accumulate = 2});
  compare<AroundShared, FSDP<FullShard, WrapPolicy<Shared>>>(weft::AdamW{.lr = 1e-2}, {1, 2, 3},
                                                             {.steps = 10, .accumulate = 2});
  using Strategy = FSDP<FullShard, WrapPolicy<Shared>>;
  CHECK(on_ranks<Strategy>(2, [](Run<Strategy>& fabric) {
    auto model = fabric.setup(AroundShared());
    expect(model->shared->embedding->weight.is_same(model->shared->head->weight) && model.parameters().size() == 3,
           "one tensor");
    return 1;
  }));
}

TEST_CASE("NUM-20: a weight shared by two units is refused with both names, at every world size and in every bucket",
          "[shard][known]") {
  for_each_strategy<FSDP<FullShard, WrapPolicy<Head>>,
                    FSDP<FullShard, WrapPolicy<Head, weft::nn::Embedding>, Bucket<1>>,
                    FSDP<FullShard, WrapPolicy<Head, weft::nn::Embedding>>, FSDP<NoShard, WrapPolicy<Head>>>(
      []<class Strategy>(std::type_identity<Strategy>) {
        for (int world : {1, 2, 3})
          CHECK_THAT(failure_on_ranks<Strategy>(world, [](Run<Strategy>& fabric) { fabric.setup(AroundShared()); }),
                     ContainsSubstring("parameter shared.embedding.weight is tied to shared.head.weight") &&
                         ContainsSubstring("shared.head ("));
      });
}

namespace {

struct StridedImpl : torch::nn::Module {
  StridedImpl() {
    conv = register_module("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(4, 6, 3)));
    conv->weight.set_data(conv->weight.detach().contiguous(at::MemoryFormat::ChannelsLast));
    linear = register_module("linear", torch::nn::Linear(6, 5));
    linear->weight.set_data(linear->weight.detach().t().contiguous().t());
    gappy = register_parameter("gappy", at::full({5, 4}, 0.5).slice(1, 0, 3));  // keeps its shape, not the gap
  }
  at::Tensor forward(at::Tensor const& x) {
    return linear(conv(x.contiguous(at::MemoryFormat::ChannelsLast)).mean({2, 3})).matmul(gappy);
  }
  torch::nn::Conv2d conv = nullptr;
  torch::nn::Linear linear = nullptr;
  at::Tensor gappy;
};
WEFT_MODULE(Strided);

}  // namespace

TEST_CASE("NUM-32: sharded, channels-last and transposed parameters keep their strides and train alike",
          "[shard][known]") {
  auto const train = []<class Strategy>(int world, std::type_identity<Strategy>) {
    return on_ranks<Strategy>(world, [](Run<Strategy>& fabric) {
      fabric.seed_everything(3);
      Strided module;
      auto const strides = std::pair(module->conv->weight.strides().vec(), module->linear->weight.strides().vec());
      auto [model, optimizer] = fabric.setup(module, weft::SGD{.lr = 0.1, .momentum = 0.9});
      auto const check_strides = [&, &model = model] {
        expect(strides == std::pair(model->conv->weight.strides().vec(), model->linear->weight.strides().vec()),
               "a whole parameter's own strides");
        if (fabric.world_size() > 1) expect(model->gappy.is_contiguous(), "no gaps");
      };
      for (int step = 0; step < 5; ++step) {
        auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(step));
        auto const x = at::randn({4, 4, 5, 5}, generator)
                           .chunk(fabric.world_size())[static_cast<std::size_t>(fabric.global_rank())];
        fabric.backward(model(x).pow(2).mean());
        optimizer.step();
        optimizer.zero_grad();
      }
      auto const path = std::filesystem::temp_directory_path() /
                        ("weft-strided-" + std::to_string(::getppid()) + ".safetensors");
      auto const trained = whole_weights(fabric, model);
      fabric.save_weights(path, model);
      {
        auto const whole = fabric.summon_full_params(model, /*writeback=*/true);
        check_strides();
        at::NoGradGuard const no_grad;
        for (auto const& parameter : model.parameters()) parameter.zero_();
      }
      fabric.load_weights(path, model);
      fabric.barrier();
      if (fabric.is_global_zero()) std::filesystem::remove(path);
      auto const loaded = whole_weights(fabric, model);
      for (std::size_t i = 0; i < trained.size(); ++i) expect(loaded[i].equal(trained[i]), "the saved values");
      auto const whole = fabric.summon_full_params(model);
      check_strides();
      return loaded;
    });
  };
  auto const one = train(1, std::type_identity<weft::SingleDevice>());
  for_each_strategy<FSDP<FullShard>, FSDP<weft::ShardGradOp>, FSDP<weft::NoShard>>([&](auto strategy) {
    for (int world : {1, 2, 4}) {
      auto const several = train(world, strategy);
      REQUIRE(several.size() == one.size());
      for (std::size_t i = 0; i < one.size(); ++i) CHECK(relative_difference(several[i], one[i]) < 1e-5);
    }
  });
}
