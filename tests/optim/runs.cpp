#include "test.hpp"

#include <weft/optim/adam.hpp>
#include <weft/optim/sgd.hpp>

#include "../shard/models.hpp"

using namespace test;

namespace {

/// Parameters of odd sizes in one piece of memory, as a sharded unit has them, their gradients in another.
struct Flat {
  explicit Flat(std::vector<int64_t> const& numels, at::ScalarType dtype = at::kFloat) {
    int64_t total = 0;
    for (auto const numel : numels) total += numel;
    auto generator = at::detail::createCPUGenerator(3);
    memory = at::randn({total}, generator, at::kFloat).to(dtype);
    gradients = at::randn({total}, generator, at::kFloat).to(dtype);
    int64_t begin = 0;
    for (auto const numel : numels) {
      auto& parameter = parameters.emplace_back(at::empty({0}, dtype).requires_grad_());
      parameter.set_data(memory.narrow(0, begin, numel));
      parameter.mutable_grad() = gradients.narrow(0, begin, numel);
      begin += numel;
    }
  }
  std::vector<weft::optim::NamedParameter> named() const {
    std::vector<weft::optim::NamedParameter> result;
    for (std::size_t i = 0; i < parameters.size(); ++i) result.push_back({"p" + std::to_string(i), parameters[i]});
    return result;
  }
  at::Tensor memory, gradients;
  std::vector<at::Tensor> parameters;
};

/// As many tensors as a kernel would get.
std::size_t num_lists(std::vector<at::Tensor> const& parameters, std::vector<at::Tensor>& states) {
  weft::optim::FusedCall call(at::kCPU, at::kFloat, 1);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    call.add(parameters[i], parameters[i].grad());
    call.add_state(0, states[i]);
  }
  auto const lists = call.prepare({"state"});
  CHECK(lists.gradients.size() == lists.parameters.size());
  CHECK(lists.states[0].size() == lists.parameters.size());
  int64_t numel = 0;
  for (auto const& parameter : lists.parameters) numel += parameter.numel();
  int64_t expected = 0;
  for (auto const& parameter : parameters) expected += parameter.numel();
  CHECK(numel == expected);
  return lists.parameters.size();
}

}  // namespace

TEST_CASE("neighbors in memory are one tensor to a fused kernel, until something lies between them", "[optim][runs]") {
  at::NoGradGuard const no_grad;
  Flat flat({5, 0, 7, 1, 9});
  std::vector<at::Tensor> states(5);
  CHECK(num_lists(flat.parameters, states) == 1);
  CHECK(states[1].sizes() == at::IntArrayRef{0});  // has a state, and nothing to step
  for (auto const& state : {states[2], states[3], states[4]})
    CHECK(state.storage().unsafeGetStorageImpl() == states[0].storage().unsafeGetStorageImpl());
  CHECK(num_lists(flat.parameters, states) == 1);  // with the states of the first call

  states[2] = states[2].clone();  // as loading does: the run falls apart, and nothing else happens
  CHECK(num_lists(flat.parameters, states) == 4);

  Flat gap({5, 7, 9});
  gap.parameters.erase(gap.parameters.begin() + 1);  // of another group, or without gradient
  std::vector<at::Tensor> two(2);
  CHECK(num_lists(gap.parameters, two) == 2);

  Flat elsewhere({5, 7, 9});
  elsewhere.parameters[1].mutable_grad() = elsewhere.parameters[1].grad().clone();
  std::vector<at::Tensor> three(3);
  CHECK(num_lists(elsewhere.parameters, three) == 3);
}

TEST_CASE("a run is stepped like its parameters one by one", "[optim][runs]") {
  auto const dtype = GENERATE(at::kFloat, at::kDouble);
  INFO(dtype);
  auto const compare = [&](auto const& description) {
    Flat run({5, 1, 37, 0, 64, 3}, dtype), apart({5, 1, 37, 0, 64, 3}, dtype);
    for (auto& parameter : apart.parameters) {
      parameter.set_data(parameter.detach().clone());
      parameter.mutable_grad() = parameter.grad().clone();
    }
    auto const together = description.make(run.named()), single = description.make(apart.named());
    for (int step = 0; step < 5; ++step) {
      if (step == 2) {  // unused for once: the run is in two pieces, and one step behind from then on
        run.parameters[2].mutable_grad().reset();
        apart.parameters[2].mutable_grad().reset();
      }
      together->step();
      single->step();
      for (std::size_t i = 0; i < run.parameters.size(); ++i)
        CHECK(relative_difference(run.parameters[i].detach(), apart.parameters[i].detach()) <=
              (dtype == at::kDouble ? 1e-14 : 1e-6));
    }
  };
  compare(weft::SGD{.lr = 0.1});
  compare(weft::SGD{.lr = 0.1, .momentum = 0.9, .weight_decay = 0.01});
  compare(weft::Adam{.lr = 0.01, .weight_decay = 0.1});
  compare(weft::AdamW{.lr = 0.01, .amsgrad = true});
}

TEST_CASE("sharded, each bucket's parameters and states are one run", "[optim][runs][shard]") {
  using Full = weft::FSDP<weft::FullShard, weft::WrapPolicy<Block>, weft::Bucket<1>>;
  CHECK(on_ranks<Full>(2, [](Run<Full>& fabric) {
          auto [model, optimizer] = fabric.setup(Stack(3), weft::AdamW{.lr = 0.01});
          for (int step = 0; step < 2; ++step) {
            fabric.backward(model(at::ones({2, 5})).sum());
            weft::optim::FusedCall call(at::kCPU, at::kFloat, 1);
            std::vector<at::Tensor> states(model.parameters().size());
            for (std::size_t i = 0; i < states.size(); ++i) {
              auto const parameter = model.parameters()[i];
              call.add(parameter, parameter.grad());
              auto const& known = (*optimizer).state();
              if (auto const found = known.find(parameter.unsafeGetTensorImpl()); found != known.end())
                states[i] = static_cast<torch::optim::AdamWParamState&>(*found->second).exp_avg();
              call.add_state(0, states[i]);
            }
            at::NoGradGuard const no_grad;
            // Three blocks between the root's two layers.
            auto const num = call.prepare({"state"}).parameters.size();
            expect(num <= 5, "at most five runs, but there are " + std::to_string(num));
            optimizer.step();
            optimizer.zero_grad();
          }
          return 1;
        }) == 1);
}
