#include "test.hpp"

#include <weft/unit/clone.hpp>

#include "units.hpp"

#include <weft/nn/normalization.hpp>

using weft::test::Count;

namespace clone_test {

// The convention of LibTorch for modules that can be cloned.
struct LeafImpl : torch::nn::Cloneable<LeafImpl> {
  explicit LeafImpl(double start) : start_(start) { reset(); }
  void reset() override {
    weight = register_parameter("weight", at::full({2}, start_));
    seen = register_buffer("seen", at::zeros({1}));
    frozen = register_parameter("frozen", at::ones({1}), /*requires_grad=*/false);
  }
  at::Tensor forward(at::Tensor const& x) {
    seen.add_(1);
    return x * weight * times;
  }
  double times = 1;
  at::Tensor weight, seen, frozen;

 private:
  double start_;
};
WEFT_MODULE(Leaf);

struct MiddleImpl : torch::nn::Cloneable<MiddleImpl> {
  MiddleImpl() { reset(); }
  void reset() override {
    leaf = register_module("leaf", Leaf(2.0));
    norm = register_module("norm", weft::nn::LayerNorm(weft::nn::LayerNormOptions({2})));
  }
  at::Tensor forward(at::Tensor const& x) { return norm(leaf(x)); }
  Leaf leaf = nullptr;
  weft::nn::LayerNorm norm = nullptr;
};
WEFT_MODULE(Middle);

struct RootImpl : torch::nn::Cloneable<RootImpl> {  // not a unit itself
  RootImpl() { reset(); }
  void reset() override {
    middle = register_module("middle", Middle());
    blocks = register_module("blocks", torch::nn::Sequential(Leaf(1.0), Leaf(1.0)));
  }
  at::Tensor forward(at::Tensor const& x) { return blocks->forward(middle(x)); }
  Middle middle = nullptr;
  torch::nn::Sequential blocks = nullptr;
};

struct PlainImpl : torch::nn::Module {  // nothing that LibTorch could clone
  PlainImpl() : weight(register_parameter("weight", at::ones({2}))) {}
  at::Tensor forward(at::Tensor const& x) { return x * weight; }
  at::Tensor weight;
  std::unique_ptr<int> unique;
};
WEFT_MODULE(Plain);

struct ParentOfPlainImpl : torch::nn::Cloneable<ParentOfPlainImpl> {
  ParentOfPlainImpl() { reset(); }
  void reset() override { plain = register_module("plain", Plain()); }
  at::Tensor forward(at::Tensor const& x) { return plain(x); }
  Plain plain = nullptr;
};
WEFT_MODULE(ParentOfPlain);

struct HeadImpl : torch::nn::LinearImpl {  // its Cloneable is LinearImpl's
  using torch::nn::LinearImpl::LinearImpl;
  at::Tensor forward(at::Tensor const& x) { return torch::nn::LinearImpl::forward(x) * scale; }
  double scale = 1;
};
WEFT_MODULE(Head);

struct StackImpl : torch::nn::SequentialImpl {  // its clone() is its own affair
  using torch::nn::SequentialImpl::SequentialImpl;
  at::Tensor forward(at::Tensor const& x) { return torch::nn::SequentialImpl::forward(x); }
};
WEFT_MODULE(Stack);

struct HomemadeImpl : torch::nn::Module {
  explicit HomemadeImpl(at::Tensor start) : weight(register_parameter("weight", std::move(start))) {}
  at::Tensor forward(at::Tensor const& x) { return x * weight; }
  std::shared_ptr<torch::nn::Module> clone(std::optional<torch::Device> const& = std::nullopt) const override {
    return std::make_shared<HomemadeImpl>(weight.detach().clone());
  }
  at::Tensor weight;
};
WEFT_MODULE(Homemade);

template <class Module>
void set_all(Module& module, double value) {
  at::NoGradGuard no_grad;
  for (auto& parameter : module.parameters()) parameter.fill_(value);
}

}  // namespace clone_test

namespace {
using namespace clone_test;

// The clone is a Kind, equal in everything registered, and shares no tensor.
template <class Kind>
std::shared_ptr<Kind> deep_clone(torch::nn::Module const& original) {
  auto const copy = std::dynamic_pointer_cast<Kind>(original.clone());
  REQUIRE(copy);
  auto const before = original.named_parameters(), after = copy->named_parameters();
  REQUIRE(after.keys() == before.keys());
  for (auto const& name : before.keys()) {
    INFO(name);
    CHECK(at::equal(before[name], after[name]));
    CHECK(before[name].requires_grad() == after[name].requires_grad());
    CHECK_FALSE(before[name].is_alias_of(after[name]));
  }
  auto const buffers = original.named_buffers();
  for (auto const& buffer : copy->named_buffers()) {
    CHECK(at::equal(buffers[buffer.key()], buffer.value()));
    CHECK_FALSE(buffers[buffer.key()].is_alias_of(buffer.value()));
  }
  return copy;
}

TEST_CASE("a clone of a unit is a unit without hooks", "[unit]") {
  Leaf leaf(3.0);
  leaf->times = 5;
  leaf->eval();
  Count entered(leaf);
  leaf->unit_adopt("here", std::make_shared<weft::unit::RootActivity>());
  Leaf copy(deep_clone<Leaf::Impl>(*leaf));
  CHECK(copy->unit_hooks().empty());
  CHECK(copy->unit_path().empty());
  CHECK(copy->times == 5);
  CHECK_FALSE(copy->is_training());
  CHECK(at::equal(copy(at::ones({2})), at::full({2}, 15.0)));
  CHECK(entered() == 0);
  CHECK(copy->weight.is_same(copy->named_parameters()["weight"]));
  CHECK(leaf->unit_hooks().size() == 1);
}

TEST_CASE("units inside of a clone are units", "[unit]") {
  auto const root = std::make_shared<RootImpl>();
  set_all(*root, 7);
  Count entered(root->middle->leaf);
  auto const copy = deep_clone<RootImpl>(*root);
  CHECK(entered() == 0);

  for (auto const& module : {copy->middle->leaf.ptr(), copy->blocks->ptr<Leaf::Impl>(0)})
    CHECK(module->unit_hooks().empty());
  CHECK(dynamic_cast<weft::unit::UnitBase*>(copy->middle->norm.get()));
  auto counted = copy->middle->leaf;
  Leaf block(copy->blocks->ptr<Leaf::Impl>(1));
  Count entered_copy(counted), entered_block(block);
  copy->forward(at::ones({2}));
  CHECK(entered_copy() == 1);
  CHECK(entered_block() == 1);
  CHECK(entered() == 0);
  // members and children are the same modules
  CHECK(copy->middle->leaf.ptr() == copy->middle->named_children()["leaf"]);
}

TEST_CASE("assigning into a unit leaves its hooks alone", "[unit]") {
  Leaf to(1.0), from(2.0);
  Count entered(to), other(from);
  static_cast<LeafImpl&>(*to) = *from;  // what clone_ does
  CHECK(to->unit_hooks().size() == 1);
  *to = *from;
  to(at::ones({2}));
  CHECK(entered() == 1);
  CHECK(other() == 0);
}

TEST_CASE("Sequential and AnyModule clone units", "[unit]") {
  torch::nn::Sequential sequential(Leaf(2.0), weft::nn::Linear(2, 2));
  auto const copy = deep_clone<torch::nn::SequentialImpl>(*sequential);
  CHECK(copy->at<Leaf::Impl>(0).unit_hooks().empty());
  CHECK(at::equal(copy->forward(at::ones({2})), sequential->forward(at::ones({2}))));
}

TEST_CASE("a plain module throws when cloned, and is not quietly made anew in a cloned parent", "[unit]") {
  CHECK_THROWS_WITH(Plain()->clone(),
                    Catch::Matchers::ContainsSubstring("derive clone_test::PlainImpl from torch::nn::Cloneable<"));
  CHECK_THROWS_WITH(ParentOfPlain()->clone(), Catch::Matchers::ContainsSubstring("clone_test::Plain cannot be cloned"));
}

TEST_CASE("a layer that derives from a Cloneable layer is cloned whole", "[unit]") {
  Head head(2, 3);
  head->scale = 4;
  Head copy(deep_clone<Head::Impl>(*head));
  CHECK(copy->scale == 4);
  CHECK(at::equal(copy(at::ones({2})), head(at::ones({2}))));
  CHECK(copy->weight.is_same(copy->named_parameters()["weight"]));

  Stack stack(Leaf(2.0), Leaf(3.0));
  Stack copied(deep_clone<Stack::Impl>(*stack));
  CHECK(at::equal(copied(at::ones({2})), at::full({2}, 6.0)));
}

TEST_CASE("a clone() of one's own is used", "[unit]") {
  Homemade it(at::full({2}, 3.0));
  Homemade copy(deep_clone<Homemade::Impl>(*it));
  CHECK(at::equal(copy(at::ones({2})), at::full({2}, 3.0)));
}

}  // namespace
