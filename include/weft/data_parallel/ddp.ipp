// data_parallel/ddp.ipp -- definitions of data_parallel/ddp.hpp.
#pragma once

#include <weft/data_parallel/ddp.hpp>

#include <weft/core/build.hpp>
#include <weft/data_parallel/reducer_engine.hpp>

namespace weft::inline v0::data_parallel {

WEFT_INLINE std::shared_ptr<model::Engine> replicate(torch::nn::Module& model, model::ParameterTable& table,
                                                     DdpConfig const& config, std::shared_ptr<comm::Communicator> ranks,
                                                     std::unique_ptr<c10d::CommHookInterface> hook) {
  return Engine::create(model, table, config, std::move(ranks), std::move(hook));
}

}  // namespace weft::data_parallel
