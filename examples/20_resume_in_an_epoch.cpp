// 20_resume_in_an_epoch.cpp -- a job that was stopped in the middle of an epoch goes on with the next batch.
//
// The loader's state is one line of text: epoch, samples, seed. It counts samples of all ranks, so that another number
// of ranks, workers or samples in a batch may go on. The words of a text are the data here; the vocabulary is a file,
// too.
//
// run: $TMP
// expect: 1 rank, stopped after step 8: weft loader 1: epoch 1, 24 of 40 samples, seed 5, 1 ranks, shuffled
// expect: 2 ranks go on in epoch 1 with 8 samples each
// expect: together each window was seen once in epoch 1
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <weft/data/words.hpp>
#include <weft/weft.hpp>

namespace data = weft::data;
using Run = weft::Fabric<weft::DDP<>, weft::On<weft::Cpu>>;

data::Text text() {
  std::string words;
  for (int i = 0; i < 161; ++i) words += "word" + std::to_string(i) + " ";
  return data::Text::of(words);
}
data::WordText windows(std::filesystem::path const& vocabulary) {
  return data::WordText(data::Words(text(), data::Vocabulary::load(vocabulary.string())), {.length = 4});
}

int main(int argc, char** argv) {
  std::filesystem::path const folder = argc > 1 ? argv[1] : ".";
  auto const state_file = folder / "loader.txt", vocabulary_file = folder / "vocabulary.txt";
  data::Vocabulary::of(text()).save(vocabulary_file.string());

  auto stopped = Run::launch({.devices = 1}, [&](Run& fabric) {
    fabric.seed_everything(5);
    auto loader = fabric.setup_dataloader(windows(vocabulary_file), {.batch_size = 8, .shuffle = true, .workers = 2});
    std::vector<at::Tensor> seen;  // of epoch 1
    for (int step = 0; step < 8;)
      for (auto& batch : loader) {  // a training step would stand here
        if (loader.epoch() == 1) seen.push_back(batch.data.select(1, 0));
        if (++step == 8) break;
      }
    std::ofstream(state_file) << loader.state().to_text() << '\n';
    fabric.print("1 rank, stopped after step 8: ", loader.state().to_text());
    return at::cat(seen);
  });
  if (!stopped) return stopped.exit_code();

  return Run::launch({.devices = 2},
                     [&](Run& fabric) {
                       std::string line;
                       std::ifstream in(state_file);
                       std::getline(in, line);
                       auto loader = fabric.setup_dataloader(windows(vocabulary_file),
                                                             {.batch_size = 4, .shuffle = true});
                       loader.load_state(data::LoaderState::from_text(line));
                       std::vector<at::Tensor> seen;
                       for (auto& batch : loader) seen.push_back(batch.data.select(1, 0));
                       auto const own = at::cat(seen);
                       fabric.print("2 ranks go on in epoch ", loader.epoch(), " with ", own.numel(), " samples each");
                       auto const all = at::cat({stopped.value(), fabric.all_gather(own).flatten()});
                       if (all.numel() == 40 && std::get<0>(at::_unique(all)).numel() == 40)
                         fabric.print("together each window was seen once in epoch 1");
                     })
      .exit_code();
}
