// 15_logging.cpp -- what a run tells: lines on the screen, a table, TensorBoard's curves, and a logger of one's own.
//
// Every rank calls log; rank 0 writes. `tensorboard --logdir runs` shows the curves, the text and the settings.
//
// run:
// expect: epoch 2/2
// expect: epoch 0: loss
// expect: runs/line/version_0/metrics.csv has 16 rows under epoch,loss,lr,step
// expect: the best loss was logged at step 1
// expect: an event file of
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <torch/data/datasets/tensor.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/linear.h>

#include <weft/nn/layers.hpp>
#include <weft/report/csv_logger.hpp>
#include <weft/report/tensorboard_logger.hpp>
#include <weft/weft.hpp>

using Run = weft::Fabric<weft::DDP<>, weft::On<weft::Cpu>>;

/// A logger of one's own: the fabric calls it on rank 0.
class Best final : public weft::report::Logger {
 public:
  void log(weft::report::Metrics const& metrics, std::optional<std::int64_t> step) override {
    auto const loss = metrics.find("loss");
    if (loss == metrics.end() || loss->second >= lowest_) return;
    lowest_ = loss->second;
    at_ = step.value_or(-1);
  }
  std::int64_t step() const { return at_; }

 private:
  double lowest_ = std::numeric_limits<double>::infinity();
  std::int64_t at_ = -1;
};

int main() {
  return Run::launch({.devices = 2},
                     [](Run& fabric) {
                       auto const csv = fabric.add_logger(weft::report::CsvLogger({.root = "runs", .name = "line"}));
                       auto const board = fabric.add_logger(
                           weft::report::TensorBoardLogger({.directory = csv->directory()}));  // beside the table
                       auto const best = fabric.add_logger(Best());
                       fabric.log_hyperparameters({{"lr", 0.1}, {"batch_size", 16}, {"optimizer", "SGD"}});
                       board->log_text("about", "a **line** is fitted");

                       fabric.seed_everything(1);
                       auto [model, optimizer] = fabric.setup(torch::nn::Linear(1, 1), weft::SGD{.lr = 0.1});
                       auto loader = fabric.setup_dataloader(
                           torch::data::datasets::TensorDataset(at::linspace(-1, 1, 256).unsqueeze(1)),
                           {.batch_size = 16, .shuffle = true});
                       std::int64_t step = 0;
                       for (int epoch : fabric.progress(std::vector{0, 1}, "epoch")) {
                         at::Tensor loss;
                         for (auto& batch : fabric.progress(loader, "batch")) {
                           loss = torch::nn::functional::mse_loss(model(batch.data), 3 * batch.data + 0.5);
                           fabric.backward(loss);
                           optimizer.step();
                           optimizer.zero_grad();
                           fabric.log_dict({{"loss", loss}, {"lr", 0.1}, {"epoch", epoch}}, step++);
                         }
                         fabric.print("epoch ", epoch, ": loss ",
                                      fabric.all_reduce(loss).item<float>());  // the mean of the ranks
                       }
                       if (!fabric.is_global_zero()) return;
                       fabric.flush_loggers();
                       std::ifstream table(csv->directory() / "metrics.csv");
                       std::vector<std::string> lines;
                       for (std::string line; std::getline(table, line);) lines.push_back(line);
                       fabric.print((csv->directory() / "metrics.csv").string(), " has ", lines.size() - 1,
                                    " rows under ", lines.front());
                       fabric.print("the best loss was logged at step ", best->step());
                       for (auto const& file : std::filesystem::directory_iterator(csv->directory()))
                         if (file.path().filename().string().starts_with("events.out.tfevents."))
                           fabric.print("an event file of ", file.file_size(), " bytes");
                     })
      .exit_code();
}
