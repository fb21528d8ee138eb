#include "test.hpp"

#include <weft/unit/hooks.hpp>

#include "units.hpp"

using weft::test::Events;
using weft::test::RecordingHooks;
using Needs = weft::unit::Hooks::Needs;

namespace hooks_test {

struct AffineImpl : torch::nn::Module {
  AffineImpl() : weight(register_parameter("weight", at::full({2}, 3.0))) {}
  at::Tensor forward(at::Tensor const& x) {
    if (fails) throw std::runtime_error("inside");
    return x * weight;
  }
  at::Tensor weight;
  bool fails = false;
};
WEFT_MODULE(Affine);

struct Pair {
  at::Tensor first, second;
  int number = 0;
};
template <class F>
void weft_visit(Pair& pair, F&& f) {
  f(pair.first);
  f(pair.second);
  f(pair.number);
}

template <class Result>
struct ReturnsImpl : torch::nn::Module {
  explicit ReturnsImpl(std::function<Result(at::Tensor)> body) : make(std::move(body)) {}
  Result forward(at::Tensor const& x) { return make(x); }
  std::function<Result(at::Tensor)> make;
};
template <class Result>
using Returns = weft::unit::Holder<ReturnsImpl<Result>>;

struct Opaque {
  at::Tensor hidden;
};
struct TakesImpl : torch::nn::Module {
  at::Tensor forward(at::Tensor const& x, std::optional<std::tuple<at::Tensor, at::Tensor>> const& state = {},
                     bool flag = true) {
    return flag && state ? x + std::get<0>(*state) * std::get<1>(*state) : x * 1;
  }
};
WEFT_MODULE(Takes);
struct TakesOpaqueImpl : torch::nn::Module {
  at::Tensor forward(at::Tensor const& x, Opaque const& it) { return x + it.hidden; }
};
WEFT_MODULE(TakesOpaque);

struct SourceImpl : torch::nn::Module {
  SourceImpl() : weight(register_parameter("weight", at::ones({2}))) {}
  at::Tensor forward() { return weight; }
  at::Tensor weight;
};
WEFT_MODULE(Source);
struct InPlaceImpl : torch::nn::Module {
  at::Tensor forward(at::Tensor x) { return x.mul_(2); }
};
WEFT_MODULE(InPlace);

}  // namespace hooks_test

namespace {
using namespace hooks_test;

std::shared_ptr<RecordingHooks> record(Events& events, std::string tag, Needs needs = {}) {
  return std::make_shared<RecordingHooks>(events, std::move(tag), needs);
}

TEST_CASE("hooks are entered in order and left in reverse", "[unit]") {
  Affine unit;
  Events events;
  unit->unit_attach(record(events, "a:"));
  unit->unit_attach(record(events, "b:"));
  CHECK(at::equal(unit(at::ones({2})), at::full({2}, 3.0)));
  CHECK(events == Events{"a:enter", "b:enter", "b:leave", "a:leave"});

  unit->unit_detach(unit->unit_hooks()[0]);
  events.clear();
  unit(at::ones({2}));
  CHECK(events == Events{"b:enter", "b:leave"});
  unit->unit_detach(unit->unit_hooks()[0]);
  events.clear();
  unit(at::ones({2}));
  CHECK(events.empty());
}

TEST_CASE("after an exception each entered hook is abandoned once", "[unit]") {
  Affine unit;
  Events events;
  auto const a = record(events, "a:"), b = record(events, "b:"), c = record(events, "c:");
  for (auto const& hook : {a, b, c}) unit->unit_attach(hook);
  auto const x = at::ones({2});
  auto const fail = [](auto const&) { throw std::runtime_error("hook"); };
  SECTION("in forward") {
    unit->fails = true;
    CHECK_THROWS_WITH(unit(x), "inside");
    CHECK(events == Events{"a:enter", "b:enter", "c:enter", "c:abandon", "b:abandon", "a:abandon"});
  }
  SECTION("while entering") {
    b->on_enter = fail;
    CHECK_THROWS_WITH(unit(x), "hook");
    CHECK(events == Events{"a:enter", "b:enter", "a:abandon"});
  }
  SECTION("while leaving") {
    b->on_leave = fail;
    CHECK_THROWS_WITH(unit(x), "hook");
    CHECK(events == Events{"a:enter", "b:enter", "c:enter", "c:leave", "b:leave", "b:abandon", "a:abandon"});
  }
  unit->fails = false;
  b->on_enter = b->on_leave = nullptr;
  events.clear();
  unit(x);
  CHECK(events.size() == 6);
}

TEST_CASE("a hook that is detached while it runs is left all the same", "[unit]") {
  Affine unit;
  Events events;
  auto const a = record(events, "a:");
  a->on_enter = [&](auto const&) { unit->unit_detach(a); };
  unit->unit_attach(a);
  unit(at::ones({2}));
  unit(at::ones({2}));
  CHECK(events == Events{"a:enter", "a:leave"});
}

TEST_CASE("backward hooks run from the outside in, and back out", "[unit]") {
  Affine unit;
  Events events;
  Needs const both{.inputs = false, .pre_backward = true, .post_backward = true};
  unit->unit_attach(record(events, "a:", both));
  unit->unit_attach(record(events, "b:", {.inputs = false, .pre_backward = true, .post_backward = false}));
  unit->unit_attach(record(events, "c:", both));
  auto const x = at::ones({2}).requires_grad_();
  auto y = unit(x);
  CHECK(y.grad_fn()->name().find("HookNode") != std::string::npos);
  events.clear();
  y.sum().backward();
  CHECK(events == Events{"a:pre_backward", "b:pre_backward", "c:pre_backward", "c:post_backward", "a:post_backward"});
  CHECK(at::equal(x.grad(), at::full({2}, 3.0)));
  CHECK(at::equal(unit->weight.grad(), at::ones({2})));

  SECTION("no input that requires grad: no post_backward") {
    events.clear();
    unit(at::ones({2})).sum().backward();
    CHECK(std::count(events.begin(), events.end(), "c:post_backward") == 0);
    CHECK(std::count(events.begin(), events.end(), "c:pre_backward") == 1);
  }
  SECTION("without grad mode there are no backward hooks") {
    at::NoGradGuard no_grad;
    CHECK_FALSE(unit(x).requires_grad());
  }
  SECTION("a graph outlives its unit, and its hooks") {
    auto z = unit(x);
    unit = nullptr;
    events.clear();
    z.sum().backward();
    CHECK(events.front() == "a:pre_backward");
  }
}

TEST_CASE("hooks may replace outputs, and the backward hook stays outermost", "[unit]") {
  Affine unit;
  Events events;
  auto const hook = record(events, "", {.inputs = false, .pre_backward = true, .post_backward = false});
  hook->on_leave = [&](weft::unit::Tensors const& outputs) {
    *outputs.at(0) = *outputs.at(0) * 10;
    outputs.at(0)->register_hook([&](at::Tensor) { events.push_back("gradient"); });
  };
  unit->unit_attach(hook);
  auto const y = unit(at::ones({2}));
  CHECK(at::equal(y, at::full({2}, 30.0)));
  events.clear();
  y.sum().backward();
  CHECK(events == Events{"pre_backward", "gradient"});
}

TEST_CASE("hooks may replace inputs", "[unit]") {
  Events events;
  auto const hook = record(events, "", {.inputs = true, .pre_backward = false, .post_backward = false});
  hook->on_enter = [](weft::unit::Tensors const& inputs) {
    for (auto* input : inputs)
      if (input->defined()) *input = *input * 2;
  };
  auto const x = at::ones({2});
  SECTION("without reaching into the caller's tensors") {
    Takes unit;
    unit->unit_attach(hook);
    auto const state = std::make_optional(std::make_tuple(x, x));
    CHECK(at::equal(unit(x, state), x * 6));
    CHECK(hook->num_inputs == 3);
    CHECK(at::equal(std::get<0>(*state), x));
    CHECK(at::equal(unit(x), x * 2));  // defaults aren't looked at
    CHECK(hook->num_inputs == 1);
    CHECK(at::equal(unit->forward(x, {}, false), x * 2));
  }
  SECTION("an argument that can't be looked into is an error, for such hooks only") {
    TakesOpaque unit;
    CHECK(at::equal(unit(x, Opaque{x}), x * 2));
    unit->unit_attach(hook);
    CHECK_THROWS_WITH(unit(x, Opaque{x}), Catch::Matchers::ContainsSubstring("weft_visit"));
    unit->unit_detach(hook);
    unit->unit_attach(record(events, ""));
    CHECK(at::equal(unit(x, Opaque{x}), x * 2));
  }
}

TEST_CASE("a unit without inputs, that returns a parameter", "[unit]") {
  Source unit;
  Events events;
  auto const hook = record(events, "", {.inputs = true, .pre_backward = true, .post_backward = true});
  unit->unit_attach(hook);
  auto y = unit();
  CHECK(hook->num_inputs == 0);
  CHECK_THROWS(y.mul_(2));  // as without a hook
  y.sum().backward();
  CHECK(events == Events{"enter", "leave", "pre_backward"});
  CHECK(at::equal(unit->weight.grad(), at::ones({2})));
}

TEST_CASE("a unit that changes its input in place", "[unit]") {
  InPlace unit;
  Events events;
  auto const w = at::ones({2}).requires_grad_();
  SECTION("is right behind a pre-backward hook, as the caller's tensor is") {
    unit->unit_attach(record(events, "", {.inputs = false, .pre_backward = true, .post_backward = false}));
    auto const x = w * 3;
    auto const y = unit(x);
    (x + y).sum().backward();
    CHECK(at::equal(w.grad(), at::full({2}, 12.0)));
  }
  SECTION("throws at a post-backward hook") {
    unit->unit_attach(record(events, "", {.inputs = false, .pre_backward = false, .post_backward = true}));
    CHECK_THROWS_WITH(unit(w * 3), Catch::Matchers::ContainsSubstring("is a view and is being modified inplace"));
    CHECK(events == Events{"enter", "abandon"});
  }
}

TEST_CASE("outputs of every shape are found", "[unit]") {
  Events events;
  auto const hook = record(events, "", {.inputs = false, .pre_backward = true, .post_backward = false});
  auto const x = at::ones({2}).requires_grad_();
  auto const num_outputs = [&](auto unit) {
    unit->unit_attach(hook);
    auto const result = unit(x);
    static_cast<void>(result);
    return hook->num_outputs;
  };
  using at::Tensor;
  CHECK(num_outputs(Returns<Tensor>([](Tensor t) { return t * 2; })) == 1);
  CHECK(num_outputs(Returns<std::vector<Tensor>>([](Tensor t) { return std::vector<Tensor>{t * 2, t * 3, t}; })) == 3);
  CHECK(num_outputs(Returns<std::tuple<Tensor, std::tuple<Tensor, Tensor>>>(
            [](Tensor t) { return std::make_tuple(t * 2, std::make_tuple(t * 3, t)); })) == 3);
  CHECK(num_outputs(Returns<std::optional<Tensor>>([](Tensor t) { return std::make_optional(t * 2); })) == 1);
  CHECK(num_outputs(Returns<std::optional<Tensor>>([](Tensor) { return std::nullopt; })) == 0);
  CHECK(num_outputs(Returns<std::map<std::string, Tensor>>(
            [](Tensor t) { return std::map<std::string, Tensor>{{"a", t * 2}}; })) == 1);
  CHECK(num_outputs(Returns<std::unordered_map<std::string, std::vector<Tensor>>>([](Tensor t) {
          return std::unordered_map<std::string, std::vector<Tensor>>{{"a", {t * 2, t * 3}}};
        })) == 2);
  CHECK(num_outputs(Returns<std::pair<Tensor, int>>([](Tensor t) { return std::make_pair(t * 2, 5); })) == 1);
  CHECK(num_outputs(
            Returns<std::unique_ptr<Pair>>([](Tensor t) { return std::make_unique<Pair>(Pair{t, t * 2, 3}); })) == 2);
  CHECK(num_outputs(Returns<Pair>([](Tensor t) { return Pair{t * 2, t * 3, 4}; })) == 2);
  CHECK(num_outputs(Returns<int>([](Tensor) { return 4; })) == 0);
  STATIC_CHECK_FALSE(weft::unit::is_unit_output_v<Opaque>);
  STATIC_CHECK_FALSE(weft::unit::is_unit_output_v<void>);
  STATIC_CHECK_FALSE(weft::unit::is_unit_output_v<Tensor&>);
  STATIC_CHECK_FALSE(weft::unit::is_unit_output_v<Tensor const&>);

  SECTION("and get backward hooks") {
    Returns<Pair> unit([](Tensor t) { return Pair{t * 2, t * 3, 4}; });
    unit->unit_attach(hook);
    auto const pair = unit(x);
    events.clear();
    (pair.first.sum() + pair.second.sum()).backward();
    CHECK(events == Events{"pre_backward"});
    CHECK(at::equal(x.grad(), at::full({2}, 5.0)));
  }
  SECTION("a unit that hands on its input") {
    Returns<Tensor> unit([](Tensor t) { return t; });
    unit->unit_attach(hook);
    auto const mid = x * 1;
    auto y = unit(mid);
    CHECK_THROWS(y.mul_(2));  // see [Note: backward hook and aliasing]
    y.sum().backward();
    CHECK(at::equal(x.grad(), at::ones({2})));
  }
}

TEST_CASE("hooks of backward run on whatever thread backward runs on", "[unit]") {
  Affine unit;
  Events events;
  unit->unit_attach(record(events, "", {.inputs = false, .pre_backward = true, .post_backward = true}));
  auto const x = at::ones({2}).requires_grad_();
  auto const loss = unit(x).sum();
  events.clear();
  std::thread([&] { loss.backward(); }).join();
  CHECK(events == Events{"pre_backward", "post_backward"});
}

}  // namespace
