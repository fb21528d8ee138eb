// raw_loop.cpp -- train_lm's loop on formula tokens by hand: what a program looks like without the facade.
//
// Plain SGD on one process, or on several with c10d::Reducer. Prints the peers' result line, so that benchmarks can put
// it beside train_lm; no error of a rank is reported, no process is cleaned up, nothing is checked.
//
// run: --world 2 --model tiny --steps 10
// expect: 4.35291
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

#include <torch/optim/sgd.h>
#include <torch/utils.h>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/logger.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>

#include "formula.hpp"

namespace {

struct Group {
  c10::intrusive_ptr<c10d::ProcessGroupGloo> gloo;
  c10::intrusive_ptr<c10d::ProcessGroup> front;
};

Group join(std::string const& store_file, int rank, int world) {
  c10::intrusive_ptr<c10d::Store> store = c10::make_intrusive<c10d::FileStore>(store_file, world);
  auto options = c10d::ProcessGroupGloo::Options::create();
  options->devices = {c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1")};
  Group group;
  group.gloo = c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, world, options);
  group.front = c10::make_intrusive<c10d::ProcessGroup>(store, rank, world);
  group.front->setBackend(c10::kCPU, c10d::ProcessGroup::BackendType::GLOO,
                          c10::intrusive_ptr<c10d::Backend>(group.gloo));
  group.front->setDefaultBackend(c10d::ProcessGroup::BackendType::GLOO);
  return group;
}

void train(int rank, int world, std::string const& model_name, int64_t num_steps, int64_t warmup,
           std::string const& store_file) {
  at::set_num_threads(1);
  auto const& shape = formula::shapes().at(model_name);
  llama::LanguageModel model(shape);
  formula::initialize(*model, 0);
  auto const parameters = model->parameters();
  Group group;
  std::shared_ptr<c10d::Reducer> reducer;
  std::shared_ptr<c10d::Logger> logger;
  if (world > 1) {
    group = join(store_file, rank, world);
    auto [buckets, limits] = c10d::compute_bucket_assignment_by_size(parameters, {1 << 20, 25 << 20});
    reducer = std::make_shared<c10d::Reducer>(
        parameters, buckets, group.front, std::vector<bool>(parameters.size(), false), 25 << 20,
        /*find_unused_parameters=*/false, /*gradient_as_bucket_view=*/true, std::unordered_map<size_t, std::string>(),
        1 << 20, false, false, std::vector<int64_t>());
    logger = std::make_shared<c10d::Logger>(reducer);
    reducer->set_logger(logger);
  }
  torch::optim::SGD optimizer(parameters, torch::optim::SGDOptions(0.5));
  std::vector<double> walls;
  double last_loss = 0;
  for (int64_t k = 0; k < num_steps; ++k) {
    auto const start = std::chrono::steady_clock::now();
    auto const count = shape.batch / world;
    auto const [inputs, targets] = formula::tokens(k * shape.batch + rank * count, count, shape, 0);
    if (reducer) {
      reducer->prepare_for_forward();
      reducer->rebuild_buckets();
    }
    auto const logits = model(inputs);
    if (reducer) reducer->prepare_for_backward({});
    auto const loss = llama::loss_of(logits, targets);
    loss.backward();
    auto sum = at::full({1}, loss.item<double>(), at::kDouble);
    optimizer.step();
    for (auto const& parameter : parameters) parameter.mutable_grad().reset();
    walls.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    if (world > 1) {
      std::vector<at::Tensor> list{sum};
      group.gloo->allreduce(list)->wait();
    }
    last_loss = sum.item<double>() / world;
  }
  walls.erase(walls.begin(), walls.begin() + std::min<int64_t>(warmup, num_steps - 1));
  std::sort(walls.begin(), walls.end());
  if (rank == 0)
    std::printf(
        "{\"type\": \"result\", \"strategy\": \"raw\", \"world\": %d, \"last_loss\": %.6g, \"min_step_s\": %.9g, "
        "\"median_step_s\": %.9g}\n",
        world, last_loss, walls.front(), walls[walls.size() / 2]);
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  int world = 1;
  int64_t steps = 10, warmup = 0;
  std::string model = "tiny";
  for (int i = 1; i + 1 < argc; i += 2) {
    std::string const key = argv[i], value = argv[i + 1];
    if (key == "--world") world = std::stoi(value);
    if (key == "--model") model = value;
    if (key == "--steps") steps = std::stoll(value);
    if (key == "--warmup") warmup = std::stoll(value);
  }
  if (world == 1) {
    train(0, 1, model, steps, warmup, "");
    return 0;
  }
  auto const store_file =
      (std::filesystem::temp_directory_path() / ("raw_loop_" + std::to_string(::getpid()))).string();
  for (int rank = 0; rank < world; ++rank)
    if (::fork() == 0) {
      train(rank, world, model, steps, warmup, store_file);
      ::_exit(0);
    }
  int failed = 0;
  for (int status = 0; ::wait(&status) > 0;) failed |= status;
  ::unlink(store_file.c_str());
  return failed != 0;
}
