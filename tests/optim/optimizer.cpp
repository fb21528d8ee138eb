#include "test.hpp"

#include <weft/optim/optimizer.hpp>

#include <weft/optim/adam.hpp>
#include <weft/optim/sgd.hpp>

namespace {

at::Tensor one() { return torch::ones({2}, torch::requires_grad()); }

}  // namespace

TEST_CASE("torch's learning rate schedulers drive weft's optimizers", "[optim]") {
  auto rates = [](torch::optim::Optimizer& optimizer) {
    torch::optim::StepLR schedule(optimizer, /*step_size=*/2, /*gamma=*/0.1);
    std::vector<double> seen;
    for (int epoch = 0; epoch < 6; ++epoch) {
      seen.push_back(optimizer.param_groups()[0].options().get_lr());
      optimizer.step();
      schedule.step();
    }
    return seen;
  };
  at::Tensor p = one();
  weft::Optimizer optimizer(weft::AdamW{.lr = 1.0}.make({{"p", p}}));
  torch::optim::AdamW theirs({p}, torch::optim::AdamWOptions(1.0));
  auto const ours = rates(optimizer);
  CHECK(ours == rates(theirs));
  CHECK(ours.back() < 0.2);
}

TEST_CASE("a changed learning rate counts from the next step on", "[optim]") {
  at::Tensor p = one();
  weft::Optimizer optimizer(weft::SGD{.lr = 0.5}.make({{"p", p}}));
  p.mutable_grad() = torch::ones({2});
  optimizer.step();
  optimizer->param_groups()[0].options().set_lr(0.25);
  optimizer.step();
  CHECK(at::equal(p, torch::full({2}, 0.25)));
}

TEST_CASE("a handle borrows or shares", "[optim]") {
  at::Tensor p = one();
  torch::optim::SGD theirs({p}, torch::optim::SGDOptions(1.0));
  auto borrowed = weft::Optimizer<torch::optim::SGD>::borrow(theirs);
  CHECK(&*borrowed == &theirs);
  torch::optim::Optimizer& base = borrowed;
  CHECK(&base == &theirs);

  auto shared = std::make_shared<torch::optim::SGD>(std::vector{p}, torch::optim::SGDOptions(1.0));
  weft::Optimizer handle(shared);
  CHECK(shared.use_count() == 2);
  CHECK_THROWS_AS(weft::Optimizer<torch::optim::SGD>(std::shared_ptr<torch::optim::SGD>()), weft::ConfigurationError);
}

TEST_CASE("a closure is called once per step with gradients on", "[optim]") {
  at::Tensor p = one();
  weft::Optimizer optimizer(weft::SGD{.lr = 0.25}.make({{"p", p}}));
  int calls = 0;
  torch::NoGradGuard no_grad;
  at::Tensor const loss = optimizer.step([&] {
    ++calls;
    optimizer.zero_grad();
    at::Tensor value = (p * p).sum();
    value.backward();
    return value;
  });
  CHECK(calls == 1);
  CHECK(loss.item<double>() == 2.0);
  CHECK(at::equal(p, torch::full({2}, 0.5)));

  weft::Optimizer lbfgs(std::make_unique<torch::optim::LBFGS>(std::vector{p}, torch::optim::LBFGSOptions(1.0)));
  lbfgs.step([&] {
    lbfgs.zero_grad();
    at::Tensor value = (p * p).sum();
    value.backward();
    return value;
  });
  CHECK(p.abs().max().item<double>() < 1e-3);
}

TEST_CASE("zero_grad works on gradients that are views of a bucket, where torch's throws", "[optim]") {
  at::Tensor bucket = torch::ones({4});
  at::Tensor p = one(), q = one(), unused = one();
  p.mutable_grad() = bucket.as_strided({2}, {1}, 0);
  q.mutable_grad() = bucket.as_strided({2}, {1}, 2);
  weft::Optimizer optimizer(weft::SGD{.lr = 1}.make({{"p", p}, {"q", q}, {"unused", unused}}));
  optimizer.zero_grad(/*set_to_none=*/false);
  CHECK(at::equal(bucket, torch::zeros({4})));
  CHECK(p.grad().defined());
  CHECK(!unused.grad().defined());
  optimizer.zero_grad();
  CHECK(!p.grad().defined());
  CHECK(!q.grad().defined());
}

TEST_CASE("zero_grad cuts a gradient that has a history", "[optim]") {
  at::Tensor p = one();
  p.mutable_grad() = p * p;  // as a backward with create_graph leaves it
  REQUIRE(p.grad().requires_grad());
  weft::Optimizer optimizer(weft::SGD{.lr = 1}.make({{"p", p}}));
  optimizer.zero_grad(false);
  CHECK(!p.grad().requires_grad());
  CHECK(at::equal(p.grad(), torch::zeros({2})));
}

TEST_CASE("parameters() are those of all groups", "[optim]") {
  at::Tensor p = one(), q = one();
  weft::Optimizer optimizer(weft::SGD{
      .groups = {{.when = [](std::string_view name, at::Tensor const&) { return name == "q"; },
                  .lr = 1.0}}}.make({{"p", p}, {"q", q}}));
  REQUIRE(optimizer.parameters().size() == 2);
  CHECK(optimizer.parameters()[0].is_same(q));
  CHECK(optimizer.parameters()[1].is_same(p));
}

TEST_CASE("of several step rules the first is asked first and told last, and one that refuses ends the step",
          "[optim]") {
  struct Rule final : weft::optim::StepRule {
    Rule(std::string it, std::string& log, bool steps = true) : name(std::move(it)), told(log), allows(steps) {}
    bool unscale() override {
      told += " unscale " + name;
      return allows;
    }
    bool begin_step(torch::optim::Optimizer&, bool) override {
      told += " begin " + name;
      return allows;
    }
    void end_step(torch::optim::Optimizer&) override { told += " end " + name; }
    void zeroed() override { told += " zeroed " + name; }
    std::string name;
    std::string& told;
    bool allows;
  };
  at::Tensor p = one();
  p.mutable_grad() = torch::ones({2});
  std::string told;
  auto const rule = [&](char const* name, bool allows = true) { return std::make_shared<Rule>(name, told, allows); };
  weft::Optimizer both(weft::SGD{.lr = 0.5}.make({{"p", p}}), {rule("a"), rule("b")});
  CHECK(both.step());
  CHECK(both.unscale());
  both.zero_grad(/*set_to_none=*/false);
  CHECK(told == " begin a begin b end b end a unscale a unscale b zeroed a zeroed b");
  told.clear();
  p.mutable_grad() = torch::ones({2});
  weft::Optimizer refused(weft::SGD{.lr = 0.5}.make({{"p", p}}), {rule("a"), rule("b", false), rule("c")});
  CHECK_FALSE(refused.step());
  CHECK_FALSE(refused.unscale());
  CHECK(told == " begin a begin b unscale a unscale b unscale c");
  CHECK(at::equal(p, torch::full({2}, 0.5)));  // the first one's step alone
}
