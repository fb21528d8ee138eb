// The table that a name is looked up in.
#include <weft/strategy/with_strategy.hpp>

using namespace weft;

struct Block {};
inline constexpr auto one = [](auto) { return 1; };

#if defined(CASE_same_name)  // expect-error: weft: with_strategy<...> has the same name twice
auto choose(std::string_view name) { return with_strategy<Named<"ddp", DDP<>>, Named<"ddp", SingleDevice>>(name, one); }
#elif defined(CASE_same_name_but_for_case)  // expect-error: weft: with_strategy<...> has the same name twice
auto choose(std::string_view name) { return with_strategy<Named<"ddp", DDP<>>, Named<"DDP", SingleDevice>>(name, one); }
#elif defined(CASE_same_name_as_standard)   // expect-error: weft: with_strategy<...> has the same name twice
auto choose(std::string_view name) {
  return with_strategy<standard_strategies<Block>, Named<"fsdp", DDP<>>>(name, one);
}
#elif defined(CASE_not_named)               // expect-error: weft: with_strategy<...> takes names: write Named<
auto choose(std::string_view name) { return with_strategy<DDP<>, Named<"single", SingleDevice>>(name, one); }
#elif defined(CASE_empty)                   // expect-error: weft: with_strategy<...> chooses from a table
auto choose(std::string_view name) { return with_strategy<>(name, one); }
#elif defined(CASE_two_results)             // expect-error: f returns the same type for every strategy
auto choose(std::string_view name) {
  return with_strategy<Named<"ddp", DDP<>>, Named<"single", SingleDevice>>(
      name, [](auto chosen) { return decltype(chosen){}; });
}
#else                                       // control
auto choose(std::string_view name) {
  return with_strategy<Named<"ddp", DDP<>>, Named<"single", SingleDevice>>(name, one);
}
auto choose_standard(std::string_view name) {
  return with_strategy<standard_strategies<Block>, Named<"single", SingleDevice>>(name, one);
}
#endif
