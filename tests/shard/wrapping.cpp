#include "pieces.hpp"

#include <weft/nn/transformer.hpp>
#include <weft/shard/sharding_engine.hpp>

using namespace test;
using Catch::Matchers::ContainsSubstring;
using weft::FSDP, weft::FullShard, weft::Bucket, weft::WrapPolicy, weft::SizeBased, weft::WrapIf, weft::Ignore,
    weft::IgnoreIf;

namespace {

/// The buckets that a strategy makes of a model, each with the units and the parameters in it.
template <class Strategy, class Module>
std::vector<std::string> buckets_of(Module const& make, int world = 2) {
  return on_ranks<Strategy>(world, [&](Run<Strategy>& fabric) {
    auto model = fabric.setup(make());
    std::vector<std::string> result;
    for (auto const& bucket : dynamic_cast<weft::shard::Engine&>(*model.state()->engine).buckets()) {
      auto text = bucket->what + ":";
      for (auto const& group : bucket->groups)
        for (auto const& member : group->members()) text += " " + member.name;
      result.push_back(text);
    }
    return result;
  });
}
template <class... Options>
using Alone = FSDP<FullShard, Bucket<1>, Options...>;  // each unit is a bucket
using Texts = std::vector<std::string>;

auto const row = [] { return Row(); };
auto const nested = [] { return NestedRow(); };

bool has_15(torch::nn::Module& module, std::string const&) {
  auto* const piece = dynamic_cast<PieceImpl*>(&module);
  return piece && piece->w.numel() == 15;
}
bool by_path(torch::nn::Module&, std::string const& path) { return path == "c" || path == "outer.inner"; }
bool nothing(torch::nn::Module&, std::string const&) { return false; }
bool plain_too(torch::nn::Module&, std::string const& path) { return path == "in"; }
bool named_frozen(std::string const& name, at::Tensor const& tensor) {
  return name.ends_with("frozen") && tensor.numel() == 3;
}

}  // namespace

TEST_CASE("blocks are named by holder or by class, and the root has what is left", "[shard]") {
  Texts const expected{"the root: w", "a (test::Piece): a.w", "b (test::Piece): b.w", "c (test::Piece): c.w"};
  CHECK(buckets_of<Alone<WrapPolicy<Piece>>>(row) == expected);
  CHECK(buckets_of<Alone<WrapPolicy<PieceImpl>>>(row) == expected);
  CHECK(buckets_of<Alone<WrapPolicy<Piece, PieceImpl>>>(row) == expected);
  CHECK(buckets_of<Alone<WrapPolicy<Piece>>>(row, 1) == expected);
}

TEST_CASE("units inside of units, in any order of the policy; a parent owns what its units don't", "[shard]") {
  Texts const expected{"the root: w", "outer (test::Outer): outer.frozen outer.w",
                       "outer.inner (test::Piece): outer.inner.w", "last (test::Piece): last.w"};
  CHECK(buckets_of<Alone<WrapPolicy<Outer, Piece>>>(nested) == expected);
  CHECK(buckets_of<Alone<WrapPolicy<Piece>, WrapPolicy<Outer>>>(nested) == expected);
  CHECK(buckets_of<Alone<WrapPolicy<Outer>>>(nested) ==
        Texts{"the root: last.w w", "outer (test::Outer): outer.frozen outer.w outer.inner.w"});
}

TEST_CASE("by size, inner units first; by a function of module and path; and what any of them says", "[shard]") {
  CHECK(buckets_of<Alone<SizeBased<15>>>(row) ==
        Texts{"the root: w a.w", "b (test::Piece): b.w", "c (test::Piece): c.w"});
  CHECK(buckets_of<Alone<SizeBased<17>>>(nested) == Texts{"the root: outer.frozen w outer.w",
                                                          "outer.inner (test::Piece): outer.inner.w",
                                                          "last (test::Piece): last.w"});
  CHECK(buckets_of<Alone<SizeBased<30>>>(nested).size() == 2);
  CHECK(buckets_of<Alone<WrapIf<&has_15>>>(row) == Texts{"the root: w a.w c.w", "b (test::Piece): b.w"});
  CHECK(buckets_of<Alone<WrapIf<&by_path>>>(nested) ==
        Texts{"the root: outer.frozen last.w w outer.w", "outer.inner (test::Piece): outer.inner.w"});
  CHECK(buckets_of<Alone<WrapIf<&has_15>, SizeBased<24>>>(row) ==
        Texts{"the root: w a.w", "b (test::Piece): b.w", "c (test::Piece): c.w"});
}

TEST_CASE("neighbors share a bucket while there is room", "[shard]") {
  CHECK(buckets_of<FSDP<FullShard, Pieces>>(row) ==
        Texts{"the root: w", "a (test::Piece), b (test::Piece), c (test::Piece): a.w b.w c.w"});
  CHECK(buckets_of<FSDP<FullShard, Pieces, Bucket<4 * (8 + 15)>>>(row) ==
        Texts{"the root: w", "a (test::Piece), b (test::Piece): a.w b.w", "c (test::Piece): c.w"});
}

TEST_CASE("ignored modules and parameters stay whole, are not averaged and not part of any unit", "[shard]") {
  CHECK(buckets_of<Alone<WrapPolicy<Piece, Outer>, IgnoreIf<&named_frozen>>>(nested)[1] ==
        "outer (test::Outer): outer.w");
  CHECK(buckets_of<Alone<WrapPolicy<Piece>, Ignore<Outer>>>(nested) ==
        Texts{"the root: w", "last (test::Piece): last.w"});
  using Strategy = Alone<WrapPolicy<Piece>, Ignore<Outer>>;
  CHECK(on_ranks<Strategy>(2, [](Run<Strategy>& fabric) {
    auto model = fabric.setup(NestedRow());
    fabric.backward(model(at::full({1}, fabric.global_rank() + 1.0)).sum());
    expect(model->outer->w.dim() == 1 && model->outer->w.numel() == 10 && model->w.numel() < 3 + 2,
           "whole, beside parts");
    expect(std::abs(model->outer->w.grad().sum().item<double>() - (fabric.global_rank() + 1)) < 1e-5,
           "the rank's own gradient");
    expect(all_are({gradient_sums(model)[0]}, 1.5), "the average");
    return 1;
  }));
}

TEST_CASE("a policy that matches nothing is an error that names the model's units", "[shard]") {
  auto const refused = []<class Strategy>(std::type_identity<Strategy>, auto make) {
    return failure_on_ranks<Strategy>(2, [make](Run<Strategy>& fabric) { fabric.setup(make()); });
  };
  CHECK_THAT(refused(std::type_identity<Alone<WrapPolicy<Outer>>>(), row),
             ContainsSubstring("WrapPolicy<") && ContainsSubstring("Outer> matches no module of the model") &&
                 ContainsSubstring("its units are a (test::Piece)"));
  CHECK_THAT(refused(std::type_identity<Alone<WrapPolicy<Piece, Outer>>>(), row),
             ContainsSubstring("Outer> matches no module"));
  CHECK_THAT(refused(std::type_identity<Alone<SizeBased<1000>>>(), row),
             ContainsSubstring("SizeBased<1000> matches no unit of the model") && ContainsSubstring("a (test::Piece)"));
  CHECK_THAT(
      refused(std::type_identity<Alone<WrapIf<&nothing>>>(), nested),
      ContainsSubstring("matches no module") && ContainsSubstring("outer (test::Outer), outer.inner (test::Piece)"));
  CHECK_THAT(refused(std::type_identity<Alone<WrapPolicy<Piece>>>(),
                     [] { return torch::nn::Sequential(torch::nn::Linear(2, 2)); }),
             ContainsSubstring("its units are none: declare blocks with WEFT_MODULE"));
}

TEST_CASE("a plain layer cannot be a unit: it is named, not passed over", "[shard]") {
  auto const stack = [] { return Stack(); };
  auto const refused = []<class Strategy>(std::type_identity<Strategy>, auto make) {
    return failure_on_ranks<Strategy>(2, [make](Run<Strategy>& fabric) { fabric.setup(make()); });
  };
  CHECK_THAT(refused(std::type_identity<Alone<SizeBased<20>>>(), stack),
             ContainsSubstring("SizeBased<20>: in, a plain torch::nn::Linear, has 42 parameters") &&
                 ContainsSubstring("weft::nn"));
  CHECK_THAT(refused(std::type_identity<Alone<WrapPolicy<Block>, SizeBased<50>>>(), stack),
             ContainsSubstring("blocks.0.up, a plain torch::nn::Linear, has 88 parameters"));
  CHECK_THAT(refused(std::type_identity<Alone<WrapIf<&plain_too>>>(), stack),
             ContainsSubstring("matches in, a plain torch::nn::Linear"));
  CHECK(buckets_of<Alone<SizeBased<100>>>(stack).size() == 4);
}

namespace {

/// The published example, small: an encoder-decoder Transformer whose layers are the units.
struct TranslatorImpl : torch::nn::Module {
  TranslatorImpl() {
    in = register_module("in", torch::nn::Linear(5, 8));
    transformer = register_module(
        "transformer",
        weft::nn::Transformer(weft::nn::TransformerOptions(8, 2, 2, 2).dim_feedforward(12).dropout(0.0)));
    out = register_module("out", torch::nn::Linear(8, 3));
  }
  at::Tensor forward(at::Tensor const& x) {
    auto const h = in(x).unsqueeze(0);  // one step, the batch in the middle
    return out(transformer(at::cat({h, h * 0.5}), h)).squeeze(0);
  }
  torch::nn::Linear in = nullptr, out = nullptr;
  weft::nn::Transformer transformer = nullptr;
};
TORCH_MODULE(Translator);

/// A sharding of one's own.
struct Kept {
  static constexpr weft::ShardConfig config{.reshard_after_forward = false};
};

}  // namespace

TEST_CASE("layers of weft::nn::Transformer are units, and train like one process", "[shard]") {
  auto const make = [] { return Translator(); };
  using Layers = WrapPolicy<weft::nn::TransformerEncoderLayer, weft::nn::TransformerDecoderLayer>;
  auto const buckets = buckets_of<Alone<Layers>>(make);
  REQUIRE(buckets.size() == 5);
  CHECK_THAT(buckets[1],
             ContainsSubstring("transformer.encoder.layers.0 (") && ContainsSubstring("self_attn.in_proj_weight"));
  CHECK_THAT(buckets[4], ContainsSubstring("transformer.decoder.layers.1 ("));
  auto const reference = train<weft::SingleDevice>(1, make, weft::SGD{.lr = 0.1, .momentum = 0.9});
  for (int world : {1, 2, 3}) {
    check_equal(train<Alone<Layers>>(world, make, weft::SGD{.lr = 0.1, .momentum = 0.9}), reference);
    check_equal(train<FSDP<Kept, Layers>>(world, make, weft::SGD{.lr = 0.1, .momentum = 0.9}), reference);
  }
}

TEST_CASE("nested units and units of every policy train like one process", "[shard]") {
  auto const run = []<class Strategy>(int world, std::type_identity<Strategy>) {
    return on_ranks<Strategy>(world, [](Run<Strategy>& fabric) {
      auto [model, optimizer] = fabric.setup(NestedRow(), weft::SGD{.lr = 0.1, .momentum = 0.9});
      for (int step = 0; step < 5; ++step) {
        fabric.backward(model(at::full({1}, 2.0 * (fabric.global_rank() + 1) / (fabric.world_size() + 1))).sum());
        optimizer.step();
        optimizer.zero_grad();
      }
      return whole_weights(fabric, model);
    });
  };
  auto const reference = run(1, std::type_identity<weft::SingleDevice>());
  for_each_strategy<Alone<WrapPolicy<Outer, Piece>>, FSDP<FullShard, WrapPolicy<Outer, Piece>>,
                    FSDP<weft::ShardGradOp, WrapPolicy<Outer, Piece>>, FSDP<Kept, WrapPolicy<Outer>>,
                    Alone<SizeBased<17>>, Alone<WrapIf<&by_path>>>(
      [&]<class Strategy>(std::type_identity<Strategy> strategy) {
        for (int world : {2, 3}) {
          auto const weights = run(world, strategy);
          for (std::size_t i = 0; i < reference.size(); ++i)
            CHECK(relative_difference(weights[i], reference[i]) < 1e-5);
        }
      });
}
