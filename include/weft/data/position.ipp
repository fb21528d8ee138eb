// data/position.ipp -- definitions of data/position.hpp.
#pragma once

#include <weft/data/position.hpp>

#include <sstream>

#include <weft/core/build.hpp>

namespace weft::inline v0::data {

WEFT_INLINE LoaderState LoaderState::from_text(std::string_view text) {
  LoaderState state;
  std::istringstream in{std::string(text)};
  auto const word = [&in](std::string_view expected) {
    for (char const wanted : expected)
      if (in.get() != wanted) in.setstate(std::ios::failbit);
  };
  word("weft loader 1: epoch "), in >> state.epoch, word(", "), in >> state.samples, word(" of "),
      in >> state.num_samples, word(" samples, seed "), in >> state.seed;
  word(", "), in >> state.num_ranks, word(" ranks, ");
  std::string order;
  std::getline(in, order);
  state.shuffled = order == "shuffled";
  if (in.fail() || !(state.shuffled || order == "in order"))
    fail<CheckpointError>("weft: this is not the state of a loader: \"", text.substr(0, 100),
                          "\"; LoaderState::to_text writes one line that begins with \"weft loader 1:\"");
  return state;
}

}  // namespace weft::data
