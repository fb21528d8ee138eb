#include "models.hpp"

#include <weft/report/allocator.hpp>

using namespace test;

namespace {

/// Weights drawn twice, a table that nobody registers, buffers, weights tied inside a unit, a frozen one, one of another dtype.
struct LateImpl : torch::nn::Module {
  explicit LateImpl(int64_t num_blocks = 3) : table(torch::arange(7).to(at::kFloat) / 7) {
    stack = register_module("stack", Stack(num_blocks));
    norm = register_module("norm", torch::nn::BatchNorm1d(3));
    scale = register_parameter("scale", torch::randn({3}) * 0.1 + 1);
    frozen = register_parameter("frozen", torch::randn({3}), /*requires_grad=*/false);
    torch::NoGradGuard const no_grad;
    for (auto& parameter : stack->parameters())
      if (parameter.dim() > 1) torch::nn::init::xavier_normal_(parameter);
    stack->out->weight.mul_(0.5);
  }
  at::Tensor forward(at::Tensor const& x) { return norm(stack(x)) * scale + frozen + table.sum(); }
  Stack stack = nullptr;
  torch::nn::BatchNorm1d norm = nullptr;
  at::Tensor scale, frozen, table;
};
TORCH_MODULE(Late);

template <class Strategy>
void check_bit_identical(int world) {
  INFO(weft::name_of<Strategy>() << ", world " << world);
  on_ranks<Strategy>(world, [](Run<Strategy>& fabric) {
    fabric.seed_everything(3);
    auto eager = fabric.setup(Late());
    auto const drawn_after = at::rand({3});
    fabric.seed_everything(3);
    auto deferred = fabric.setup(fabric.template init_module<Late>());
    expect(at::equal(at::rand({3}), drawn_after), "the generator goes on as after eager construction");
    expect(deferred.init_report().early_reads.empty() && deferred.init_report().uninitialised.empty(), "nothing was read early, all is initialised");
    expect(deferred.init_report().deferred_bytes > 0, "something was deferred");
    auto const rows = eager.table().rows();
    for (std::size_t i = 0; i < rows.size(); ++i) {
      expect(at::equal(rows[i].tensor, deferred.parameters().at(i)), rows[i].name + " is what eager construction makes it");
      expect(deferred.table().rows()[i].placements == rows[i].placements, rows[i].name + " lies where it does after eager construction");
    }
    for (auto const& buffer : eager->named_buffers()) expect(at::equal(buffer.value(), deferred->named_buffers()[buffer.key()]), buffer.key() + " is equal");
    auto const x = at::randn({4, 5});
    expect(at::equal(eager(x), deferred(x)), "forward is equal");
    auto const want = whole_weights(fabric, eager), got = whole_weights(fabric, deferred);
    for (std::size_t i = 0; i < want.size(); ++i) expect(at::equal(want[i], got[i]), "whole weights are equal");
  });
}

using Wrap = weft::WrapPolicy<Block>;
using Groups = weft::Mesh<weft::Axis<"replicate", 2>, weft::Axis<"shard", weft::Infer>>;

TEST_CASE("deferred and eager construction are bit-identical under each strategy", "[shard][deferred]") {
  check_bit_identical<weft::SingleDevice>(1);
  for (int const world : {1, 2, 3, 4}) {
    check_bit_identical<weft::DDP<>>(world);
    check_bit_identical<weft::FSDP<weft::FullShard, Wrap>>(world);
    check_bit_identical<weft::FSDP<weft::ShardGradOp, Wrap>>(world);
    check_bit_identical<weft::FSDP<weft::NoShard, Wrap>>(world);
    if (world % 2 == 0) check_bit_identical<weft::FSDP<weft::HybridShard, Wrap, Groups>>(world);
  }
}

}  // namespace
