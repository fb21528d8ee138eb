// plan/policy.hpp -- what makes a type a policy.
// In: a type. Out: its category, its name, and whether it may stand in Fabric<...> or inside a strategy.
//
// A policy says which idea by its type and how much by one structural constexpr value. It names its category,
// and that is all weft asks, so a policy of one's own is as good as weft's:
//
//   struct LastLayersOnly {
//     using category = weft::category::sharding;
//     static constexpr std::string_view name = "LastLayersOnly";
//     static constexpr weft::ShardConfig plan{.reshard_after_forward = false};
//   };
#pragma once

#include <string_view>
#include <type_traits>

#include <weft/core/diagnose.hpp>
#include <weft/core/type_list.hpp>
#include <weft/fwd.hpp>

namespace weft::inline v0 {

// Categories. What a category derives from says where its policies stand, and whether several may.
namespace category {
struct in_fabric {};
struct in_strategy {};
struct unites {};  // several policies of this category are one policy: their union

struct strategy : in_fabric {};
struct precision : in_fabric {};
struct device : in_fabric {};
struct backend : in_fabric {};
struct launcher : in_fabric {};
struct memory : in_fabric, unites {};     // ActivationCheckpointing, OffloadActivations
struct mesh : in_fabric, in_strategy {};  // beside the strategy, or in the one that needs it

struct sharding : in_strategy {};
struct wrap : in_strategy, unites {};
struct ignore : in_strategy, unites {};
struct offload : in_strategy, unites {};  // OffloadParams, OffloadOptimizer, Nvme
struct plan : in_strategy, unites {};     // Plan, Parallelize
struct prefetch : in_strategy {};
struct rate_limit : in_strategy {};
struct accumulation : in_strategy {};
struct bucket : in_strategy {};
struct comm_hook : in_strategy {};
struct find_unused : in_strategy {};
struct static_graph : in_strategy {};
struct broadcast_buffers : in_strategy {};
struct gradients_in_buckets : in_strategy {};

struct none {};
}  // namespace category

template <class T>
struct CategoryOf {
  using type = category::none;
};
template <class T>
  requires requires { typename T::category; }
struct CategoryOf<T> {
  using type = typename T::category;
};
template <class T>
using category_of_t = typename CategoryOf<T>::type;

template <class T>
concept Policy = !std::is_same_v<category_of_t<T>, category::none>;

template <class T, class Category>
inline constexpr bool is_of_v = std::is_same_v<category_of_t<T>, Category>;
template <class T>
inline constexpr bool sits_in_fabric_v = std::is_base_of_v<category::in_fabric, category_of_t<T>>;
template <class T>
inline constexpr bool sits_in_strategy_v = std::is_base_of_v<category::in_strategy, category_of_t<T>>;

// The name in messages and on screen: the policy's own, else the compiler's spelling of the type.
template <class T>
constexpr std::string_view name_of() {
  if constexpr (requires { std::string_view{T::name}; })
    return T::name;
  else
    return core::type_name<T>();
}

namespace plan {

template <class Category>
struct Is {
  template <class T>
  using test = std::bool_constant<is_of_v<T, Category>>;
};

// Of List, the policies of one category; the first of them, or a default; how many there are.
template <class Category, class List>
using policies_t = core::filter_t<Is<Category>::template test, List>;
template <class Category, class List, class Default = void>
using policy_or_t = core::first_or_t<policies_t<Category, List>, Default>;
template <class Category, class List>
inline constexpr std::size_t num_policies_v = List::template count<Is<Category>::template test>;
template <class Category, class List>
inline constexpr bool has_policy_v = num_policies_v<Category, List> != 0;

}  // namespace plan
}  // namespace weft
