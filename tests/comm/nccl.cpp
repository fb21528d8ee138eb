// The policies Nccl and NcclDirect: that they are there where CUDA and NCCL are, and what a machine without a GPU is
// told. Steps on a GPU: tests/gpu.
#include "ranks.hpp"

#include <weft/nn/layers.hpp>

using namespace test;
using Catch::Matchers::ContainsSubstring;

namespace {

struct BlockImpl : torch::nn::Module {
  BlockImpl() { linear = register_module("linear", weft::nn::Linear(4, 4)); }
  at::Tensor forward(at::Tensor const& x) { return linear(x); }
  weft::nn::Linear linear = nullptr;
};
WEFT_MODULE(Block);

#ifdef USE_C10D_NCCL
/// A whole job: instantiated, linked, and run as far as this machine goes.
template <class... Policies>
std::string failure_of_a_job() {
  using Run = weft::Fabric<Policies...>;
  auto const outcome = Run::launch({.devices = 1}, [](Run& fabric) {
    auto [model, optimizer] = fabric.setup(torch::nn::Sequential(Block(), Block()), weft::AdamW{.lr = 0.1});
    fabric.backward(model(at::ones({2, 4}, at::TensorOptions().device(fabric.device()))).sum());
    optimizer.step();
  });
  return outcome ? "" : outcome.failures().front().message;
}
#endif

}  // namespace

TEST_CASE("Nccl is built where CUDA and NCCL are found", "[comm][nccl]") {
#ifdef USE_C10D_NCCL
  using Wrap = weft::WrapPolicy<Block>;
  if (weft::launch::count_cuda_devices() > 0) SKIP("this machine has a GPU: bash tests/gpu/run.sh runs jobs on it");
  for (auto const& message :
       {failure_of_a_job<weft::DDP<>, weft::On<weft::Cuda>, weft::Nccl>(),
        failure_of_a_job<weft::FSDP<weft::FullShard, Wrap>, weft::On<weft::Cuda>>(),
        failure_of_a_job<weft::FSDP<weft::FullShard, Wrap>, weft::On<weft::Cuda>, weft::NcclDirect>()})
    CHECK_THAT(message, ContainsSubstring("weft: On<Cuda>: this node shows no CUDA device; write On<Cpu>"));
  // Without a device in the type it is known only when the rank connects.
  for (auto const& message :
       {failure_of_a_job<weft::DDP<>, weft::Nccl>(), failure_of_a_job<weft::DDP<>, weft::NcclDirect>()})
    CHECK_THAT(message, ContainsSubstring("weft: connecting axis world, rank 0 of 1: NCCL moves data between CUDA "
                                          "devices, and this node shows none; write Gloo"));
#else
  STATIC_REQUIRE_FALSE(
      weft::comm::BackendPolicy<weft::Nccl>);  // what a Fabric says then: tests/compile_fail/fabric.cpp
  STATIC_REQUIRE_FALSE(weft::comm::BackendPolicy<weft::NcclDirect>);
#endif
}

TEST_CASE("Gloo refuses a rank that computes on CUDA", "[comm][nccl]") {
  weft::comm::Endpoint endpoint;
  endpoint.store = c10::make_intrusive<c10d::HashStore>();
  endpoint.device = at::Device(at::kCUDA, 1);
  CHECK_THAT(message_of([&] {
               weft::comm::connect<weft::Gloo>(endpoint, std::make_shared<weft::comm::Recorder>(), "world",
                                               endpoint.device);
             }),
             ContainsSubstring("weft: connecting axis world, rank 0 of 1: Gloo moves what is in the CPU's memory, and "
                               "this rank computes on cuda:1; build with CUDA and NCCL"));
}
