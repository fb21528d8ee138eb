// strategy/with_strategy.hpp -- a strategy chosen when the program runs.
// In: a name and a table of compile-time types. Out: a call of f with the type of that name.
//
//   with_strategy<Named<"ddp", DDP<>>, Named<"single", SingleDevice>>(name, [&](auto chosen) {
//     return train<Fabric<typename decltype(chosen)::type>>(options);
//   });
#pragma once

#include <type_traits>

#include <weft/core/error.hpp>
#include <weft/strategy/composition.hpp>

namespace weft::inline v0 {

template <core::FixedString Name, class S>
struct Named {
  using strategy = S;
  static constexpr std::string_view name = Name.view();
};

namespace strategy {

template <class T>
inline constexpr bool is_named_v = false;
template <core::FixedString Name, class S>
inline constexpr bool is_named_v<weft::Named<Name, S>> = true;

// Entries and lists of entries, in one list.
template <class Entry>
struct EntriesOf {
  using type = core::TypeList<Entry>;
};
template <class... Entries>
struct EntriesOf<core::TypeList<Entries...>> {
  using type = core::concat_t<typename EntriesOf<Entries>::type...>;
};

template <class... Entries>
constexpr bool names_differ() {
  std::string_view const names[]{Entries::name...};
  for (auto const& name : names)
    for (auto const* other = names; other != &name; ++other)
      if (core::equal_ignoring_case(name, *other)) return false;
  return true;
}

template <class F, class Entry>
using result_t = std::invoke_result_t<F&, std::type_identity<typename Entry::strategy>>;

template <class... Entries>
[[noreturn]] void fail_unknown(std::string_view name) {
  std::string known;
  ((known += (known.empty() ? "" : ", "), known += Entries::name), ...);
  fail<ConfigurationError>("weft: there is no strategy \"", name, "\": write one of ", known);
}

template <class Entry, class... Rest, class F>
auto choose(std::string_view name, F& f) -> result_t<F, Entry> {
  if (core::equal_ignoring_case(name, Entry::name)) return f(std::type_identity<typename Entry::strategy>{});
  if constexpr (sizeof...(Rest) != 0) return choose<Rest...>(name, f);
  __builtin_unreachable();  // one of the names is this one
}

template <class F, class First, class... Rest>
auto choose_from(core::TypeList<First, Rest...>, std::string_view name, F& f) {
  if constexpr (!(is_named_v<First> && ... && is_named_v<Rest>)) {
    static_assert(core::always_false_v<First>,
                  "weft: with_strategy<...> takes names: write Named<\"ddp\", DDP<>>, not DDP<>");
  } else if constexpr (!names_differ<First, Rest...>()) {
    static_assert(core::always_false_v<First>,
                  "weft: with_strategy<...> has the same name twice (case does not count): give each strategy its own");
  } else if constexpr (!(true && ... && std::is_same_v<result_t<F, First>, result_t<F, Rest>>)) {
    static_assert(core::always_false_v<First>,
                  "weft: with_strategy<...>(name, f): f returns the same type for every strategy");
  } else {
    bool const is_known = (core::equal_ignoring_case(name, First::name) || ... ||
                           core::equal_ignoring_case(name, Rest::name));
    if (!is_known) fail_unknown<First, Rest...>(name);
    return choose<First, Rest...>(name, f);
  }
}

template <class F>
void choose_from(core::TypeList<>, std::string_view, F&) {
  static_assert(core::always_false_v<F>, "weft: with_strategy<...> chooses from a table: write Named<\"ddp\", DDP<>>");
}

}  // namespace strategy

// Fabric's registered names of the strategies that are built; the others (fsdp_cpu_offload, deepspeed..., xla...) come
// with theirs. What started the processes there (ddp_spawn, ddp_fork) is a launcher here, which stands beside the
// strategy: with_launcher knows these names, too.
template <class... Blocks>
using standard_strategies =
    core::TypeList<Named<"dp", DataParallel>, Named<"ddp", DDP<>>, Named<"ddp_spawn", DDP<>>, Named<"ddp_fork", DDP<>>,
                   Named<"ddp_notebook", DDP<>>, Named<"ddp_find_unused_parameters_true", DDP<FindUnused>>,
                   Named<"fsdp", FSDP<FullShard, WrapPolicy<Blocks...>>>>;

// Calls f(std::type_identity<S>{}) with the strategy of that name; case does not count. Entries are Named<...> or lists
// of them, such as standard_strategies<Block>.
template <class... Entries, class F>
auto with_strategy(std::string_view name, F&& f) {
  return strategy::choose_from(core::concat_t<typename strategy::EntriesOf<Entries>::type...>{}, name, f);
}

}  // namespace weft
