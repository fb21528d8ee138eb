// A mechanism that weft doesn't have, written as a user would: it divides layers over one axis of the mesh and leaves
// the other axes to the strategy inside. Nothing in shard/ or data_parallel/ knows of it.
#include "shard/models.hpp"

#include <unistd.h>

#include <filesystem>
#include <set>

#include <weft/comm/autograd.hpp>
#include <weft/model/cut.hpp>
#include <weft/model/engine_stack.hpp>
#include <weft/nn/linear.hpp>

namespace stacked {  // tests are compiled several in one file
namespace {

using namespace test;

// ---- the user's own strategy ---------------------------------------------------------------------------------------

template <class Inner, class Axes>
struct DivideLinear {
  using category = weft::category::strategy;
  using inner = Inner;
  using options = weft::core::TypeList<Axes>;
  using takes = weft::core::TypeList<weft::category::mesh>;
  static constexpr std::string_view name = "DivideLinear";
  static constexpr weft::NoConfig config{};
};

/// Each rank of the axis has some rows of a layer's weight and bias, and computes some of its outputs.
class DivideLinearEngine final : public weft::model::Engine {
 public:
  DivideLinearEngine(torch::nn::Module& module, weft::model::ParameterTable& table,
                     weft::MechanismContext const& context)
      : ranks_(context.axis("tensor")), table_(&table) {
    if (!ranks_) return;
    for (auto const& layer : module.modules())
      if (auto* const unit = dynamic_cast<weft::unit::UnitBase*>(layer.get());
          unit && dynamic_cast<torch::nn::LinearImpl const*>(layer.get())) {
        layers_.push_back(unit);
        for (auto const& parameter : layer->parameters()) rows_.push_back(*table.index_of(parameter));
      }
    for (auto const row : rows_) weft::model::cut(table.rows()[row], "tensor", weft::Shard{0}, context);
  }
  /// Inside of the hooks of whoever unshards.
  void attach() {
    for (auto* const layer : layers_) layer->unit_attach(std::make_shared<Hooks>(ranks_));
  }

  at::Tensor take(weft::model::ParameterRow const& row, at::Tensor values) override {
    return is_mine(*table_->index_of(row.tensor)) ? own_part(values) : values;
  }
  void unshard_all() override { unshard(rows_); }
  void reshard_all(bool keep_changes) override { reshard(rows_, keep_changes); }
  void visit_unsharded(Rows const& rows, weft::model::Visit what, c10::function_ref<void(Rows const&)> visit) override {
    Rows mine;
    std::copy_if(rows.begin(), rows.end(), std::back_inserter(mine), [&](std::size_t row) { return is_mine(row); });
    unshard(mine);
    if (what != weft::model::Visit::read_on_first || !ranks_ || ranks_->rank() == 0) visit(rows);
    reshard(mine, what == weft::model::Visit::write);
  }
  void show_shapes(bool unsharded) override {
    for (auto const row : rows_)
      unsharded ? show(row, at::zeros({}, tensor(row).options()).expand(table_->rows()[row].global_shape)) : hide(row);
  }

 private:
  struct Hooks final : weft::unit::Hooks {
    explicit Hooks(weft::autograd::Ranks it) : ranks(std::move(it)) {}
    Needs needs() const override { return {.inputs = true}; }
    void pre_forward(weft::unit::Site const&, weft::unit::Tensors const& inputs) override {
      for (auto* const input : inputs) *input = weft::autograd::copy_to(*input, ranks);
    }
    void post_forward(weft::unit::Site const&, weft::unit::Tensors const& outputs) override {
      for (auto* const output : outputs) *output = weft::autograd::gather_from(*output, ranks, -1);
    }
    weft::autograd::Ranks ranks;
  };

  bool is_mine(std::size_t row) const { return std::find(rows_.begin(), rows_.end(), row) != rows_.end(); }
  at::Tensor const& tensor(std::size_t row) const { return table_->rows()[row].tensor; }
  at::Tensor own_part(at::Tensor const& values) const {
    return weft::model::shard_of(values, weft::Shard{0}, ranks_->size(), ranks_->rank());
  }
  void show(std::size_t row, at::Tensor const& values) {
    parts_[row] = tensor(row).detach();
    tensor(row).set_data(values);
  }
  void hide(std::size_t row) { tensor(row).set_data(parts_.at(row)); }
  void unshard(Rows const& rows) {
    at::NoGradGuard const no_grad;
    for (auto const row : rows) show(row, weft::autograd::gather_from(tensor(row), ranks_, 0));
  }
  void reshard(Rows const& rows, bool keep_changes) {
    at::NoGradGuard const no_grad;
    for (auto const row : rows) {
      if (keep_changes) parts_.at(row).copy_(own_part(tensor(row)));
      hide(row);
    }
  }

  weft::autograd::Ranks ranks_;  // null: the axis has one rank
  weft::model::ParameterTable* table_;
  std::vector<weft::unit::UnitBase*> layers_;
  Rows rows_;
  std::map<std::size_t, at::Tensor> parts_;  // while something else is shown
};

}  // namespace
}  // namespace stacked

namespace weft {
template <class Inner, class Axes>
struct Mechanism<stacked::DivideLinear<Inner, Axes>> : MechanismAround<Inner, "tensor"> {
  template <class Derived>
  class Mixin : public Mechanism<Inner>::template Mixin<Derived> {
   protected:
    friend Derived;
    std::shared_ptr<model::Engine> make_engine(torch::nn::Module& module, model::ParameterTable& table,
                                               MechanismContext const& context) {
      auto own = std::make_shared<stacked::DivideLinearEngine>(module, table, context);
      auto inner = Mechanism<Inner>::template Mixin<Derived>::make_engine(module, table, context.without("tensor"));
      own->attach();
      return model::stacked(std::move(own), std::move(inner));
    }
  };
};
}  // namespace weft

namespace stacked {

// ---- the proof -----------------------------------------------------------------------------------------------------

namespace {

struct WideBlockImpl : torch::nn::Module {
  WideBlockImpl() {
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({8})));
    up = register_module("up", weft::nn::Linear(8, 12));
    down = register_module("down", weft::nn::Linear(torch::nn::LinearOptions(12, 8).bias(false)));
    scale = register_parameter("scale", torch::full({}, 0.7));
  }
  at::Tensor forward(at::Tensor const& x) { return x + down(torch::gelu(up(norm(x)))) * scale; }
  torch::nn::LayerNorm norm = nullptr;
  weft::nn::Linear up = nullptr, down = nullptr;
  at::Tensor scale;
};
WEFT_MODULE(WideBlock);

struct WideImpl : torch::nn::Module {
  WideImpl() {
    in = register_module("in", torch::nn::Linear(5, 8));
    blocks = register_module("blocks", torch::nn::ModuleList());
    for (int i = 0; i < 3; ++i) blocks->push_back(WideBlock());
    out = register_module("out", weft::nn::Linear(8, 4));
  }
  at::Tensor forward(at::Tensor const& x) {
    auto h = in(x);
    for (auto const& block : *blocks) h = block->as<WideBlock>()->forward(h);
    return out(h);
  }
  torch::nn::Linear in = nullptr;
  torch::nn::ModuleList blocks = nullptr;
  weft::nn::Linear out = nullptr;
};
TORCH_MODULE(Wide);

template <int Data, int Tensor>
using Axes = weft::Mesh<weft::Axis<"data", Data>, weft::Axis<"tensor", Tensor>>;
template <class Inner, int Data>
using Stacked = DivideLinear<Inner, Axes<Data, 4 / Data>>;
using Full = weft::FSDP<weft::FullShard, weft::WrapPolicy<WideBlock>, weft::Bucket<1>>;

auto const wide = [] { return Wide(); };

template <class Inner, class Description>
void compare(Description const& description, Training const& t = {}) {
  auto const reference = train<weft::SingleDevice>(1, wide, description, t);
  {
    INFO("1 x 4");
    check_equal(train<Stacked<Inner, 1>>(4, wide, description, t), reference);
  }
  {
    INFO("2 x 2");
    check_equal(train<Stacked<Inner, 2>>(4, wide, description, t), reference);
  }
  {
    INFO("4 x 1");
    check_equal(train<Stacked<Inner, 4>>(4, wide, description, t), reference);
  }
}

/// The events of one step, as "phase kind axis", each once.
template <class Strategy>
std::vector<std::string> axes_of_a_step() {
  return on_ranks<Strategy>(4, [](Run<Strategy>& fabric) {
    auto [model, optimizer] = fabric.setup(Wide(), weft::SGD{.lr = 0.1});
    fabric.recorder().start();
    fabric.backward(model(at::ones({3, 5})).sum());
    fabric.clip_gradients(model, optimizer, weft::ClipNorm{1.0});
    optimizer.step();
    std::set<std::string> lines;
    for (auto const& event : fabric.recorder().stop())
      lines.insert(event.phase + " " + name_of(event.kind) + " " + event.axis);
    return std::vector<std::string>(lines.begin(), lines.end());
  });
}

}  // namespace

TEST_CASE("a strategy of one's own around DDP and FSDP equals one process at 1x4, 2x2, 4x1", "[strategy][stacked]") {
  SECTION("DDP") { compare<weft::DDP<>>(weft::SGD{.lr = 0.1, .momentum = 0.9}); }
  SECTION("DDP, accumulating") { compare<weft::DDP<>>(weft::AdamW{.lr = 1e-2}, {.accumulate = 2}); }
  SECTION("FSDP") { compare<Full>(weft::AdamW{.lr = 1e-2}); }
  SECTION("FSDP, accumulating") { compare<Full>(weft::SGD{.lr = 0.1}, {.accumulate = 2}); }
  SECTION("shard-grad-op") {
    compare<weft::FSDP<weft::ShardGradOp, weft::WrapPolicy<WideBlock>>>(weft::SGD{.lr = 0.1});
  }
}

TEST_CASE("by itself it divides one process' model", "[strategy][stacked]") {
  weft::SGD const description{.lr = 0.1};
  check_equal(train<Stacked<weft::SingleDevice, 1>>(4, wide, description),
              train<weft::SingleDevice>(1, wide, description));
}

TEST_CASE("events name the axis that each mechanism works on", "[strategy][stacked]") {
  using Lines = std::vector<std::string>;
  // The sum of gradients where divided work began is an all_reduce over "tensor".
  CHECK(axes_of_a_step<Stacked<Full, 2>>() == Lines{"backward all_gather data", "backward all_reduce tensor",
                                                    "backward reduce_scatter data", "clip all_reduce data",
                                                    "clip all_reduce tensor", "forward all_gather data",
                                                    "forward all_gather tensor"});
  CHECK(axes_of_a_step<Stacked<weft::DDP<>, 2>>() == Lines{"backward all_reduce data", "backward all_reduce tensor",
                                                           "clip all_reduce tensor", "forward all_gather tensor"});
  // A group of one rank is no group.
  CHECK(axes_of_a_step<Stacked<weft::DDP<>, 1>>() ==
        Lines{"backward all_reduce tensor", "clip all_reduce tensor", "forward all_gather tensor"});
  CHECK(axes_of_a_step<Stacked<weft::DDP<>, 4>>() == Lines{"backward all_reduce data"});
}

TEST_CASE("parameters lie as the table says, outer axis first", "[strategy][stacked]") {
  using Strategy = Stacked<Full, 2>;
  CHECK(on_ranks<Strategy>(4, [](Run<Strategy>& fabric) {
    auto model = fabric.setup(Wide());
    auto const& row = *model.table().find("blocks.0.up.weight");
    expect(row.global_shape == std::vector<int64_t>{12, 8} && row.local_shape == std::vector<int64_t>{6, 8},
           "half of the rows are left to the data axis");
    expect(row.placements.size() == 2 && row.placements[0].axis == "tensor" && row.placements[1].axis == "data",
           "tensor first");
    expect(std::get<weft::Shard>(row.placements[0].placement) == weft::Shard{0}, "divided at dim 0");
    expect(row.tensor.dim() == 1, "a shard at rest");
    auto const& norm = *model.table().find("blocks.0.norm.weight");
    expect(norm.placements.size() == 1 && norm.placements[0].axis == "data", "not divided over the tensor axis");
    // Ranks of one tensor group work on one batch.
    auto const& data = fabric.mesh().data();
    expect(data.size() == 2 && data.coordinate == fabric.global_rank() / 2, "the data axis");
    return true;
  }));
}

TEST_CASE("summoned, visited bucket by bucket and saved, its parameters are those of one process",
          "[strategy][stacked]") {
  auto const path = std::filesystem::temp_directory_path() / ("weft_stacked_" + std::to_string(::getpid()));
  auto const check = [&]<class Strategy>(std::type_identity<Strategy>) {
    CHECK(on_ranks<Strategy>(4, [&](Run<Strategy>& fabric) {
            fabric.seed_everything(5);
            Wide const reference;
            fabric.seed_everything(5);
            auto model = fabric.setup(Wide());
            auto const want = reference->parameters();
            auto const got = whole_weights(fabric, model);
            for (std::size_t i = 0; i < want.size(); ++i) expect(at::equal(want[i], got[i]), "summoned");

            auto const& table = model.table();
            weft::model::Engine::Rows rows(table.size());
            for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = i;
            std::vector<std::size_t> seen;
            std::size_t most = 0;
            at::NoGradGuard const no_grad;
            auto& engine = *model.state()->engine;
            std::size_t read = 0;
            engine.visit_unsharded(rows, weft::model::Visit::read_on_first, [&](auto const& some) {
              expect(fabric.global_rank() == 0, "comes to one rank");
              for (auto const row : some) expect(at::equal(table.rows()[row].tensor, want[row]), "read on first");
              read += some.size();
            });
            expect(read == (fabric.global_rank() == 0 ? rows.size() : 0), "each came there");
            engine.visit_unsharded(rows, weft::model::Visit::write, [&](auto const& some) {
              most = std::max(most, some.size());
              for (auto const row : some) {
                expect(at::equal(table.rows()[row].tensor, want[row]), table.rows()[row].name + " when visited");
                table.rows()[row].tensor.mul_(2);
                seen.push_back(row);
              }
            });
            std::sort(seen.begin(), seen.end());
            expect(seen == rows, "each once");
            auto const doubled = whole_weights(fabric, model);
            for (std::size_t i = 0; i < want.size(); ++i) expect(at::equal(want[i] * 2, doubled[i]), "kept");

            fabric.save_weights(path, model);
            Wide loaded;
            fabric.load_raw(path, loaded);
            for (std::size_t i = 0; i < want.size(); ++i)
              expect(at::equal(want[i] * 2, loaded->parameters()[i]), "saved");
            fabric.load_weights(path, model);
            auto const again = whole_weights(fabric, model);
            for (std::size_t i = 0; i < want.size(); ++i) expect(at::equal(want[i] * 2, again[i]), "loaded");
            return most;
          }) == std::size_t{std::is_same_v<Strategy, Stacked<Full, 2>> ? 6u : 22u});
  };
  check(std::type_identity<Stacked<Full, 2>>());
  check(std::type_identity<Stacked<weft::DDP<>, 2>>());
  std::filesystem::remove(path);
}

TEST_CASE("deferred, its parameters are those of eager construction, and train alike", "[strategy][stacked]") {
  auto const check = [&]<class Strategy>(std::type_identity<Strategy>) {
    CHECK(on_ranks<Strategy>(4, [](Run<Strategy>& fabric) {
      fabric.seed_everything(3);
      auto [eager, eager_optimizer] = fabric.setup(Wide(), weft::SGD{.lr = 0.1});
      fabric.seed_everything(3);
      auto [deferred, deferred_optimizer] = fabric.setup(fabric.template init_module<Wide>(), weft::SGD{.lr = 0.1});
      expect(deferred.init_report().deferred_bytes > 0, "something was deferred");
      for (std::size_t i = 0; i < eager.table().size(); ++i) {
        auto const &a = eager.table().rows()[i], &b = deferred.table().rows()[i];
        expect(at::equal(a.tensor, b.tensor), a.name + " is what eager construction makes it");
        expect(a.placements == b.placements && a.local_shape == b.local_shape && a.local_strides == b.local_strides,
               a.name + " lies where it does after eager construction");
      }
      auto const x = at::full({3, 5}, 1.0 + fabric.mesh().data().coordinate);
      fabric.backward(eager(x).pow(2).mean());
      fabric.backward(deferred(x).pow(2).mean());
      eager_optimizer.step();
      deferred_optimizer.step();
      for (std::size_t i = 0; i < eager.table().size(); ++i)
        expect(at::equal(eager.parameters()[i], deferred.parameters()[i]), "the same step");
      return true;
    }));
  };
  check(std::type_identity<Stacked<Full, 2>>());
  check(std::type_identity<Stacked<weft::DDP<>, 2>>());
  check(std::type_identity<Stacked<Full, 1>>());
}

TEST_CASE("a mesh without the mechanism's axis is one error on all ranks", "[strategy][stacked]") {
  using Strategy = DivideLinear<weft::DDP<>, weft::Mesh<weft::Axis<"data", 2>, weft::Axis<"other", 2>>>;
  auto const message = failure_on_ranks<Strategy>(4, [](Run<Strategy>& fabric) { fabric.setup(Wide()); });
  CHECK_THAT(message, Catch::Matchers::ContainsSubstring("no axis \"tensor\"") &&
                          Catch::Matchers::ContainsSubstring("data 2 x other 2"));
}

}  // namespace stacked
