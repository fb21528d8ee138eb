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
#include <string>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace weft::comm {

/// Where the ranks of one group meet. `interface_address` empty: the backend's own choice.
struct Endpoint {
  c10::intrusive_ptr<c10d::Store> store;
  int rank = 0;
  int size = 1;
  std::chrono::milliseconds timeout = std::chrono::minutes(30);
  std::string interface_address;
  bool check_collectives = false;  // see comm/call_check.hpp
};

/// Dtypes that every backend adds up.
inline bool is_reducible(at::ScalarType type) {
  switch (type) {
    case at::kFloat: case at::kDouble: case at::kHalf: case at::kBFloat16:
    case at::kChar: case at::kByte: case at::kInt: case at::kLong: return true;
    default: return false;
  }
}

template <class Policy>
struct BackendFactory;

template <class Policy>
concept BackendPolicy = requires(Endpoint const& endpoint) {
  { BackendFactory<Policy>::type } -> std::convertible_to<c10d::ProcessGroup::BackendType>;
  { BackendFactory<Policy>::create(endpoint) } -> std::convertible_to<c10::intrusive_ptr<c10d::Backend>>;
};

}  // namespace weft::comm
