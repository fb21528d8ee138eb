// comm/backend.hpp -- how a backend policy becomes a c10d backend.
// In: where the group meets (store, rank, size). Out: the concept that a policy's factory satisfies.
//
// A user's own backend:
//   struct Ucc { using category = weft::category::backend; ... };
//   template <> struct weft::comm::BackendFactory<Ucc> {
//     static constexpr auto type = c10d::ProcessGroup::BackendType::CUSTOM;
//     static c10::intrusive_ptr<c10d::Backend> create(weft::comm::Endpoint const&);
//   };
#pragma once

#include <chrono>
#include <concepts>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace weft::inline v0::comm {

/// Where the ranks of one group meet. `interface_address`: an interface, a name or an address of this node; empty: the
/// backend's own choice.
struct Endpoint {
  c10::intrusive_ptr<c10d::Store> store;
  int rank = 0;
  int size = 1;
  std::chrono::milliseconds timeout = std::chrono::minutes(30);
  std::string interface_address;
  bool check_collectives = false;  // see comm/call_check.hpp
  at::Device device = at::kCPU;    // of this rank
  // Set where all ranks of the parent's group connect at once, each with those of its color: a backend may split the
  // parent's connection.
  c10::intrusive_ptr<c10d::Backend> parent{};
  int color = 0;
};

/// A backend to which memory that is sent again and again may be announced; it is while the handle lives. Not while a
/// call on it is under way.
class RegistersBuffers {
 public:
  virtual ~RegistersBuffers() = default;
  virtual std::shared_ptr<void> register_buffer(at::Tensor const&) = 0;
};

/// Dtypes that every backend adds up.
bool is_reducible(at::ScalarType type);

inline std::vector<at::Tensor> flattened(std::vector<std::vector<at::Tensor>> const& lists,
                                         std::vector<at::Tensor> all = {}) {
  for (auto const& list : lists) all.insert(all.end(), list.begin(), list.end());
  return all;
}

template <class Policy>
struct BackendFactory;

template <class Policy>
concept BackendPolicy = requires(Endpoint const& endpoint) {
  { BackendFactory<Policy>::type } -> std::convertible_to<c10d::ProcessGroup::BackendType>;
  { BackendFactory<Policy>::create(endpoint) } -> std::convertible_to<c10::intrusive_ptr<c10d::Backend>>;
};

}  // namespace weft::comm

#ifndef WEFT_SEPARATE_COMPILATION
#include <weft/comm/backend.ipp>
#endif
