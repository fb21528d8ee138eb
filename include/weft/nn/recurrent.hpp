// nn/recurrent.hpp -- recurrent layers and their cells.
// In: LibTorch's layer. Out: the same layer as a unit: same options, same parameter names.
#pragma once

#include <torch/nn/modules/rnn.h>

#include <weft/unit/unit.hpp>

namespace weft::inline v0::nn {

using RNN = unit::Holder<torch::nn::RNNImpl>;
using LSTM = unit::Holder<torch::nn::LSTMImpl>;
using GRU = unit::Holder<torch::nn::GRUImpl>;
using RNNCell = unit::Holder<torch::nn::RNNCellImpl>;
using LSTMCell = unit::Holder<torch::nn::LSTMCellImpl>;
using GRUCell = unit::Holder<torch::nn::GRUCellImpl>;

using torch::nn::GRUCellOptions;
using torch::nn::GRUOptions;
using torch::nn::LSTMCellOptions;
using torch::nn::LSTMOptions;
using torch::nn::RNNCellOptions;
using torch::nn::RNNOptions;

}  // namespace weft::nn
