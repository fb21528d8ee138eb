#include "test.hpp"

#include <weft/core/error.hpp>
#include <weft/unit/backward_hook.hpp>

namespace {

using at::Tensor;
using torch::autograd::grad;

// A unit's edge as a test sees it: takes what left a unit, returns what its caller gets.
using Edge = std::function<std::vector<Tensor>(std::vector<Tensor>)>;

struct Counter : weft::unit::BackwardHook {
  int count = 0;
  std::function<void()> then;
  void pre_backward() override {
    ++count;
    if (then) then();
  }
};

Edge bare() {
  return [](std::vector<Tensor> outputs) { return outputs; };
}
Edge hooked(std::shared_ptr<weft::unit::BackwardHook> const& listener, std::vector<Tensor> const& inputs = {}) {
  weft::unit::Storages outside;
  for (auto const& input : inputs) weft::unit::add_storage(outside, input);
  return [=](std::vector<Tensor> outputs) {
    std::vector<Tensor*> pointers;
    for (auto& output : outputs) pointers.push_back(&output);
    weft::unit::add_backward_hook(listener, pointers, outside);
    return outputs;
  };
}

struct Probe {
  Tensor w = at::linspace(-1, 2, 16).view({4, 4}).clone().requires_grad_();
  Tensor x = at::linspace(-2, 3, 12).view({3, 4}).clone();
  Tensor mm() const { return at::mm(x, w); }
  Tensor gradient() const { return w.grad().defined() ? w.grad() : at::zeros_like(w); }
};

struct Case {
  char const* name;
  std::function<Tensor(Edge const&, Probe&)> run;
};

struct Result {
  bool threw = false;
  Tensor value;
};
Result attempt(Case const& it, Edge const& edge) {
  Probe probe;
  try {
    return {false, it.run(edge, probe).detach().clone()};
  } catch (std::exception const&) {
    return {true, {}};
  }
}

// [the cases of spikes/probes/border.cpp, and aliases]
std::vector<Case> const& cases() {
  static std::vector<Case> const all = {
      {"plain",
       [](Edge const& edge, Probe& p) {
         edge({p.mm()})[0].sum().backward();
         return p.gradient();
       }},
      {"in place on the output",
       [](Edge const& edge, Probe& p) {
         auto y = edge({p.mm()})[0];
         y.add_(1);
         y.pow(2).sum().backward();
         return p.gradient();
       }},
      {"in place on a view of the output",
       [](Edge const& edge, Probe& p) {
         auto y = edge({p.mm()})[0];
         y.slice(0, 0, 1).mul_(2);
         y.pow(2).sum().backward();
         return p.gradient();
       }},
      {"the output is a view, in place",
       [](Edge const& edge, Probe& p) {
         auto y = edge({p.mm().view({4, 3})})[0];
         y.mul_(2);
         y.pow(2).sum().backward();
         return p.gradient();
       }},
      {"sigmoid saves its output, then in place",
       [](Edge const& edge, Probe& p) {
         auto y = edge({at::sigmoid(p.mm())})[0];
         y.mul_(2);
         y.sum().backward();
         return p.gradient();
       }},
      {"two outputs, both used",
       [](Edge const& edge, Probe& p) {
         auto m = p.mm();
         auto o = edge({m.sin(), m.cos()});
         (o[0].sum() + o[1].sum()).backward();
         return p.gradient();
       }},
      {"two outputs, one used",
       [](Edge const& edge, Probe& p) {
         auto m = p.mm();
         auto o = edge({m.sin(), m.cos()});
         o[0].sum().backward();
         return p.gradient();
       }},
      {"two chunks, both in place",
       [](Edge const& edge, Probe& p) {
         auto m = p.mm().chunk(2, 1);
         auto o = edge({m[0], m[1]});
         o[0].mul_(2);
         o[1].add_(1);
         (o[0].pow(2).sum() + o[1].sum()).backward();
         return p.gradient();
       }},
      {"two outputs, two passes",
       [](Edge const& edge, Probe& p) {
         auto m = p.mm();
         auto o = edge({m.sin(), m.cos()});
         o[0].sum().backward({}, /*retain_graph=*/true);
         o[1].sum().backward();
         return p.gradient();
       }},
      {"an integer output beside",
       [](Edge const& edge, Probe& p) {
         auto o = edge({p.mm(), at::arange(3)});
         o[0].sum().backward();
         return p.gradient() + (o[1].requires_grad() ? 1 : 0);
       }},
      {"an output that needs no gradient beside",
       [](Edge const& edge, Probe& p) {
         auto m = p.mm();
         auto o = edge({m, m.detach() * 2});
         o[0].sum().backward();
         return p.gradient() + (o[1].requires_grad() ? 1 : 0);
       }},
      {"an output used three times",
       [](Edge const& edge, Probe& p) {
         auto y = edge({p.mm()})[0];
         (y.sum() + y.pow(2).sum() + y.exp().sum()).backward();
         return p.gradient();
       }},
      {"twice in one forward",
       [](Edge const& edge, Probe& p) {
         auto y = edge({p.mm()})[0];
         edge({at::mm(y, p.w)})[0].sum().backward();
         return p.gradient();
       }},
      {"two steps",
       [](Edge const& edge, Probe& p) {
         for (int i = 0; i < 2; ++i) edge({p.mm()})[0].sum().backward();
         return p.gradient();
       }},
      {"an exception in backward, then a good pass",
       [](Edge const& edge, Probe& p) {
         auto m = p.mm();
         m.register_hook([](Tensor) -> Tensor { throw std::runtime_error("boom"); });
         try {
           edge({m})[0].sum().backward();
         } catch (std::exception const&) {
         }
         edge({p.mm()})[0].sum().backward();
         return p.gradient();
       }},
      {"an exception from the final callback",
       [](Edge const& edge, Probe& p) {
         auto y = edge({p.mm()})[0];
         y.register_hook([](Tensor) {
           torch::autograd::Engine::get_default_engine().queue_callback(
               [] { throw std::runtime_error("from callback"); });
         });
         y.sum().backward();
         return p.gradient();
       }},
      {"gradient of an input only",
       [](Edge const& edge, Probe& p) {
         auto x = p.x.clone().requires_grad_();
         return grad({edge({at::mm(x, p.w)})[0].sum()}, {x})[0];
       }},
      {"a backward pass inside of another's hook",
       [](Edge const& edge, Probe& p) {
         auto inner = edge({p.mm()})[0].sum();
         auto y = at::ones({3}).requires_grad_();
         auto z = y * 2;
         z.register_hook([&](Tensor) { inner.backward(); });
         edge({z})[0].sum().backward();
         return p.gradient() + y.grad().sum();
       }},
      {"without grad mode",
       [](Edge const& edge, Probe& p) {
         at::NoGradGuard no_grad;
         auto y = edge({p.mm()})[0];
         return y + (y.requires_grad() ? 1 : 0);
       }},
      {"an undefined output beside",
       [](Edge const& edge, Probe& p) {
         auto o = edge({Tensor(), p.mm()});
         o[1].sum().backward();
         return p.gradient() + (o[0].defined() ? 1 : 0);
       }},
      {"one tensor in two places, in place on the first",
       [](Edge const& edge, Probe& p) {
         auto m = p.mm();
         auto o = edge({m, m});
         o[0].mul_(2);
         o[1].pow(2).sum().backward();
         return p.gradient();
       }},
      {"the weight itself, in place",
       [](Edge const& edge, Probe& p) {
         auto y = edge({p.w})[0];
         y.mul_(2);
         return y.sum();
       }},
      {"a view of the weight, in place",
       [](Edge const& edge, Probe& p) {
         auto y = edge({p.w.t()})[0];
         y.mul_(2);
         return y.sum();
       }},
      {"the weight itself, used",
       [](Edge const& edge, Probe& p) {
         (edge({p.w})[0] * p.w).sum().backward();
         return p.gradient();
       }},
      {"an upstream custom function of an unused output stays out",
       [](Edge const& edge, Probe& p) {
         auto m = p.mm();
         auto hidden = p.w * 1;
         bool reached = false;
         hidden.register_hook([&](Tensor g) {
           reached = true;
           return g;
         });
         auto o = edge({m.sin(), hidden.cos()});
         o[0].sum().backward();
         return p.gradient() + (reached ? 1 : 0);
       }},
  };
  return all;
}

TEST_CASE("a backward hook changes no result", "[unit]") {
  for (auto const& it : cases()) {
    auto const without = attempt(it, bare());
    auto const with = attempt(it, hooked(std::make_shared<Counter>()));
    INFO(it.name);
    CHECK(with.threw == without.threw);
    if (!with.threw && !without.threw) CHECK(at::equal(with.value, without.value));
  }
}

TEST_CASE("where storage is shared, in place behind a backward hook throws and isn't wrong", "[unit]") {
  auto const listener = std::make_shared<Counter>();
  Probe p;
  SECTION("two views of one tensor") {  // right without a hook; never silently wrong with one
    auto m = p.mm();
    auto o = hooked(listener)({m, m.view({-1})});
    CHECK_THROWS_WITH(o[0].mul_(2), Catch::Matchers::ContainsSubstring("is a view and is being modified inplace"));
  }
  SECTION("the input is handed on") {
    auto m = p.mm();
    auto y = hooked(listener, {m})({m.view({4, 3})})[0];
    CHECK_THROWS(y.mul_(2));
    (y * 2).sum().backward();
    CHECK(at::equal(p.gradient(), 2 * p.x.t().mm(at::ones({3, 4}))));
    CHECK(listener->count == 1);
  }
  SECTION("an output alone is free") {
    auto y = hooked(listener, {p.x})({p.mm()})[0];
    CHECK_NOTHROW(y.mul_(2));
    CHECK_FALSE(y.is_view());
  }
}

TEST_CASE("a backward hook runs once per backward pass", "[unit]") {
  auto const listener = std::make_shared<Counter>();
  auto const edge = hooked(listener);
  Probe p;
  auto const m = p.mm();
  SECTION("two outputs in one pass") {
    auto o = edge({m.sin(), m.cos()});
    (o[0].sum() + o[1].sum()).backward();
    CHECK(listener->count == 1);
  }
  SECTION("two outputs in a pass each: once in each") {
    auto o = edge({m.sin(), m.cos()});
    o[0].sum().backward({}, true);
    CHECK(listener->count == 1);
    o[1].sum().backward({}, true);
    CHECK(listener->count == 2);
    (o[0].sum() + o[1].sum()).backward();
    CHECK(listener->count == 3);
  }
  SECTION("a pass of another hook nested into it") {
    auto o = edge({m.sin(), m.cos()});
    auto inner = edge({p.mm()})[0].sum();
    bool done = false;
    listener->then = [&] {
      if (std::exchange(done, true)) return;
      at::AutoGradMode grad_mode(true);
      inner.backward();
    };
    (o[0].sum() + o[1].sum()).backward();
    CHECK(listener->count == 2);
  }
  SECTION("not if no gradient arrives") {
    auto o = edge({m.sin()});
    m.sum().backward();
    CHECK(listener->count == 0);
  }
}

TEST_CASE("pre_backward runs before any gradient goes on", "[unit]") {
  Probe p;
  std::vector<std::string> events;
  auto const listener = std::make_shared<Counter>();
  listener->then = [&] { events.push_back("enter"); };
  auto m = p.mm();
  m.register_hook([&](Tensor) { events.push_back("inside"); });
  auto y = hooked(listener)({m})[0];
  y.register_hook([&](Tensor) { events.push_back("outside"); });
  y.sum().backward();
  CHECK(events == std::vector<std::string>{"outside", "enter", "inside"});
}

TEST_CASE("an exception of the listener ends the pass, and the next one is entered", "[unit]") {
  Probe p;
  auto const listener = std::make_shared<Counter>();
  auto y = hooked(listener)({p.mm()})[0];
  listener->then = [] { throw weft::CommunicationError("weft: lost"); };
  CHECK_THROWS_WITH(y.sum().backward({}, true), Catch::Matchers::ContainsSubstring("weft: lost"));
  CHECK_FALSE(p.w.grad().defined());
  listener->then = nullptr;
  y.sum().backward();
  CHECK(listener->count == 2);
  CHECK(p.w.grad().defined());
}

TEST_CASE("create_graph is refused at a backward hook", "[unit]") {
  Probe p;
  auto const listener = std::make_shared<Counter>();
  auto x = p.x.clone().requires_grad_();
  auto y = hooked(listener)({at::mm(x, p.w).sin()})[0];
  CHECK_THROWS_WITH(grad({y.sum()}, {x}, {}, true, /*create_graph=*/true),
                    Catch::Matchers::ContainsSubstring("create_graph=true"));
  CHECK(listener->count == 0);
}

TEST_CASE("a joint backward hook waits for all of its tensors", "[unit]") {
  Probe p;
  std::vector<std::string> events;
  auto const listener = std::make_shared<Counter>();
  listener->then = [&] { events.push_back("leave"); };
  auto a = p.x.clone().requires_grad_();
  auto b = p.x.clone().requires_grad_();
  auto integer = at::arange(3);
  auto a_in = a * 1, b_in = b * 1;
  std::vector<Tensor*> pointers = {&a_in, &integer, &b_in};
  weft::unit::add_joint_backward_hook(listener, pointers);
  a_in.register_hook([&](Tensor) { events.push_back("a"); });
  b_in.register_hook([&](Tensor) { events.push_back("b"); });
  (a_in.mm(p.w).sum() + b_in.sin().sum()).backward();
  REQUIRE(events.size() == 3);
  CHECK(events.back() == "leave");
  CHECK(at::equal(b.grad(), p.x.cos()));
  CHECK_THROWS(a_in.mul_(2));
}

}  // namespace
