#include "expect.hpp"
#include "same.hpp"

#include <cmath>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include <weft/activation/recompute.hpp>
#include <weft/nn/activation.hpp>
#include <weft/nn/dropout.hpp>
#include <weft/nn/linear.hpp>
#include <weft/nn/normalization.hpp>
#include <weft/report/allocator.hpp>

using Catch::Matchers::ContainsSubstring;
using test::check_same;
using test::message_of;
using weft::checkpoint;

namespace {

torch::nn::Sequential block(int64_t width = 6) {
  return torch::nn::Sequential(torch::nn::Linear(width, 2 * width), torch::nn::GELU(), torch::nn::Dropout(0.3),
                               torch::nn::Linear(2 * width, width),
                               torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})));
}

/// Loss and gradients of a stack of blocks, each run by `call`.
template <class Call>
std::vector<at::Tensor> gradients(Call const& call, int num_blocks = 3) {
  torch::manual_seed(5);
  std::vector<torch::nn::Sequential> blocks;
  for (int i = 0; i < num_blocks; ++i) blocks.push_back(block());
  auto const x = torch::randn({4, 6}).requires_grad_(true);
  auto h = x;
  for (auto& one : blocks) h = call(one, h);
  auto const loss = h.pow(2).sum() + torch::rand({1}).sum();  // random numbers go on as if nothing had been
  loss.backward();
  std::vector<at::Tensor> result{loss.detach(), x.grad()};
  for (auto& one : blocks)
    for (auto const& parameter : one->parameters()) result.push_back(parameter.grad());
  result.push_back(torch::rand({3}));
  return result;
}

auto const plain = [](auto& one, at::Tensor const& h) { return one->forward(h); };
auto const checkpointed = [](auto& one, at::Tensor const& h) {
  return checkpoint([one](at::Tensor const& x) mutable { return one->forward(x); }, h);
};

}  // namespace

TEST_CASE("saved tensors go through pack and unpack, in the scope alone", "[unit][saved]") {
  auto const w = torch::randn({3, 4}).requires_grad_(true), x = torch::randn({2, 4}).requires_grad_(true);
  int packed = 0, unpacked = 0;
  auto const before = x.exp().sum();
  at::Tensor loss;
  {
    auto const guard = weft::saved_tensors(
        [&](at::Tensor const& tensor) {
          ++packed;
          CHECK(!tensor.requires_grad());
          return std::pair(tensor.to(at::kDouble), tensor.scalar_type());  // anything may be kept
        },
        [&](std::pair<at::Tensor, at::ScalarType> const& kept) {
          ++unpacked;
          return kept.first.to(kept.second);
        });
    loss = torch::linear(x, w).exp().sum();
  }
  auto const after = w.exp().sum();
  CHECK(packed == 3);  // both of linear's, and exp's result
  (loss + before + after).backward();
  CHECK(unpacked == 3);
  auto const exponential = torch::linear(x, w).exp().detach();
  CHECK(at::allclose(x.grad(), exponential.mm(w) + x.exp()));
  CHECK(at::allclose(w.grad(), exponential.t().mm(x) + w.exp()));
}

TEST_CASE("scopes of hooks nest, and are each thread's own", "[unit][saved]") {
  std::vector<int> seen;
  auto const scope = [&](int which) {
    return weft::saved_tensors([&seen, which](at::Tensor const& tensor) { return seen.push_back(which), tensor; },
                               [](at::Tensor const& tensor) { return tensor; });
  };
  auto const x = torch::ones({2}).requires_grad_(true);
  {
    auto const outer = scope(1);
    x.exp();
    {
      auto const inner = scope(2);
      x.exp();
      std::thread([&] { x.exp(); }).join();  // another thread saves as ever
    }
    x.exp();
  }
  x.exp();
  CHECK(seen == std::vector{1, 2, 1});
}

TEST_CASE("an engine that is put in place later does what the first one did", "[unit][saved]") {
  auto const x = torch::ones({2}).requires_grad_(true);
  auto const early = x.exp().sum();
  {
    auto const guard = weft::saved_tensors([](at::Tensor const& t) { return t; },
                                           [](at::Tensor const& t) { return t; });
  }
  early.backward();
  CHECK(at::allclose(x.grad(), x.exp()));
}

TEST_CASE(
    "NUM-35: checkpointed blocks with dropout have the bits of plain ones: values, gradients, random numbers after "
    "them",
    "[unit][recompute][known]") {
  auto const expected = gradients(plain);
  check_same(gradients(checkpointed), expected);
  // Blocks inside of blocks.
  check_same(gradients([](auto& one, at::Tensor const& h) {
               return checkpoint(
                   [one](at::Tensor const& x) mutable {
                     return checkpoint([one](at::Tensor const& y) mutable { return one->forward(y); }, x);
                   },
                   h);
             }),
             expected);
}

TEST_CASE("a stack inside of one checkpoint, its blocks checkpointed, too", "[unit][recompute]") {
  auto const run = [](bool outer, bool inner) {
    torch::manual_seed(5);
    std::vector<torch::nn::Sequential> blocks{block(), block(), block()};
    auto const x = torch::randn({4, 6});
    auto const all = [blocks, inner](at::Tensor h) {
      for (auto one : blocks) h = (inner ? checkpointed(one, h) : plain(one, h)).tanh();
      return h;
    };
    auto const y = outer ? checkpoint(all, x) : all(x);
    (y * y).sum().backward();
    std::vector<at::Tensor> result{y.detach()};
    for (auto& one : blocks)
      for (auto const& parameter : one->parameters()) result.push_back(parameter.grad());
    return result;
  };
  for (bool const inner : {false, true}) check_same(run(true, inner), run(false, false));
}

TEST_CASE("several arguments and outputs, some without gradient; undefined ones; other types", "[unit][recompute]") {
  auto const run = [](bool recomputes) {
    auto const x = torch::arange(6, at::kFloat).reshape({2, 3}).requires_grad_(true), scale = torch::ones({3}),
               index = torch::tensor({1, 0});
    auto const f = [](at::Tensor const& a, at::Tensor const& b, at::Tensor const& i, at::Tensor const& none,
                      double factor, std::string const& name) {
      auto const y = (a * b).index_select(0, i).sigmoid();
      CHECK((!none.defined() && name == "name"));
      return std::tuple(y * factor, a.sum().detach(), y.pow(2).sum());
    };
    auto const [first, second, third] = recomputes
                                            ? checkpoint(f, x, scale, index, at::Tensor(), 3.0, std::string("name"))
                                            : f(x, scale, index, at::Tensor(), 3.0, "name");
    CHECK(!second.requires_grad());
    (first.sum() + second + third).backward();
    return std::vector{x.grad()};
  };
  check_same(run(true), run(false));
}

TEST_CASE("a graph that is kept is run again for each pass", "[unit][recompute]") {
  int calls = 0;
  auto const x = torch::ones({3}).requires_grad_(true);
  auto const y = checkpoint([&calls](at::Tensor const& t) { return ++calls, t.exp().sin(); }, x).sum();
  CHECK(calls == 1);
  y.backward({}, /*keep_graph=*/true);
  y.backward();
  CHECK(calls == 3);
  CHECK(at::allclose(x.grad(), 2 * (x.exp().cos() * x.exp())));
}

TEST_CASE("without gradients a function is called once and nothing is kept", "[unit][recompute]") {
  int calls = 0;
  auto const f = [&calls](at::Tensor const& t) { return ++calls, t.exp(); };
  {
    at::NoGradGuard const no_grad;
    CHECK(!checkpoint(f, torch::ones({3}).requires_grad_(true)).requires_grad());
  }
  CHECK(!checkpoint(f, torch::ones({3})).requires_grad());
  CHECK(calls == 2);
}

TEST_CASE("autocast is in the re-run as it was in forward", "[unit][recompute]") {
  auto const run = [](bool recomputes) {
    torch::manual_seed(1);
    torch::nn::Linear layer(4, 4);
    auto const x = torch::randn({2, 4}).requires_grad_(true);
    auto f = [layer](at::Tensor const& t) mutable { return layer(t).tanh(); };
    at::autocast::set_autocast_enabled(at::kCPU, true);
    auto const y = recomputes ? checkpoint(f, x) : f(x);
    at::autocast::set_autocast_enabled(at::kCPU, false);
    at::autocast::clear_cache();
    CHECK(y.scalar_type() == at::kBFloat16);
    y.to(at::kFloat).sum().backward();
    return std::vector{x.grad(), layer->weight.grad()};
  };
  check_same(run(true), run(false));
}

TEST_CASE("a re-run under autocast leaves no cast weights behind", "[unit][recompute]") {
  auto const run = [](bool recomputes) {
    torch::manual_seed(1);
    torch::nn::Linear layer(4, 4);
    auto const x = torch::randn({2, 4});
    auto f = [layer](at::Tensor const& t) mutable { return layer(t).tanh(); };
    std::vector<at::Tensor> losses;
    for (int step = 0; step < 3; ++step) {
      at::autocast::set_autocast_enabled(at::kCPU, true);
      auto const loss = (recomputes ? checkpoint(f, x) : f(x)).to(at::kFloat).sum();
      at::autocast::set_autocast_enabled(at::kCPU, false);
      at::autocast::clear_cache();
      loss.backward();
      losses.push_back(loss.detach());
      at::NoGradGuard const no_grad;
      for (auto const& parameter : layer->parameters()) parameter.sub_(parameter.grad());
    }
    return losses;
  };
  check_same(run(true), run(false));
}

TEST_CASE("arguments are kept as they are passed: containers, strings, pointers; what owns no tensors is refused",
          "[unit][recompute]") {
  auto const run = [](bool recomputes) {
    auto const x = torch::ones({3}).requires_grad_(true), y = torch::full({3}, 2.0).requires_grad_(true),
               z = torch::full({3}, 3.0).requires_grad_(true);
    auto const f = [](std::vector<at::Tensor> const& list, std::optional<at::Tensor> const& maybe,
                      std::shared_ptr<at::Tensor> const& shared, char const* name) {
      CHECK(std::string(name) == "name");
      return (list[0].exp() * list[1] * *shared).sum() + (maybe ? maybe->sin().sum() : at::zeros({}));
    };
    std::vector<at::Tensor> const list{x * 1, y};
    auto const shared = std::make_shared<at::Tensor>(z);
    (recomputes ? checkpoint(f, list, std::optional<at::Tensor>(z), shared, "name") : f(list, z, shared, "name"))
        .backward();
    CHECK(list[1].is_same(y));
    CHECK(shared->is_same(z));
    return std::vector{x.grad(), y.grad(), z.grad()};
  };
  check_same(run(true), run(false));
  auto const x = torch::ones({3}).requires_grad_(true);
  CHECK_THAT(message_of([&] { checkpoint([](at::TensorList list) { return list[0].exp(); }, at::TensorList(x)); }),
             ContainsSubstring("refers to tensors that it does not own, such as an ArrayRef"));
}

TEST_CASE(
    "a generator among the arguments is as it was; a tensor of inference mode may be one; a noexcept function runs to "
    "its end",
    "[unit][recompute]") {
  auto const run = [](bool recomputes) {
    auto generator = at::detail::createCPUGenerator(5);
    auto const x = torch::ones({3, 4}).requires_grad_(true);
    at::Tensor offset;
    {
      c10::InferenceMode const mode;
      offset = torch::full({4}, 0.5);
    }
    auto const f = [](at::Tensor const& t, at::Generator own, at::Tensor const& by) noexcept {
      return (t * torch::empty({3, 4}).bernoulli_(0.5, own) + by).exp() + 1;
    };
    (recomputes ? checkpoint(f, x, generator, offset) : f(x, generator, offset)).sum().backward();
    return std::vector{x.grad(), torch::rand({2}, generator)};
  };
  check_same(run(true), run(false));
}

TEST_CASE("a noexcept function runs to its end also where an argument's copy may throw", "[unit][recompute]") {
  auto const f = [](std::vector<at::Tensor> list, std::string) noexcept { return list[0].exp() + 1; };
  static_assert(!noexcept(f(std::declval<std::vector<at::Tensor> const&>(), std::declval<std::string const&>())));
  auto const x = torch::ones({3}).requires_grad_(true);
  checkpoint(f, std::vector{x}, std::string("a name")).sum().backward();
  CHECK(x.grad().equal(x.detach().exp()));
  at::Tensor (*const pointer)(std::vector<at::Tensor>) noexcept = [](std::vector<at::Tensor> list) noexcept {
    return list[0].exp() + 1;
  };
  checkpoint(pointer, std::vector{x}).sum().backward();
  CHECK(x.grad().equal(2 * x.detach().exp()));
}

TEST_CASE("backward in any way that a plain graph allows: second derivatives, kept graphs, other threads, three levels",
          "[unit][recompute]") {
  auto const run = [](bool recomputes) {
    torch::manual_seed(2);
    auto const x = torch::randn({4, 6}).requires_grad_(true), w = torch::randn({6, 6}).requires_grad_(true);
    auto const call = [recomputes](auto const& f, at::Tensor const& t) { return recomputes ? checkpoint(f, t) : f(t); };
    auto const inner = [w](at::Tensor const& t) { return torch::dropout(t.mm(w).tanh(), 0.3, true).exp(); };
    auto const middle = [=](at::Tensor const& t) { return call(inner, call(inner, t).sin()).cos(); };
    auto const outer = [=](at::Tensor const& t) {
      return torch::dropout(call(middle, call(middle, t).sigmoid()), 0.2, true).tanh();
    };
    auto const loss = call(outer, x).pow(2).sum();
    auto const first = torch::autograd::grad({loss}, {x, w}, {}, /*retain_graph=*/true, /*create_graph=*/true);
    auto const second = torch::autograd::grad({first[0].pow(2).sum() + first[1].pow(2).sum()}, {x, w}, {},
                                              /*retain_graph=*/true);
    std::vector<at::Tensor> result{first[0].detach(), first[1].detach(), second[0], second[1]};
    std::vector<at::Tensor> there(2);
    auto const pass = [&](at::Tensor& to) { to = torch::autograd::grad({loss}, {w}, {}, /*retain_graph=*/true)[0]; };
    std::thread one(pass, std::ref(there[0])), other(pass, std::ref(there[1]));
    one.join(), other.join();
    result.insert(result.end(), there.begin(), there.end());
    loss.backward();
    result.push_back(x.grad());
    result.push_back(torch::rand({3}));
    return result;
  };
  check_same(run(true), run(false));
}

TEST_CASE("re-runs on several threads draw what forward drew, and leave the generator as it was", "[unit][recompute]") {
  auto const run = [](bool recomputes) {
    torch::manual_seed(5);
    auto const slow = [](at::Tensor const& t) {  // the other thread's re-run falls between its draws
      auto const first = torch::dropout(t, 0.5, true).exp();
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      return torch::dropout(first, 0.5, true).exp().sin();
    };
    std::vector<at::Tensor> inputs, losses;
    for (int i = 0; i < 3; ++i) {
      inputs.push_back(torch::ones({50}).requires_grad_(true));
      losses.push_back((recomputes ? checkpoint(slow, inputs[i]) : slow(inputs[i])).sum());
    }
    std::vector<std::thread> threads;
    for (auto const& loss : losses) threads.emplace_back([&loss] { loss.backward(); });
    for (auto& thread : threads) thread.join();
    std::vector<at::Tensor> result{torch::rand({3})};
    for (auto const& input : inputs) result.push_back(input.grad());
    return result;
  };
  check_same(run(true), run(false));
}

TEST_CASE("a function may return its input or a view, catch what it likes, and have hooks and passes of its own",
          "[unit][recompute]") {
  auto const run = [](bool recomputes) {
    auto const x = torch::arange(1, 7, at::kFloat).reshape({2, 3}).requires_grad_(true);
    int hooks = 0;
    auto const call = [recomputes](auto const& f, auto const&... t) {
      return recomputes ? checkpoint(f, t...) : f(t...);
    };
    auto const viewed = call([](at::Tensor const& t) { return t.view({3, 2}); }, x * 1);
    viewed.mul_(2);
    auto const caught = call(
        [](at::Tensor const& t) {
          try {
            return t.exp().sin();
          } catch (...) {
            return t.cos();
          }
        },
        x / 3);
    auto const hooked = call(
        [&hooks](at::Tensor const& t, at::Tensor const& u) {
          auto const h = (t * u).exp();
          h.register_hook([&hooks](at::Tensor const& gradient) { return ++hooks, gradient * 2; });
          auto const z = t.detach().set_requires_grad(true);
          z.pow(3).sum().backward();
          auto const guard = weft::saved_tensors([](at::Tensor const& saved) { return saved.to(at::kDouble); },
                                                 [](at::Tensor const& packed) { return packed.to(at::kFloat); });
          return (h * z.grad()).sin();
        },
        x / 5, x / 5);
    auto const same = call([](at::Tensor const& t) { return t; }, x);
    (viewed.pow(2).sum() + caught.sum() + hooked.sum() + same.sum()).backward();
    CHECK(hooks == 1);
    return std::vector{x.grad()};
  };
  check_same(run(true), run(false));
}

TEST_CASE("what is let go by an exception, or never gone through, leaves nothing", "[unit][recompute][memory]") {
  auto const x = torch::randn({100, 100}).requires_grad_(true);
  weft::report::MemoryCount const memory;
  for (int throws_in = 0; throws_in < 3; ++throws_in) {  // never, in forward, in the re-run
    int calls = 0;
    auto const f = [&](at::Tensor const& t) {
      auto const h = checkpoint([](at::Tensor const& u) { return u.exp().sin(); }, t);
      if (++calls == throws_in) throw std::runtime_error("no more");
      return h.cos().tanh();
    };
    auto const pass = [&] {
      auto const y = checkpoint(f, x);
      if (throws_in == 2) y.sum().backward();
    };
    CHECK(message_of(pass) == (throws_in == 0 ? "nothing was thrown" : "no more"));
    CHECK(memory.all().bytes == 0);
  }
}

TEST_CASE("what unpack returns is what was packed, or an error that says so; guards end in any order",
          "[unit][saved]") {
  auto const x = torch::ones({4, 6}).requires_grad_(true);
  auto const message = [&](auto unpack) {
    auto const y = [&] {
      auto const guard = weft::saved_tensors([](at::Tensor const& t) { return t; }, unpack);
      return x.exp().sum();
    }();
    return message_of([&] { y.backward(); });
  };
  CHECK_THAT(message([](at::Tensor const& t) { return t.narrow(0, 0, 1); }),
             ContainsSubstring("unpack returned a tensor of [1, 6] of float on cpu, and backward needs what was "
                               "packed: [4, 6] of float on cpu"));
  CHECK_THAT(message([](at::Tensor const& t) { return t.to(at::kDouble); }),
             ContainsSubstring("of double on cpu, and backward needs"));
  CHECK_THAT(message([](at::Tensor const& t) { return t.to(at::kMeta); }),
             ContainsSubstring("of float on meta, and backward needs"));
  CHECK_THAT(message([](at::Tensor const&) { return at::Tensor(); }),
             ContainsSubstring("unpack returned an undefined tensor"));
  CHECK(message([](at::Tensor const&) -> at::Tensor { throw std::runtime_error("lost"); }) == "lost");
  CHECK(message_of([&] {
          auto const guard = weft::saved_tensors(
              [](at::Tensor const&) -> at::Tensor { throw std::runtime_error("full"); },
              [](at::Tensor const& t) { return t; });
          x.exp();
        }) == "full");
  CHECK(weft::activation::detail::HookEngine::stack().empty());
  std::string seen;
  auto const scope = [&](char which) {
    auto const make = [&seen, which] {
      return weft::saved_tensors([&seen, which](at::Tensor const& t) { return seen += which, t; },
                                 [](at::Tensor const& t) { return t; });
    };
    return std::unique_ptr<decltype(make())>(new decltype(make())(make()));
  };
  auto outer = scope('o'), inner = scope('i');
  outer.reset();
  x.exp();
  inner.reset();
  x.exp();
  CHECK(seen == "i");
}

TEST_CASE("a function that does something else when it is called again is an error that says what",
          "[unit][recompute]") {
  auto const x = torch::ones({3}).requires_grad_(true);
  int calls = 0;
  auto const fewer = checkpoint([&calls](at::Tensor const& t) { return ++calls == 1 ? t.exp().sin() : t + 1; }, x);
  CHECK_THAT(message_of([&] { fewer.sum().backward(); }),
             ContainsSubstring("checkpoint: forward saved 2 tensors for backward, its re-run 0"));
  calls = 0;
  auto const shaped = checkpoint(
      [&calls](at::Tensor const& t) { return (++calls == 1 ? t : t.narrow(0, 0, 2)).exp().sum(); }, x);
  CHECK_THAT(message_of([&] { shaped.backward(); }),
             ContainsSubstring("the 1. tensor that forward saved for backward was [3] of Float on cpu, that of its "
                               "re-run is [2] of Float on cpu"));
  calls = 0;
  auto const typed = checkpoint(
      [&calls](at::Tensor const& t) { return t.to(++calls == 1 ? at::kFloat : at::kDouble).exp().sum(); }, x);
  CHECK_THAT(message_of([&] { typed.backward(); }),
             ContainsSubstring("was [3] of Float on cpu, that of its re-run is [3] of Double"));
  // An exception of the function itself comes through, forward or backward, and leaves no hooks behind.
  calls = 0;
  auto const throwing = [&calls](at::Tensor const& t) {
    if (++calls == 2) throw std::runtime_error("not twice");
    return t.exp();
  };
  CHECK(message_of([&] { checkpoint(throwing, x).sum().backward(); }) == "not twice");
  CHECK(message_of([&] {
          checkpoint([](at::Tensor const&) -> at::Tensor { throw std::runtime_error("not once"); }, x);
        }) == "not once");
  CHECK(weft::activation::detail::HookEngine::stack().empty());
  auto const changed = torch::ones({3}).requires_grad_(true);
  auto const input = changed * 1;
  auto const y = checkpoint([](at::Tensor const& t) { return t.exp(); }, input);
  input.add_(1);
  CHECK_THAT(message_of([&] { y.sum().backward(); }),
             ContainsSubstring("weft: checkpoint: an argument cannot be passed to its re-run as it was: ") &&
                 ContainsSubstring("modified by an inplace operation"));
}

TEST_CASE("after forward a stack of checkpointed blocks keeps the blocks' inputs and the state of the generator",
          "[unit][recompute][memory]") {
  constexpr int64_t width = 64, batch = 32, num_blocks = 8;
  std::vector<torch::nn::Sequential> blocks;
  for (int i = 0; i < num_blocks; ++i) blocks.push_back(block(width));
  auto const state_bytes = at::detail::getDefaultCPUGenerator().get_state().nbytes();
  auto const live = [&](auto const& call) {
    auto x = torch::randn({batch, width});
    weft::report::MemoryCount const memory;
    auto h = x;
    for (auto& one : blocks) h = call(one, h);
    auto const bytes = memory.all().bytes;
    h.sum().backward();
    h.reset();
    CHECK(memory.all().bytes <= [&] {
      std::size_t gradients = 0;
      for (auto& one : blocks)
        for (auto const& parameter : one->parameters()) gradients += parameter.grad().nbytes();
      return gradients;
    }());
    for (auto& one : blocks)
      for (auto const& parameter : one->parameters()) parameter.mutable_grad().reset();
    return bytes;
  };
  auto const activation = static_cast<std::size_t>(batch * width) * sizeof(float);
  CHECK(live(checkpointed) == num_blocks * (activation + state_bytes));
  CHECK(live(plain) > 4 * num_blocks * activation);
}
