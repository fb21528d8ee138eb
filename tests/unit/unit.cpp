#include "test.hpp"

#include <weft/unit/unit.hpp>

#include "units.hpp"

#include <weft/nn/attention.hpp>
#include <weft/nn/recurrent.hpp>

using weft::test::Count;
using weft::test::Events;
using weft::test::RecordingHooks;

namespace unit_test {

struct ScaleImpl : torch::nn::Module {
  explicit ScaleImpl(int64_t size = 3, double by = 1) : weight(register_parameter("weight", at::full({size}, by))) {}
  at::Tensor forward(at::Tensor const& x, double times = 2, at::Tensor const& shift = {}) {
    auto y = x * weight * times;
    return shift.defined() ? y + shift : y;
  }
  at::Tensor twice(at::Tensor const& x) { return this->forward(this->forward(x)); }
  static int answer() { return 42; }

  at::Tensor weight;

 protected:
  FORWARD_HAS_DEFAULT_ARGS({1, torch::nn::AnyValue(2.0)}, {2, torch::nn::AnyValue(at::Tensor())})
};
WEFT_MODULE(Scale);

struct NoMacroImpl : torch::nn::Module {
  at::Tensor forward(at::Tensor x, double times = 2) { return x * times; }
};
WEFT_MODULE(NoMacro);

struct ConstImpl : torch::nn::Module {
  at::Tensor forward(at::Tensor const& x) const { return x + 1; }
};
WEFT_MODULE(Const);
struct NoexceptImpl : torch::nn::Module {
  at::Tensor forward(at::Tensor const& x) noexcept { return x + 1; }
};
WEFT_MODULE(Noexcept);
struct RefImpl : torch::nn::Module {
  at::Tensor forward(at::Tensor const& x) const& noexcept { return x + 1; }
};
WEFT_MODULE(Ref);

struct VirtualImpl : torch::nn::Module {
  virtual at::Tensor forward(at::Tensor const& x) { return x + 1; }
};
WEFT_MODULE(Virtual);

// A module may call its members what it likes.
struct NamesImpl : torch::nn::Module {
  at::Tensor forward(at::Tensor const& x) { return call(x) + path; }
  at::Tensor call(at::Tensor const& x) { return hooks * x; }
  double path = 1, hooks = 2, type = 3, state = 4;
};
WEFT_MODULE(Names);

// Arguments by every way that C++ has.
struct ArgumentsImpl : torch::nn::Module {
  at::Tensor forward(at::Tensor const& a, std::unique_ptr<int> b, at::Tensor& c, std::vector<at::Tensor>&& d) {
    c = a + 1;
    return a * *b + d.at(0);
  }
};
WEFT_MODULE(Arguments);

struct NamedImpl : torch::nn::Module {
  NamedImpl() : torch::nn::Module("my own name") {}
  at::Tensor forward(at::Tensor const& x) { return x; }
};
WEFT_MODULE(Named);

struct ParentImpl : torch::nn::Module {
  ParentImpl() : first(register_module("first", Scale(3))), second(register_module("second", weft::nn::Linear(3, 3))) {}
  at::Tensor forward(at::Tensor const& x) { return second(first(x)); }
  Scale first;
  weft::nn::Linear second;
};
WEFT_MODULE(Parent);

struct PlainParentImpl : torch::nn::Module {
  PlainParentImpl()
      : first(register_module("first", std::make_shared<ScaleImpl>(3))),
        second(register_module("second", torch::nn::Linear(3, 3))) {}
  at::Tensor forward(at::Tensor const& x) { return second(first->forward(x)); }
  std::shared_ptr<ScaleImpl> first;
  torch::nn::Linear second;
};

template <class T>
std::string printed(T const& value) {
  std::ostringstream text;
  text << value;
  return text.str();
}

}  // namespace unit_test

namespace {
using namespace unit_test;

TEST_CASE("a unit's forward has exactly the type of its base's", "[unit]") {
  STATIC_CHECK(std::is_same_v<decltype(&Scale::Impl::forward),
                              at::Tensor (Scale::Impl::*)(at::Tensor const&, double, at::Tensor const&)>);
  STATIC_CHECK(std::is_same_v<decltype(&NoMacro::Impl::forward), at::Tensor (NoMacro::Impl::*)(at::Tensor, double)>);
  STATIC_CHECK(std::is_same_v<decltype(&Const::Impl::forward), at::Tensor (Const::Impl::*)(at::Tensor const&) const>);
  STATIC_CHECK(
      std::is_same_v<decltype(&Noexcept::Impl::forward), at::Tensor (Noexcept::Impl::*)(at::Tensor const&) noexcept>);
  STATIC_CHECK(
      std::is_same_v<decltype(&Ref::Impl::forward), at::Tensor (Ref::Impl::*)(at::Tensor const&) const & noexcept>);
  STATIC_CHECK(std::is_base_of_v<ScaleImpl, Scale::Impl>);
  STATIC_CHECK(std::is_base_of_v<weft::unit::UnitBase, Scale::Impl>);
  CHECK(Scale::Impl::answer() == 42);
}

TEST_CASE("every qualifier of forward is intercepted", "[unit]") {
  auto const x = at::ones({2});
  auto const check = [&](auto holder) {
    Count entered(holder);
    CHECK(at::equal(holder(x), x + 1));
    CHECK(at::equal(holder->forward(x), x + 1));
    CHECK(entered() == 2);
  };
  check(Const());
  check(Noexcept());
  check(Ref());
  check(Virtual());
}

TEST_CASE("a unit that is not in use computes what its base does", "[unit]") {
  torch::manual_seed(1);
  Parent unit;
  torch::manual_seed(1);
  PlainParentImpl plain;
  auto const x = at::randn({2, 3});
  CHECK(at::equal(unit(x), plain.forward(x)));
}

TEST_CASE("default arguments", "[unit]") {
  Scale scale(3);
  Count entered(scale);
  auto const x = at::ones({3});
  SECTION("through the holder") {
    CHECK(at::equal(scale(x), x * 2));
    CHECK(at::equal(scale(x, 3), x * 3));  // an int, converted as forward would
    CHECK(at::equal(scale(x, 3.0, x), x * 4));
    CHECK(entered() == 3);
  }
  SECTION("through Sequential and AnyModule") {
    torch::nn::Sequential sequential(scale);
    CHECK(at::equal(sequential->forward(x), x * 2));
    CHECK(at::equal(sequential->forward(x, 3.0), x * 3));
    torch::nn::AnyModule any(scale);
    CHECK(at::equal(any.forward(x, 3.0, x), x * 4));
    CHECK(entered() == 3);
  }
  SECTION("of LibTorch's own layers, in Sequential") {
    torch::nn::Sequential sequential(weft::nn::LSTM(3, 4));
    auto const out =
        sequential->forward<std::tuple<at::Tensor, std::tuple<at::Tensor, at::Tensor>>>(at::ones({1, 1, 3}));
    CHECK(std::get<0>(out).size(2) == 4);
  }
  SECTION("without FORWARD_HAS_DEFAULT_ARGS Sequential asks for it, as for any module") {
    torch::nn::Sequential sequential{NoMacro()};
    CHECK_THROWS_WITH(sequential->forward(x), Catch::Matchers::ContainsSubstring("FORWARD_HAS_DEFAULT_ARGS"));
    CHECK(at::equal(sequential->forward(x, 3.0), x * 3));
    CHECK(at::equal(NoMacro()(x), x * 2));
  }
}

TEST_CASE("ways to call a unit that enter it", "[unit]") {
  Scale scale(3);
  Count entered(scale);
  auto const x = at::ones({3});
  scale(x);
  scale->forward(x, 2, {});
  scale.ptr()->forward(x, 2, {});
  CHECK(entered() == 3);

  torch::nn::Sequential sequential(scale);
  sequential->forward(x);
  sequential->at<Scale::Impl>(0).forward(x, 2, {});
  sequential->ptr<Scale::Impl>(0)->forward(x, 2, {});
  CHECK(entered() == 6);

  torch::nn::ModuleList list(scale);
  list[0]->as<Scale>()->forward(x, 2, {});
  CHECK(entered() == 7);

  torch::nn::AnyModule any(scale);
  any.forward(x);
  any.get<Scale>()(x);
  CHECK(entered() == 9);
}

TEST_CASE("ways to call a unit that reach the base, or throw", "[unit]") {
  Scale scale(3);
  Count entered(scale);
  auto const x = at::ones({3});
  std::shared_ptr<torch::nn::Module> const module = scale.ptr();
  CHECK(at::equal(module->as<ScaleImpl>()->forward(x), x * 2));
  ScaleImpl& base = *scale;
  CHECK(at::equal(base.forward(x), x * 2));
  CHECK(at::equal(scale->twice(x), x * 4));  // this->forward
  CHECK(entered() == 0);

  torch::nn::Sequential sequential(scale);
  CHECK_THROWS_WITH(sequential->at<ScaleImpl>(0),
                    Catch::Matchers::ContainsSubstring("Attempted to cast module of type"));
  CHECK_THROWS(sequential->ptr<ScaleImpl>(0));

  SECTION("unless forward is virtual") {
    Virtual it;
    Count entered_virtual(it);
    it.ptr()->as<VirtualImpl>()->forward(x);
    CHECK(entered_virtual() == 1);
  }
}

TEST_CASE("a unit leaves its module's names alone", "[unit]") {
  Names names;
  auto const x = at::ones({2});
  CHECK(at::equal(names(x), x * 3));
  CHECK(at::equal(names->call(x), x * 2));
  CHECK(names->path + names->hooks + names->type + names->state == 10);

  Parent parent;
  PlainParentImpl plain;
  CHECK(parent->named_parameters().keys() == plain.named_parameters().keys());
  CHECK(parent->named_modules().keys().size() == plain.named_modules("", false).keys().size() + 1);
}

TEST_CASE("arguments go through as they are", "[unit]") {
  Arguments it;
  auto const a = at::ones({2});
  auto const check = [&] {
    auto c = at::zeros({2});
    CHECK(at::equal(it(a, std::make_unique<int>(3), c, std::vector<at::Tensor>{a}), a * 4));
    CHECK(at::equal(c, a + 1));
  };
  check();
  Events events;
  it->unit_attach(std::make_shared<RecordingHooks>(events));
  check();
  CHECK(events == Events{"enter", "leave"});
}

TEST_CASE("printing shows the user's name", "[unit]") {
  CHECK(printed(Scale(3)) == "unit_test::Scale");
  CHECK(Scale(3)->name() == "unit_test::ScaleImpl");  // as with TORCH_MODULE
  CHECK(Scale(3)->unit_type() == "unit_test::Scale");
  CHECK(printed(weft::nn::Linear(3, 4)) == printed(torch::nn::Linear(3, 4)));
  CHECK(printed(Named()) == "my own name");
  CHECK(printed(Parent()) ==
        "unit_test::Parent(\n"
        "  (first): unit_test::Scale\n"
        "  (second): torch::nn::Linear(in_features=3, out_features=3, bias=true)\n"
        ")");
  CHECK(weft::unit::shown_name("(anonymous namespace)::BlockImpl") == "Block");
  CHECK(weft::unit::shown_name("my::(anonymous namespace)::BlockImpl") == "Block");
  CHECK(weft::unit::shown_name("my::Pair<other::(anonymous namespace)::First, (anonymous namespace)::Second>") ==
        "my::Pair<First, Second>");
  CHECK(weft::unit::shown_name("Impl") == "Impl");
}

TEST_CASE("a holder of a unit is a holder", "[unit]") {
  Scale empty = nullptr;
  CHECK_FALSE(empty);
  CHECK_THROWS_WITH(empty(at::ones({3})), Catch::Matchers::ContainsSubstring("empty ModuleHolder"));
  Scale const a(3);
  Scale b = a;
  CHECK(b.ptr() == a.ptr());
  Scale default_constructed;
  CHECK(default_constructed->weight.size(0) == 3);
  Scale from_pointer(std::make_shared<Scale::Impl>(5));
  CHECK(from_pointer->weight.size(0) == 5);

  std::stringstream stream;
  torch::save(a, stream);
  Scale loaded(3, 7.0);
  torch::load(loaded, stream);
  CHECK(at::equal(loaded->weight, a->weight));
  STATIC_CHECK(std::is_invocable_v<Scale&, at::Tensor>);
  STATIC_CHECK_FALSE(std::is_invocable_v<Scale&, std::string>);
}

}  // namespace
