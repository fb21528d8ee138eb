// model/equal_start.ipp -- definitions of model/equal_start.hpp.
#pragma once

#include <weft/model/equal_start.hpp>

#include <algorithm>
#include <memory>

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/comm.hpp>

#include <weft/comm/values.hpp>
#include <weft/core/build.hpp>
#include <weft/core/error.hpp>
#include <weft/core/hash.hpp>
#include <weft/init/deferred_init.hpp>

namespace weft::inline v0::model {

WEFT_INLINE void require_equal_models(comm::Communicator& ranks, torch::nn::Module const& model,
                                      ParameterTable const& table) {
  auto description = table.describe();
  for (auto const& operations : init::deferred_operations_of(model))
    description += core::message("initialized by ", operations->num_pending(), " deferred operations (",
                                 operations->fingerprint(), ")\n");
  for (auto const& buffer : model.named_buffers())
    if (buffer.value().defined())
      description += core::message("buffer ", buffer.key(), " ", buffer.value().sizes(), " ",
                                   buffer.value().scalar_type(), "\n");
  // Eight bytes decide the usual case, the texts travel only when models differ.
  core::Hash hash;
  hash.add(description);
  auto const numbers = at::TensorOptions(at::kLong).device(ranks.device());
  auto hashes = at::empty({ranks.size()}, numbers);
  ranks.all_gather_into(hashes, at::full({1}, static_cast<int64_t>(hash.value()), numbers));
  if (hashes.eq(hashes[0]).all().item<bool>()) return;

  auto const texts = comm::all_gather_bytes(ranks, description);
  auto const line = [](std::string const& text, std::size_t begin) {
    return begin >= text.size() ? std::string("nothing") : text.substr(begin, text.find('\n', begin) - begin);
  };
  for (std::size_t rank = 1; rank < texts.size(); ++rank) {
    if (texts[rank] == texts[0]) continue;
    std::size_t begin = 0;
    for (std::size_t i = 0; i < std::min(texts[0].size(), texts[rank].size()) && texts[0][i] == texts[rank][i]; ++i)
      if (texts[0][i] == '\n') begin = i + 1;
    fail<ConfigurationError>("weft: setup: models differ between ranks: rank 0 has ", line(texts[0], begin), ", rank ",
                             rank, " has ", line(texts[rank], begin), "; build the same model on every rank");
  }
  fail<ConfigurationError>("weft: setup: models differ between ranks");
}

WEFT_INLINE void broadcast_once(comm::Communicator& ranks, at::Tensor const& tensor) {
  if (ranks.size() == 1 || tensor.numel() == 0) return;
  at::NoGradGuard const no_grad;
  if (!tensor.is_non_overlapping_and_dense()) return ranks.broadcast(tensor.detach());
  auto const owner = std::make_shared<at::Tensor>(elements_of(tensor.detach()));
  ranks.broadcast(at::from_blob(owner->data_ptr(), owner->sizes(), [owner](void*) {}, owner->options()));
  owner->reset();
}

WEFT_INLINE void broadcast_model(comm::Communicator& ranks, torch::nn::Module const& model,
                                 ParameterTable const& table) {
  at::NoGradGuard const no_grad;
  std::vector<at::Tensor> tensors;
  for (auto const& row : table.rows())
    if (!init::is_deferred(row.tensor)) tensors.push_back(row.tensor.detach());
  for (auto const& buffer : model.buffers())
    if (buffer.defined() && !init::is_deferred(buffer)) tensors.push_back(buffer.detach());
  if (!tensors.empty()) c10d::broadcast_coalesced(ranks.process_group(), tensors, std::size_t{128} << 10, 0);
}

}  // namespace weft::model
