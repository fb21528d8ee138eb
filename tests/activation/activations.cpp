#include "expect.hpp"
#include "same.hpp"

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <weft/activation/file_store.hpp>
#include <weft/model/activation_rules.hpp>
#include <weft/nn/linear.hpp>
#include <weft/nn/normalization.hpp>
#include <weft/report/allocator.hpp>
#include <weft/unit/unit.hpp>

using namespace weft;
using Catch::Matchers::ContainsSubstring;
using test::check_same;
using test::message_of;

namespace {

struct CellImpl : torch::nn::Module {
  explicit CellImpl(int64_t width = 6) {
    up = register_module("up", torch::nn::Linear(width, 2 * width));
    down = register_module("down", torch::nn::Linear(2 * width, width));
  }
  at::Tensor forward(at::Tensor const& x) {
    ++calls;
    return x + down(at::dropout(at::gelu(up(x)), 0.3, is_training()));
  }
  int calls = 0;
  torch::nn::Linear up = nullptr, down = nullptr;
};
WEFT_MODULE(Cell);

/// Units inside of a unit, a container among the arguments, an argument that is no tensor, several outputs, one of them
/// without gradient.
struct PairImpl : torch::nn::Module {
  PairImpl() {
    first = register_module("first", Cell());
    second = register_module("second", Cell());
  }
  std::tuple<at::Tensor, at::Tensor> forward(std::vector<at::Tensor> const& xs, double factor) {
    ++calls;
    auto const h = first(xs[0]) * factor;
    return {second(h).tanh() + xs[1], h.detach().sum()};
  }
  int calls = 0;
  Cell first = nullptr, second = nullptr;
};
WEFT_MODULE(Pair);

struct NetImpl : torch::nn::Module {
  NetImpl() {
    pairs = {register_module("pair", Pair()), nullptr};
    cell = register_module("cell", Cell());
  }
  at::Tensor forward(at::Tensor x) {
    x = cell(x);
    auto const [y, sum] = pairs[0](std::vector<at::Tensor>{x, x.sigmoid()}, 0.5);
    return cell(y) * sum;  // called twice
  }
  std::vector<Pair> pairs;
  Cell cell = nullptr;
};
TORCH_MODULE(Net);

template <class... Policies>
void apply(torch::nn::Module& root,
           std::shared_ptr<activation::ActivationStore> const& store = std::make_shared<activation::HostMemory>()) {
  model::set_activations(root, model::memory_rules(core::TypeList<Policies...>{}), store);
}

/// Values, gradients, and random numbers after them, of two passes; the second one accumulates.
template <class... Policies>
std::vector<at::Tensor> run(
    std::shared_ptr<activation::ActivationStore> const& store = std::make_shared<activation::HostMemory>(),
    bool input_trains = true) {
  torch::manual_seed(3);
  Net net;
  if constexpr (sizeof...(Policies) > 0) apply<Policies...>(*net, store);
  auto const x = at::randn({4, 6}).set_requires_grad(input_trains);
  std::vector<at::Tensor> result;
  for (int pass = 0; pass < 2; ++pass) {
    auto const y = net(x);
    y.pow(2).sum().backward();
    result.push_back(y.detach());
  }
  if (input_trains) result.push_back(x.grad());
  for (auto const& parameter : net->parameters()) result.push_back(parameter.grad());
  result.push_back(at::rand({3}));
  return result;
}

/// A store on the disk, in an empty directory of its own.
struct Folder {
  Folder() : path(std::filesystem::temp_directory_path() / ("weft_activations_" + std::to_string(::getpid()))) {
    std::filesystem::create_directory(path);
    files = std::make_shared<activation::FilesBelow>(path);
  }
  ~Folder() { std::filesystem::remove_all(path); }
  std::filesystem::path path;
  std::shared_ptr<activation::FilesBelow> files;
};

/// What LibTorch warns of while it lives.
struct Warnings : c10::WarningHandler {
  void process(c10::Warning const& warning) override { texts.push_back(warning.msg()); }
  std::vector<std::string> texts;
};

}  // namespace

TEST_CASE("units that are recomputed have the bits of plain ones: nested, several outputs, called twice, any arguments",
          "[unit][recompute]") {
  for (bool const input_trains : {true, false}) {
    auto const store = std::make_shared<activation::HostMemory>();
    auto const expected = run<>(store, input_trains);
    check_same(run<ActivationCheckpointing<Cell>>(store, input_trains), expected);
    check_same(run<ActivationCheckpointing<Pair>>(store, input_trains), expected);
    check_same(run<ActivationCheckpointing<Pair, Cell>>(store, input_trains), expected);
    check_same(run<ActivationCheckpointing<PairImpl, CellImpl>>(store, input_trains), expected);
  }
}

TEST_CASE("a unit runs once more in backward, and never without gradients; a model that is gone takes the policy along",
          "[unit][recompute]") {
  Cell cell;
  auto net = torch::nn::Sequential(cell);
  apply<ActivationCheckpointing<Cell>>(*net);
  auto const x = at::ones({2, 6});
  net->forward(x).sum().backward();
  CHECK(cell->calls == 2);
  {
    at::NoGradGuard const no_grad;
    net->forward(x);
  }
  CHECK(cell->calls == 3);
  for (auto const& parameter : net->parameters()) parameter.set_requires_grad(false);
  net->forward(x);
  CHECK(cell->calls == 4);
  model::reset_activations(*net);
  for (auto const& parameter : net->parameters()) parameter.set_requires_grad(true);
  net->forward(x).sum().backward();
  CHECK(cell->calls == 5);
  // A clone is a new module.
  apply<ActivationCheckpointing<Cell>>(*net);
  auto const copy = std::make_shared<Cell::Impl>(*cell);
  copy->forward(x).sum().backward();
  CHECK(copy->calls == cell->calls + 1);
}

TEST_CASE("under autocast a unit's re-run is what its forward was", "[unit][recompute]") {
  auto const run = [](bool recomputes) {
    torch::manual_seed(1);
    Cell cell;
    if (recomputes) apply<ActivationCheckpointing<Cell>>(*cell);
    std::vector<at::Tensor> result;
    for (int step = 0; step < 2; ++step) {
      at::autocast::set_autocast_enabled(at::kCPU, true);
      auto const y = cell(at::ones({2, 6}));
      at::autocast::set_autocast_enabled(at::kCPU, false);
      at::autocast::clear_cache();
      y.to(at::kFloat).pow(2).sum().backward();
      at::NoGradGuard const no_grad;
      for (auto const& parameter : cell->parameters()) parameter.sub_(parameter.grad(), 0.1);
      result.push_back(y.detach());
    }
    for (auto const& parameter : cell->parameters()) result.push_back(parameter.grad());
    return result;
  };
  auto const again = run(true);
  CHECK_FALSE(again[0].equal(again[1]));
  check_same(again, run(false));
}

TEST_CASE("a graph outlives its module", "[unit][recompute]") {
  auto const run = [](bool recomputes) {
    torch::manual_seed(1);
    auto cell = std::make_shared<Cell::Impl>();
    if (recomputes) apply<ActivationCheckpointing<Cell>>(*cell);
    auto const weight = cell->up->weight;
    auto const y = cell->forward(at::ones({2, 6})).pow(2).sum();
    cell.reset();
    y.backward();
    return std::vector{weight.grad()};
  };
  check_same(run(true), run(false));
}

TEST_CASE("the running statistics of BatchNorm move once", "[unit][recompute]") {
  struct NormedImpl : torch::nn::Module {
    NormedImpl() {
      linear = register_module("linear", torch::nn::Linear(6, 6));
      norm = register_module("norm", torch::nn::BatchNorm1d(6));
    }
    at::Tensor forward(at::Tensor const& x) { return norm(linear(x)).tanh(); }
    torch::nn::Linear linear = nullptr;
    torch::nn::BatchNorm1d norm = nullptr;
  };
  using Normed = unit::Holder<NormedImpl>;
  auto const run = [](bool recomputes) {
    torch::manual_seed(1);
    Normed unit;
    if (recomputes) apply<ActivationCheckpointing<Normed>>(*unit);
    std::vector<at::Tensor> result;
    for (int step = 0; step < 3; ++step) unit(at::randn({5, 6})).pow(2).sum().backward();
    for (auto const& buffer : unit->buffers()) result.push_back(buffer.clone());
    for (auto const& parameter : unit->parameters()) result.push_back(parameter.grad());
    return result;
  };
  auto const again = run(true);
  CHECK(again[2].item<int64_t>() == 3);  // num_batches_tracked
  check_same(again, run(false));
}

TEST_CASE("a forward that is noexcept is run to its end", "[unit][recompute]") {
  struct QuietImpl : torch::nn::Module {
    at::Tensor forward(at::Tensor const& x) noexcept {
      auto const y = x.exp();
      ++ends;
      return y + 1;
    }
    int ends = 0;
  };
  using Quiet = unit::Holder<QuietImpl>;
  Quiet unit;
  apply<ActivationCheckpointing<Quiet>>(*unit);
  auto const x = at::ones({3}).set_requires_grad(true);
  unit(x).sum().backward();
  CHECK(unit->ends == 2);
  CHECK(at::allclose(x.grad(), x.exp()));
}

TEST_CASE("a re-run that does something else is an error that names the unit", "[unit][recompute]") {
  struct FickleImpl : torch::nn::Module {
    at::Tensor forward(at::Tensor const& x) {
      switch (++calls % 2 == 1 ? 0 : way) {
        case 1:
          return x + 1;
        case 2:
          return x.narrow(0, 0, 2).exp();
        case 3:
          return x.to(at::kDouble).exp();
        default:
          return x.exp();
      }
    }
    int calls = 0, way = 0;
  };
  using Fickle = unit::Holder<FickleImpl>;
  Fickle unit;
  torch::nn::Sequential net(unit);
  apply<ActivationCheckpointing<Fickle>>(*net);
  auto const x = at::ones({3}).set_requires_grad(true);
  auto const message = [&](int way) {
    unit->way = way;
    return message_of([&] { net->forward(x).sum().backward(); });
  };
  CHECK_THAT(message(1),
             ContainsSubstring("unit 0 (") && ContainsSubstring("forward saved 1 tensors for backward, its re-run 0"));
  CHECK_THAT(message(2), ContainsSubstring("unit 0 (") &&
                             ContainsSubstring("was [3] of Float on cpu, that of its re-run is [2] of Float on cpu"));
  CHECK_THAT(message(3), ContainsSubstring("unit 0 (") && ContainsSubstring("that of its re-run is [3] of Double"));
  CHECK(message(0) == "nothing was thrown");
}

TEST_CASE("weights that are changed between forward and backward are an error, as they are without recomputation",
          "[unit][recompute]") {
  for (bool const recomputes : {true, false}) {
    Cell cell;
    if (recomputes) apply<ActivationCheckpointing<Cell>>(*cell);
    auto const y = cell(at::ones({2, 6}).set_requires_grad(true)).sum();
    {
      at::NoGradGuard const no_grad;
      cell->down->weight.mul_(2);
    }
    CHECK_THAT(message_of([&] { y.backward(); }), ContainsSubstring("modified by an inplace operation"));
  }
}

TEST_CASE("recomputed twice over: a warning, once, and the same bits", "[unit][recompute]") {
  auto const run = [](bool policy, bool around, bool inside) {
    struct Net2Impl : torch::nn::Module {
      explicit Net2Impl(bool around, bool inside) : around(around), inside(inside) {
        cell = register_module("cell", Cell());
      }
      at::Tensor forward(at::Tensor const& x) {
        auto const body = [this](at::Tensor const& t) {
          return inside ? weft::checkpoint([](at::Tensor const& u) { return u.exp().sin(); }, t) : t.exp().sin();
        };
        return cell(around ? body(x) : body(x).cos());
      }
      bool around, inside;
      Cell cell = nullptr;
    };
    using Net2 = unit::Holder<Net2Impl>;
    torch::manual_seed(1);
    Net2 net(around, inside);
    if (policy) apply<ActivationCheckpointing<Net2>>(*net);
    auto const x = at::ones({2, 6}).set_requires_grad(true);
    for (int pass = 0; pass < 2; ++pass) {
      auto const call = [&net](at::Tensor const& t) { return net(t); };
      (around ? weft::checkpoint(call, x) : call(x)).sum().backward();
    }
    return std::vector{x.grad(), net->cell->up->weight.grad()};
  };
  for (bool const around : {true, false}) {
    auto const expected = run(false, around, false);
    Warnings warnings;
    c10::WarningUtils::WarningHandlerGuard const guard(&warnings);
    check_same(run(true, around, !around), expected);
    REQUIRE(warnings.texts.size() == 1);
    CHECK_THAT(warnings.texts[0],
               ContainsSubstring("is recomputed by ActivationCheckpointing, and weft::checkpoint is called " +
                                 std::string(around ? "around" : "inside of") + " it"));
    check_same(run(false, around, !around), expected);  // one of them: nothing to say
    check_same(run(true, false, false), run(false, false, false));
    CHECK(warnings.texts.size() == 1);
  }
}

TEST_CASE("a policy that matches nothing, or a module whose forward it cannot reach, is an error",
          "[unit][recompute]") {
  Net net;
  CHECK_THAT(message_of([&] { apply<ActivationCheckpointing<weft::nn::Linear>>(*net); }),
             ContainsSubstring("ActivationCheckpointing<") &&
                 ContainsSubstring("matches no module of the model, so it would save nothing; its units are pair "
                                   "(Pair), pair.first (Cell)"));
  CHECK_THAT(message_of([&] { apply<OffloadActivations<weft::nn::Linear>>(*net); }),
             ContainsSubstring("OffloadActivations<") && ContainsSubstring("matches no module"));
  CHECK_THAT(
      message_of([&] { apply<ActivationCheckpointing<torch::nn::LinearImpl>>(*net); }),
      ContainsSubstring("matches pair.first.up, a plain ") && ContainsSubstring("forward cannot be intercepted"));
}

TEST_CASE("after forward a stack of recomputed units keeps their inputs and the state of the generator",
          "[unit][recompute][memory]") {
  constexpr int64_t width = 64, batch = 32, num_units = 8;
  torch::nn::Sequential net;
  for (int i = 0; i < num_units; ++i) net->push_back(Cell(width));
  auto const state_bytes = at::detail::getDefaultCPUGenerator().get_state().nbytes();
  auto const activation = static_cast<std::size_t>(batch * width) * sizeof(float);
  auto const live = [&](std::size_t* on_disk = nullptr, Folder const* folder = nullptr) {
    auto x = at::randn({batch, width});
    report::MemoryCount const memory;
    auto h = net->forward(x);
    auto const bytes = memory.all().bytes;
    if (folder) *on_disk = folder->files->bytes();
    h.sum().backward();
    net->zero_grad();
    h.reset();
    CHECK(memory.all().bytes == 0);
    return bytes;
  };
  // Plain: of each unit up's output, what GELU made of it, the mask and the factor's product, and the sum; up's input
  // is x or the sum before.
  auto const plain = live();
  apply<ActivationCheckpointing<Cell>>(*net);
  CHECK(live() == num_units * (activation + state_bytes));
  CHECK(plain > 4 * num_units * activation);
  // Both: the inputs wait elsewhere, too, but for the last output, which the caller holds.
  model::reset_activations(*net);
  Folder const folder;
  apply<ActivationCheckpointing<Cell>, OffloadActivations<Cell>>(*net, folder.files);
  std::size_t on_disk = 0;
  CHECK(live(&on_disk, &folder) == activation + num_units * state_bytes);
  CHECK(on_disk == num_units * activation);
  CHECK(folder.files->bytes() == 0);
}

TEST_CASE("activations that wait elsewhere give equal results, come back as they were, and leave nothing behind",
          "[unit][offload]") {
  Folder const folder;
  auto const& files = folder.files;
  auto const expected = run<>();
  check_same(run<OffloadActivations<Cell>>(files), expected);
  check_same(run<OffloadActivations<Pair>>(files), expected);
  check_same(run<OffloadActivations<Pair, Cell>>(files), expected);
  check_same(run<OffloadActivations<Pair>, ActivationCheckpointing<Cell>>(files), expected);
  check_same(run<OffloadActivations<Cell>, ActivationCheckpointing<Cell>>(files), expected);
  check_same(run<OffloadActivations<Cell>>(), expected);  // the CPU's are in host memory already
  CHECK(files->bytes() == 0);
  CHECK(std::filesystem::is_empty(folder.path));
}

TEST_CASE("each tensor waits once, with its own strides; parameters, their views, buffers and empty tensors stay",
          "[unit][offload]") {
  struct SaverImpl : torch::nn::Module {
    SaverImpl() {
      weight = register_parameter("weight", at::ones({4, 3}));
      table = register_buffer("table", at::ones({2, 4}));
    }
    at::Tensor forward(at::Tensor const& x) {
      auto const h = at::linear(x, weight) * table;
      auto const none = (at::empty({0, 4}) * weight.sum()).exp();
      auto const three = h.exp() + at::linear(h, weight.t()).sum() + at::linear(h, weight.t()).sum();
      return at::matmul(three.t(), x.expand({2, 3})).sum() + none.sum() +
             (three.narrow(1, 1, 2) * x.narrow(1, 0, 2)).sum();
    }
    at::Tensor weight, table;
  };
  using Saver = unit::Holder<SaverImpl>;
  struct Store final : activation::ActivationStore {
    struct Held final : Kept {
      explicit Held(at::Tensor it) : tensor(std::move(it)) {}
      at::Tensor reload() override { return tensor.clone(); }
      at::Tensor tensor;
    };
    std::unique_ptr<Kept> keep(at::Tensor const& tensor) override {
      CHECK(tensor.dim() == 1);
      CHECK(tensor.is_contiguous());
      sizes.push_back(tensor.numel());
      return std::make_unique<Held>(tensor.clone());
    }
    std::vector<int64_t> sizes;
  };
  auto const run = [](std::shared_ptr<Store> const& store) {
    torch::manual_seed(1);
    Saver saver;
    if (store) apply<OffloadActivations<Saver>>(*saver, store);
    auto const x = at::randn({2, 3}).set_requires_grad(true);
    saver(x).backward();
    return std::vector{x.grad(), saver->weight.grad()};
  };
  auto const store = std::make_shared<Store>();
  check_same(run(store), run(nullptr));
  // x, exp(h), h, `three` as it lies in memory, and the two that are narrowed, as copies.
  std::sort(store->sizes.begin(), store->sizes.end());
  CHECK(store->sizes == std::vector<int64_t>{4, 4, 6, 8, 8, 8});
}

namespace {

struct ExpImpl : torch::nn::Module {
  at::Tensor forward(at::Tensor const& x) { return x.exp(); }
};
WEFT_MODULE(Exp);

/// Three tensors of one size a call.
struct WavesImpl : torch::nn::Module {
  at::Tensor forward(at::Tensor const& x) { return x.exp().sin().sin(); }
};
WEFT_MODULE(Waves);

}  // namespace

TEST_CASE("a tensor that is changed in place while it waits is an error", "[unit][offload]") {
  Folder const folder;
  Exp unit;
  apply<OffloadActivations<Exp>>(*unit, folder.files);
  auto const x = at::ones({3}).set_requires_grad(true);
  auto const y = unit(x);
  CHECK(folder.files->bytes() == 12);
  {
    at::NoGradGuard const no_grad;
    y.mul_(2);
  }
  CHECK_THAT(message_of([&] { y.sum().backward(); }),
             ContainsSubstring("has been changed in place since: it is at version 1, and was at 0"));
}

TEST_CASE(
    "where activations cannot wait is an error that says why; what waits is safe from whoever tidies up, and leaves "
    "nothing",
    "[unit][offload]") {
  CHECK_THAT(message_of([] { activation::FilesBelow("/no/such/folder"); }),
             ContainsSubstring("/no/such/folder, which is no directory"));
  Folder const folder;
  auto const x = at::ones({1000}).set_requires_grad(true);
  auto const message = [&](std::shared_ptr<activation::ActivationStore> const& store) {
    Exp unit;
    apply<OffloadActivations<Exp>>(*unit, store);
    return message_of([&] { unit(x).sum().backward(); });
  };
  CHECK_THAT(message(std::make_shared<activation::FilesBelow>("/proc/self")),
             ContainsSubstring("weft: activations cannot wait below /proc/self, where no file can be created: "));
  auto const gone = std::make_shared<activation::FilesBelow>(folder.path);
  std::filesystem::remove(folder.path);
  CHECK_THAT(message(gone), ContainsSubstring("where no file can be created: No such file or directory"));
  std::filesystem::create_directory(folder.path);
  {
    // A disk with room for 3000 bytes.
    auto* const before = ::signal(SIGXFSZ, SIG_IGN);
    rlimit limit;
    REQUIRE(::getrlimit(RLIMIT_FSIZE, &limit) == 0);
    rlimit const small{3000, limit.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &small);
    auto const text = message(folder.files);
    ::setrlimit(RLIMIT_FSIZE, &limit);
    ::signal(SIGXFSZ, before);
    CHECK_THAT(text, ContainsSubstring("weft: 4000 bytes of activations cannot be written below " +
                                       folder.path.string() + ", beside 0 that wait there: File too large"));
  }
  Exp unit;
  apply<OffloadActivations<Exp>>(*unit, folder.files);
  auto const y = unit(x).sum();
  CHECK(std::filesystem::is_empty(folder.path));
  std::filesystem::remove(folder.path);
  y.backward();
  CHECK(x.grad().equal(x.exp()));
  CHECK(message_of([&] {
          auto const kept = unit(x);
          throw std::runtime_error("something else");
        }) == "something else");
  CHECK(folder.files->bytes() == 0);
  CHECK(message(folder.files) == "nothing was thrown");
}

TEST_CASE("several models and threads in one store; a forked process has a file of its own", "[unit][offload]") {
  Folder const folder;
  auto const gradient = [&](int which, bool offloads) {
    torch::nn::Sequential net{Waves(), Waves(), Waves()};
    if (offloads) apply<OffloadActivations<Waves>>(*net, folder.files);
    auto const x = at::arange(1000, at::kFloat).div(1000 + which).set_requires_grad(true);
    for (int step = 0; step < 5; ++step) net->forward(x).sum().backward();
    return x.grad();
  };
  std::vector<at::Tensor> gradients(3);
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) threads.emplace_back([&, i] { gradients[i] = gradient(i, true); });
  for (auto& thread : threads) thread.join();
  for (int i = 0; i < 3; ++i) CHECK(gradients[i].equal(gradient(i, false)));
  auto const x = at::arange(1000, at::kFloat).div(1000).set_requires_grad(true);
  Waves unit;
  apply<OffloadActivations<Waves>>(*unit, folder.files);
  auto const y = unit(x).sum();
  auto const bytes = folder.files->bytes();
  auto const child = ::fork();
  if (child == 0) {
    unit(at::zeros({1000}).set_requires_grad(true)).sum().backward();
    ::_exit(folder.files->bytes() == 0 ? 0 : 1);
  }
  int status = 1;
  ::waitpid(child, &status, 0);
  CHECK(status == 0);
  CHECK(folder.files->bytes() == bytes);
  y.backward();

  torch::nn::Sequential one{Waves()};
  auto const z = x.detach().clone().set_requires_grad(true);
  one->forward(z).sum().backward();
  CHECK(x.grad().equal(z.grad()));
}

TEST_CASE("tensors of every kind wait or stay, and come back as they were", "[unit][offload]") {
  struct KindsImpl : torch::nn::Module {
    at::Tensor forward(at::Tensor const& x) {
      auto const scalar = x.sum().exp();
      auto const complex = at::complex(x, x).exp();
      auto const sparse = at::mm(at::eye(3).to_sparse(), x.view({3, 4}));
      auto const expanded = (x.narrow(0, 0, 4).exp().expand({3, 4}) * x.view({3, 4})).sin();
      auto const strided = x.view({3, 4}).t().exp().narrow(1, 1, 2) * x.narrow(0, 0, 8).view({4, 2});
      auto const half = x.to(at::kBFloat16).exp().to(at::kFloat);
      auto const index = x.index_select(0, at::tensor({1, 1, 0})).sin();
      return scalar + at::abs(complex).sum() + sparse.exp().sum() + expanded.sum() + strided.sum() + half.sum() +
             index.sum() + x.narrow(0, 0, 0).exp().sum();
    }
  };
  using Kinds = unit::Holder<KindsImpl>;
  Folder const folder;
  auto const run = [&](bool offloads) {
    Kinds unit;
    if (offloads) apply<OffloadActivations<Kinds>>(*unit, folder.files);
    auto const x = (at::arange(12, at::kFloat) / 12).set_requires_grad(true);
    auto const y = unit(x);
    CHECK((folder.files->bytes() > 0) == offloads);
    y.backward({}, /*keep_graph=*/true);
    y.backward();
    return std::vector{x.grad()};
  };
  check_same(run(true), run(false));
  CHECK(folder.files->bytes() == 0);
}

TEST_CASE("activations come back ahead of backward: those of a call and of the one before it, and no others",
          "[unit][offload][memory]") {
  struct Store final : activation::ActivationStore {
    struct Held final : Kept {
      Held(Store& in, at::Tensor it, int at) : store(in), tensor(std::move(it)), index(at) {}
      ~Held() override { let_go(); }
      at::Tensor reload() override {
        store.events += (is_here ? " " : " !") + std::to_string(index);
        let_go();
        return tensor.clone();
      }
      void fetch() override {
        store.events += " +" + std::to_string(index);
        store.here += !std::exchange(is_here, true);
        store.most = std::max(store.most, store.here);
      }
      void let_go() noexcept override { store.here -= std::exchange(is_here, false); }
      Store& store;
      at::Tensor tensor;
      int index;
      bool is_here = false;
    };
    std::unique_ptr<Kept> keep(at::Tensor const& it) override {
      return std::make_unique<Held>(*this, it.clone(), count++);
    }
    std::string events;
    int count = 0, here = 0, most = 0;
  };
  auto const store = std::make_shared<Store>();
  torch::nn::Sequential net{Waves(), Waves(), Waves()};
  apply<OffloadActivations<Waves>>(*net, store);
  auto const x = at::ones({3}).set_requires_grad(true);
  // Each call puts away exp's result, which sin saves as well, and sin's.
  auto const y = net->forward(x).sum();
  std::string const pass = " +5 +4 +3 +2 5 4 +1 +0 3 2 1 0";
  y.backward({}, /*keep_graph=*/true);
  CHECK(store->events == pass);
  y.backward();
  CHECK(store->events == pass + pass);
  CHECK(store->most == 2 * 2);
  CHECK(store->here == 0);
  // A pass that ends early leaves nothing for long.
  store->events.clear();
  torch::nn::Sequential tail{Waves(), Waves()};
  apply<OffloadActivations<Waves>>(*tail, store);
  auto const middle = tail[0]->as<Waves>()->forward(x);
  auto const z = tail[1]->as<Waves>()->forward(middle).sum();
  static_cast<void>(torch::autograd::grad({z}, {middle}, {}, /*retain_graph=*/true));
  CHECK(store->events == " +9 +8 +7 +6 9 8");
  CHECK(store->here == 2);
  static_cast<void>(torch::autograd::grad({middle.sum()}, {x}));
  CHECK(store->here == 0);
}

TEST_CASE("backward with activations in a file holds those of two calls at most, and what one operation takes",
          "[unit][offload][memory]") {
  constexpr int64_t numel = 1 << 16, num_units = 8;
  constexpr std::size_t bytes = numel * sizeof(float), of_a_call = 2 * bytes, operation = 3 * bytes;
  Folder const folder;
  torch::nn::Sequential net;
  for (int i = 0; i < num_units; ++i) net->push_back(Waves());
  auto const x = at::ones({numel}).set_requires_grad(true);
  auto const peak = [&] {
    report::MemoryCount const memory;
    auto const y = net->forward(x).sum();
    memory.reset_peaks();
    y.backward();
    x.mutable_grad() = at::Tensor();
    return memory.all().peak_bytes;
  };
  CHECK(peak() > num_units * of_a_call);
  apply<OffloadActivations<Waves>>(*net, folder.files);
  CHECK(peak() <= 2 * of_a_call + operation + 64);  // and the loss's own
}
