// comm/gloo.hpp -- what the policy Gloo creates: c10d's Gloo backend over TCP.
// In: a store, rank and size. Out: a c10d::Backend.
#pragma once

#ifndef USE_C10D_GLOO
#error "weft: build with -DUSE_C10D_GLOO=1 (weft's Meson dependency and pkg-config file do): c10d's Gloo header is empty without it"
#endif

#include <chrono>
#include <string>
#include <utility>

#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <weft/comm/backend.hpp>
#include <weft/fwd.hpp>

namespace weft::comm {

template <>
struct BackendFactory<Gloo> {
  static constexpr c10d::ProcessGroup::BackendType type = c10d::ProcessGroup::BackendType::GLOO;

  static c10::intrusive_ptr<c10d::Backend> create(Endpoint const& endpoint) {
    auto options = c10d::ProcessGroupGloo::Options::create();
    options->timeout = endpoint.timeout;
    options->devices = {endpoint.interface_address.empty()
                            ? c10d::ProcessGroupGloo::createDefaultDevice()
                            : c10d::ProcessGroupGloo::createDeviceForHostname(endpoint.interface_address)};
    return c10::make_intrusive<c10d::ProcessGroupGloo>(endpoint.store, endpoint.rank, endpoint.size, std::move(options));
  }
};

}  // namespace weft::comm
