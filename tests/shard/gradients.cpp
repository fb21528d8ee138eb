// Gradients that come another way than most: none at all, memory of the parameter itself, of a unit that was frozen
// meanwhile.
#include "pieces.hpp"

using namespace test;
using weft::FSDP, weft::FullShard, weft::HybridShard, weft::Bucket;

namespace {

using torch::autograd::AutogradContext, torch::autograd::tensor_list;

/// x + |w|^2 / 2, whose gradient for w is w: the tensor that was saved.
struct OwnValue : torch::autograd::Function<OwnValue> {
  static at::Tensor forward(AutogradContext* context, at::Tensor const& x, at::Tensor const& w) {
    context->save_for_backward({w});
    return x + w.pow(2).sum() / 2;
  }
  static tensor_list backward(AutogradContext* context, tensor_list const& grads) {
    auto const w = context->get_saved_variables()[0];
    return {grads[0], w.view(w.sizes())};
  }
};
struct NoGradient : torch::autograd::Function<NoGradient> {
  static at::Tensor forward(AutogradContext*, at::Tensor const& x, at::Tensor const&) { return x * 2; }
  static tensor_list backward(AutogradContext*, tensor_list const& grads) { return {grads[0] * 2, at::Tensor()}; }
};

template <class Function>
struct SpecialImpl : torch::nn::Module {
  SpecialImpl() {
    w = register_parameter("w", torch::arange(1, 9).to(at::kFloat));
    v = register_parameter("v", torch::ones({6}, at::kDouble));
  }
  at::Tensor forward(at::Tensor const& x) { return Function::apply(x, w) * v.mean().to(at::kFloat); }
  at::Tensor w, v;
};
using WithOwnValueImpl = SpecialImpl<OwnValue>;
WEFT_MODULE(WithOwnValue);
using WithoutGradientImpl = SpecialImpl<NoGradient>;
WEFT_MODULE(WithoutGradient);

template <class Unit>
struct AroundImpl : torch::nn::Module {
  AroundImpl() {
    w = register_parameter("w", torch::ones({2}));
    first = register_module("first", Piece(8));
    unit = register_module("unit", Unit());
    last = register_module("last", Piece(8));
  }
  at::Tensor forward(at::Tensor const& x) { return last(unit(first(x * w.mean()))); }
  at::Tensor w;
  Piece first = nullptr, last = nullptr;
  Unit unit = nullptr;
};

/// f(fabric, model) gives gradients that have to be one process's.
template <class Strategy, class Module, class Function>
void compare(int world, Function const& f) {
  auto const run = [&](auto& fabric) {
    auto model = fabric.setup(torch::nn::ModuleHolder<Module>(std::make_shared<Module>()));
    f(fabric, model);
    return unsharded_gradients(model);
  };
  auto const one = on_ranks<weft::SingleDevice>(1, [&](Run<weft::SingleDevice>& fabric) { return run(fabric); });
  auto const many = on_ranks<Strategy>(world, [&](Run<Strategy>& fabric) { return run(fabric); });
  REQUIRE(many.size() == one.size());
  for (std::size_t i = 0; i < one.size(); ++i) {
    INFO(weft::name_of<Strategy>() << ", world " << world << ", gradient " << i);
    REQUIRE(many[i].defined() == one[i].defined());
    if (one[i].defined()) CHECK(relative_difference(many[i], one[i]) < 1e-5);
  }
}

/// A pass over inputs of mean 1; rank r has its own.
auto const pass = [](auto& fabric, auto& model, bool sync) {
  auto const guard = fabric.no_backward_sync(model, !sync);
  fabric.backward(model(at::full({1}, 1.0 + 0.5 * (2 * fabric.global_rank() - (fabric.world_size() - 1)))).sum());
};
auto const one_pass = [](auto& fabric, auto& model) { pass(fabric, model, true); };

template <class Unit>
using Full = FSDP<FullShard, weft::WrapPolicy<Piece, Unit>, Bucket<1>>;
template <class Unit>
using Hybrid = FSDP<HybridShard, weft::WrapPolicy<Piece, Unit>, Bucket<1>,
                    weft::Mesh<weft::Axis<"replicate", 2>, weft::Axis<"shard", weft::Infer>>>;

}  // namespace

TEST_CASE("a gradient that is the saved parameter's memory is taken before that goes", "[shard]") {
  for (int const world : {2, 3}) compare<Full<WithOwnValue>, AroundImpl<WithOwnValue>>(world, one_pass);
  compare<Hybrid<WithOwnValue>, AroundImpl<WithOwnValue>>(4, one_pass);
}

TEST_CASE("a function that returns no gradient for a parameter leaves it without one", "[shard]") {
  for (int const world : {2, 3}) compare<Full<WithoutGradient>, AroundImpl<WithoutGradient>>(world, one_pass);
}

TEST_CASE("parameters frozen between forward and backward, and between passes, keep what they have", "[shard]") {
  auto const row = [](auto const& f) {
    compare<FSDP<FullShard, Pieces, Bucket<1>>, RowImpl>(2, f);
    compare<FSDP<FullShard, Pieces>, RowImpl>(3, f);
  };
  row([](auto& fabric, auto& model) {
    auto const loss = model(at::ones({1})).sum();
    model.parameters()[1].requires_grad_(false);
    fabric.backward(loss);
  });
  row([](auto& fabric, auto& model) {  // the sum of the first pass is averaged with the second one's
    pass(fabric, model, false);
    model.parameters()[1].requires_grad_(false);
    pass(fabric, model, true);
  });
}

TEST_CASE("one dtype of a unit frozen after its sum was dropped", "[shard]") {
  auto const f = [](auto& fabric, auto& model) {
    pass(fabric, model, false);
    for (auto& parameter : model.parameters()) {
      parameter.mutable_grad().reset();
      if (parameter.scalar_type() == at::kDouble) parameter.requires_grad_(false);
    }
    pass(fabric, model, true);
    pass(fabric, model, true);
  };
  compare<Full<WithOwnValue>, AroundImpl<WithOwnValue>>(2, f);
  compare<Hybrid<WithOwnValue>, AroundImpl<WithOwnValue>>(4, f);
}

TEST_CASE("a hook that takes a gradient away, as an optimizer in backward does, leaves none", "[shard]") {
  struct Take final : torch::autograd::FunctionPostHook {
    explicit Take(at::Tensor it) : parameter(std::move(it)) {}
    tensor_list operator()(tensor_list const& outputs, tensor_list const&) override {
      parameter.mutable_grad().reset();
      return outputs;
    }
    at::Tensor parameter;
  };
  CHECK(on_ranks<FSDP<FullShard, Pieces, Bucket<1>>>(2, [](auto& fabric) {
    Row row;
    // Before setup, so it is the first to hear; one that comes later finds what setup's has taken.
    auto const accumulator = torch::autograd::impl::grad_accumulator(row->a->w);
    accumulator->add_post_hook(std::make_unique<Take>(row->a->w));
    auto model = fabric.setup(std::move(row));
    fabric.backward(model(at::ones({1})).sum());
    auto const gradients = unsharded_gradients(model);
    expect(!gradients[1].defined() && gradients[0].defined() && gradients[2].defined(), "the others have theirs");
    return true;
  }));
}
