#include "ranks.hpp"

#include <limits>

#include <weft/comm/autograd.hpp>

using namespace test;
using Catch::Matchers::ContainsSubstring;
namespace autograd = weft::autograd;
using autograd::Ranks;

namespace {

/// What every rank computes of its own x.
using Function = std::function<at::Tensor(at::Tensor const&, Ranks const&)>;

/// gradcheck over processes: the gradient of the sum of all ranks' losses by every element of every rank's x, against
/// central differences. The losses weigh elements differently on each rank, and squares make the second derivative
/// something.
void check_gradient(int world, std::vector<int64_t> const& rows, Function const& f, bool twice = true) {
  CHECK(on_ranks(world, [&](Run<>& fabric) {
    auto const& ranks = fabric.world();
    int const rank = fabric.global_rank();
    auto const loss_of = [&](at::Tensor const& x) {
      auto const y = f(x, ranks);
      auto const weights = at::linspace(0.5, 1.5 + rank, y.numel(), at::kDouble).reshape(y.sizes());
      return (y * y * weights).sum();
    };
    auto x = at::linspace(-1.0 + 0.3 * rank, 1.0, rows[static_cast<std::size_t>(rank)] * 2, at::kDouble)
                 .reshape({-1, 2})
                 .requires_grad_();
    auto const gradient = torch::autograd::grad({loss_of(x)}, {x}, {}, /*retain_graph=*/twice,
                                                /*create_graph=*/twice)[0];
    auto const total_of = [&](at::Tensor const& moved) {
      at::NoGradGuard const no_grad;
      return fabric.all_reduce(loss_of(moved).template item<double>(), weft::ReduceOp::sum);
    };
    for (int mover = 0; mover < world; ++mover)
      for (int64_t i = 0; i < rows[static_cast<std::size_t>(mover)] * 2; ++i) {
        double moved[2];
        for (int side = 0; side < 2; ++side) {
          auto there = x.detach().clone();
          if (rank == mover) there.view({-1})[i] += side ? 1e-6 : -1e-6;
          moved[side] = total_of(there);
        }
        double const expected = (moved[1] - moved[0]) / 2e-6;
        if (rank == mover)
          expect(std::abs(gradient.view({-1})[i].template item<double>() - expected) <
                     1e-6 * std::max(1.0, std::abs(expected)),
                 "the gradient of rank " + std::to_string(rank) + "'s element " + std::to_string(i));
      }
    if (twice) {  // the loss is a quadratic form of all x: its gradient is linear, and <gradient, x> is twice the loss,
                  // also after a second backward
      auto const product = (gradient * x).sum();
      auto const second = torch::autograd::grad({product}, {x})[0];
      // d<g(x), x>/dx = g(x) + H x = 2 g(x)
      expect(at::allclose(second, 2 * gradient.detach(), 1e-9, 1e-9), "the second derivative");
    }
    return true;
  }));
}

}  // namespace

TEST_CASE("gradients go through collectives: gradcheck over processes", "[unit][comm]") {
  for (int world : {1, 2, 3}) {
    INFO(world);
    std::vector<int64_t> const rows(static_cast<std::size_t>(world), 2 * world);
    for (auto op : {weft::ReduceOp::sum, weft::ReduceOp::average}) {
      check_gradient(world, rows,
                     [op](at::Tensor const& x, Ranks const& ranks) { return autograd::all_reduce(x, ranks, op); });
      check_gradient(world, rows,
                     [op](at::Tensor const& x, Ranks const& ranks) { return autograd::reduce_scatter(x, ranks, op); });
    }
    check_gradient(world, rows, [](at::Tensor const& x, Ranks const& ranks) { return autograd::all_gather(x, ranks); });
    check_gradient(world, rows, [](at::Tensor const& x, Ranks const& ranks) { return autograd::all_to_all(x, ranks); });
    check_gradient(world, rows, [world](at::Tensor const& x, Ranks const& ranks) {
      return autograd::broadcast(x, ranks, world - 1);
    });
  }
  // Rank 0 sends 1 row to itself and 2 to rank 1, which sends 0 and 2.
  check_gradient(2, {3, 2}, [](at::Tensor const& x, Ranks const& ranks) {
    return ranks->rank() == 0 ? autograd::all_to_all(x, ranks, {1, 0}, {1, 2})
                              : autograd::all_to_all(x, ranks, {2, 2}, {0, 2});
  });
  // Transposed, and a chain of two.
  check_gradient(2, {4, 4}, [](at::Tensor const& x, Ranks const& ranks) {
    return autograd::reduce_scatter(autograd::all_gather(x.t().contiguous().t() * 2, ranks), ranks);
  });
}

TEST_CASE("a gradient that is not finite, or conjugated when it is read, arrives as it is", "[unit][comm]") {
  CHECK(on_ranks(2, [](Run<>& fabric) {
    double const rank = fabric.global_rank();
    auto const x = at::ones({2}).requires_grad_();
    (autograd::broadcast(x, fabric.world()) * std::numeric_limits<double>::infinity()).sum().backward();
    expect(rank == 0 ? x.grad().isinf().all().item<bool>() : x.grad().eq(0).all().item<bool>(), "zero off the source");
    auto const w = at::full({4}, c10::complex<double>(1 + rank, 2), at::kComplexDouble),
               z = at::ones({2}, at::kComplexDouble).requires_grad_();
    at::real(autograd::all_gather(z, fabric.world()).conj() * w)
        .sum()
        .backward();  // zr * wr + zi * wi: by z it is w, of both ranks' losses
    expect(z.grad().eq(at::full({}, c10::complex<double>(3, 4), at::kComplexDouble)).all().item<bool>(), "complex");
    return true;
  }));
}

TEST_CASE("collectives of a detached tensor, under no-grad and in a world of one have no graph to wait for",
          "[unit][comm]") {
  CHECK(on_ranks(2, [](Run<>& fabric) {
    auto x = at::ones({2}, at::kDouble).requires_grad_();
    expect(!autograd::all_reduce(x.detach(), fabric.world()).requires_grad(), "detached");
    at::NoGradGuard const no_grad;
    expect(!autograd::all_reduce(x, fabric.world()).requires_grad(), "no grad");
    return true;
  }));
  auto x = at::ones({2, 1}, at::kDouble).requires_grad_();
  for (auto const& y :
       {autograd::all_reduce(x, nullptr), autograd::all_gather(x, nullptr), autograd::reduce_scatter(x, nullptr),
        autograd::all_to_all(x, nullptr), autograd::broadcast(x, nullptr)}) {
    x.mutable_grad().reset();
    y.sum().backward();
    CHECK(x.grad().equal(at::ones({2, 1}, at::kDouble)));
  }
}

TEST_CASE("collectives that have no gradient, or rows that don't divide, are refused", "[unit][comm]") {
  CHECK_THAT(message_of([] { autograd::all_reduce(at::ones({2}), nullptr, weft::ReduceOp::max); }),
             ContainsSubstring("only a sum and an average have a gradient"));
  CHECK_THAT(message_of([] { autograd::all_gather(at::ones({}), nullptr); }), ContainsSubstring("pass x.reshape({1})"));
  CHECK(on_ranks(2, [](Run<>& fabric) {
    auto const message = message_of([&] { autograd::reduce_scatter(at::ones({3}), fabric.world()); });
    expect(contains(message, "3 rows over 2 ranks"), message);
    return true;
  }));
}

TEST_CASE("divided work on one batch has the gradients of its one loss", "[comm]") {
  for (int world : {1, 2, 3})
    CHECK(on_ranks(world, [](Run<>& fabric) {
      auto const& ranks = fabric.world();
      int const rank = fabric.global_rank(), size = fabric.world_size();
      auto const options = at::TensorOptions(at::kDouble);
      // All ranks have x; each has its weight; all have the loss (sum over ranks of x * w_r) ^ 2.
      auto const x = at::linspace(-1, 1, 6, options).requires_grad_();
      auto const w = at::full({6}, rank + 0.5, options).requires_grad_();
      auto const y = autograd::reduce_from(autograd::copy_to(x, ranks) * w, ranks);
      double const sum_of_weights = 0.5 * size * size;
      expect(at::allclose(y.detach(), x.detach() * sum_of_weights), "the sum");
      auto const gradients = torch::autograd::grad({y.pow(2).sum()}, {x, w}, {}, /*retain_graph=*/true,
                                                   /*create_graph=*/true);
      expect(at::allclose(gradients[0].detach(), 2 * y.detach() * sum_of_weights),
             "what all ranks add to x's gradient");
      expect(at::allclose(gradients[1].detach(), 2 * y.detach() * x.detach()), "each rank's own weight");
      auto const second = torch::autograd::grad({gradients[0].sum()}, {x})[0];
      expect(at::allclose(second, at::full({6}, 2 * sum_of_weights * sum_of_weights, options)), "backward of backward");

      for (int64_t const dim : {0, 1, -1}) {
        auto const z = at::linspace(-1, 1, 4 * size * size, options).reshape({2 * size, 2 * size}).requires_grad_();
        auto const part = autograd::scatter_to(z, ranks, dim);
        expect(at::equal(part.detach(), z.detach().chunk(size, dim)[static_cast<std::size_t>(rank)]),
               "this rank's part");
        auto const all = autograd::gather_from(part * (rank + 1.0), ranks, dim);
        auto const g = torch::autograd::grad({all.pow(2).sum()}, {z})[0];
        std::vector<at::Tensor> expected;
        for (int other = 0; other < size; ++other)
          expected.push_back(z.detach().chunk(size, dim)[static_cast<std::size_t>(other)] * 2 * (other + 1.0) *
                             (other + 1.0));
        expect(at::allclose(g, at::cat(expected, dim)), "the gradient of all parts, on every rank");
      }
      return true;
    }));
  CHECK_THAT(failure_on_ranks(2, [](Run<>& fabric) { autograd::scatter_to(at::ones({3}), fabric.world(), 0); }),
             ContainsSubstring("weft: autograd::scatter_to: dim 0 of size 3 over 2 ranks"));
  auto const x = at::ones({2});
  CHECK(autograd::gather_from(x, nullptr).is_same(x));
}
