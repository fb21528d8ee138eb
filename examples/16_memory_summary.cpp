// 16_memory_summary.cpp -- what a rank's memory is used for.
//
// On the CPU weft counts what LibTorch allocates, by what it is for; on a GPU memory_summary(fabric.device()) adds the
// allocator's own statistics: what is allocated, reserved, lost between blocks, and how often it had to retry.
//
// run:
// expect: after setup: parameters 0.51 MiB
// expect: host: gathered                  0.00        1.02         0
// expect: host: optimizer                 1.02        1.02
// expect: the third step holds at most what the second one did
#include <cstddef>
#include <cstdio>

#include <torch/nn/modules/container/sequential.h>

#include <weft/nn/layers.hpp>
#include <weft/report/memory_summary.hpp>
#include <weft/weft.hpp>

using Run = weft::Fabric<weft::FSDP<weft::FullShard, weft::WrapPolicy<weft::nn::Linear>>, weft::On<weft::Cpu>>;
using weft::report::MemoryTag;

int main() {
  return Run::launch(
             {.devices = 2},
             [](Run& fabric) {
               weft::report::MemoryCount const counting;  // from here on, on this rank
               auto [model, optimizer] = fabric.setup(
                   torch::nn::Sequential(weft::nn::Linear(256, 512), weft::nn::Linear(512, 256),
                                         weft::nn::Linear(256, 16)),
                   weft::AdamW{.lr = 1e-3});
               char line[64];
               std::snprintf(
                   line, sizeof line, "%.2f",
                   static_cast<double>(weft::report::memory_summary(fabric.device()).of(MemoryTag::parameters).bytes) /
                       (1 << 20));
               fabric.print("after setup: parameters ", line, " MiB");

               std::size_t peaks[3];
               for (auto& peak : peaks) {
                 weft::report::reset_peaks(fabric.device());
                 fabric.backward(model(at::ones({32, 256})).square().mean());
                 optimizer.step();
                 peak = weft::report::peak_bytes(fabric.device());
                 optimizer.zero_grad();
               }
               fabric.print(weft::report::memory_summary(fabric.device()).table());
               fabric.print("the third step holds ",
                            peaks[2] <= peaks[1] ? "at most what the second one did" : "more than the second one did");
             })
      .exit_code();
}
