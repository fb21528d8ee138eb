// nn/recurrent.hpp -- recurrent layers and their cells.
// In: LibTorch's layer. Out: the same layer as a unit: same options, same parameter names.
#pragma once

#include <torch/nn/modules/rnn.h>

#include <weft/unit/unit.hpp>

namespace weft::nn {

WEFT_MODULE_IMPL(RNN, torch::nn::RNNImpl);
WEFT_MODULE_IMPL(LSTM, torch::nn::LSTMImpl);
WEFT_MODULE_IMPL(GRU, torch::nn::GRUImpl);
WEFT_MODULE_IMPL(RNNCell, torch::nn::RNNCellImpl);
WEFT_MODULE_IMPL(LSTMCell, torch::nn::LSTMCellImpl);
WEFT_MODULE_IMPL(GRUCell, torch::nn::GRUCellImpl);

using torch::nn::RNNOptions;
using torch::nn::LSTMOptions;
using torch::nn::GRUOptions;
using torch::nn::RNNCellOptions;
using torch::nn::LSTMCellOptions;
using torch::nn::GRUCellOptions;

}  // namespace weft::nn
