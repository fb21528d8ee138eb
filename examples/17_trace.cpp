// 17_trace.cpp -- when which rank did what: step times, and a trace for Perfetto or chrome://tracing.
//
// trace.json opens at https://ui.perfetto.dev: a process for each rank, a row of steps, rows of collectives as they
// overlap.
//
// run:
// expect: 12 steps, ms: mean
// expect: tokens/s
// expect: backward: 4 reduce_scatter
// expect: trace.json: 2 ranks
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include <torch/nn/modules/container/sequential.h>

#include <weft/comm/trace_table.hpp>
#include <weft/nn/layers.hpp>
#include <weft/report/chrome_trace.hpp>
#include <weft/report/step_timer.hpp>
#include <weft/weft.hpp>

using Run =
    weft::Fabric<weft::FSDP<weft::FullShard, weft::WrapPolicy<weft::nn::Linear>, weft::Bucket<1>>, weft::On<weft::Cpu>>;

int main() {
  return Run::launch(
             {.devices = 2},
             [](Run& fabric) {
               fabric.seed_everything(3);
               auto [model, optimizer] = fabric.setup(
                   torch::nn::Sequential(weft::nn::Linear(128, 512), weft::nn::Linear(512, 128)),
                   weft::AdamW{.lr = 1e-3});
               weft::report::StepTimer timer(
                   {.warm_up = 2, .synchronize = fabric.device()});  // on a GPU: until the device is through, too
               for (int step = 0; step < 14; ++step) {
                 if (step == 12) fabric.recorder().start();  // the last two
                 auto const timed = timer.step(/*tokens=*/64);
                 fabric.backward(model(at::rand({64, 128})).square().mean());
                 optimizer.step();
                 optimizer.zero_grad();
               }
               fabric.print(timer.times().text());
               fabric.print("the last two: ", timer.times(2).text());

               auto const events = fabric.recorder().stop();
               for (auto const& [phase, kinds] : weft::comm::trace_table(events))
                 for (auto const& [kind, sum] : kinds)
                   fabric.print(phase, ": ", sum.count, " ", kind, ", ", sum.bytes, " bytes");
               weft::report::save_trace("trace.json", fabric.session(), events, timer.spans());
               if (!fabric.is_global_zero()) return;
               std::ifstream file("trace.json");
               std::string const trace{std::istreambuf_iterator<char>(file), {}};
               int ranks = 0;
               for (auto at = trace.find("process_name"); at != trace.npos; at = trace.find("process_name", at + 1))
                 ++ranks;
               fabric.print("trace.json: ", ranks, " ranks, ", trace.size(), " bytes");
             })
      .exit_code();
}
