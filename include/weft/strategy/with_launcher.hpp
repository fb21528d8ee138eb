// strategy/with_launcher.hpp -- a launcher chosen when the program runs.
// In: a name, weft's or Fabric's. Out: a call of f with the launcher of that name, or the reason why there is none.
#pragma once

#include <initializer_list>
#include <string_view>
#include <type_traits>

#include <weft/core/error.hpp>
#include <weft/core/fixed_string.hpp>
#include <weft/strategy/machine.hpp>

namespace weft::inline v0 {

/// Calls f(std::type_identity<Launcher>{}); case does not count. Fabric's names are its start methods and what its
/// strategies ddp... add to DDP:
///
///   fork, ddp_fork, ddp_notebook                   Fork: ranks begin at the launched function
///   popen, ddp, ddp_find_unused_parameters_true    Popen: ranks run the program from its start
///   spawn, ddp_spawn                               Popen, too: a function can't be sent to a new process, but the
///   program can be run as far as its launch environment                                    Environment forkserver,
///   ddp_forkserver                     none
template <class F>
auto with_launcher(std::string_view name, F&& f) {
  auto const is_one_of = [name](std::initializer_list<std::string_view> names) {
    for (auto const known : names)
      if (core::equal_ignoring_case(name, known)) return true;
    return false;
  };
  if (is_one_of({"fork", "ddp_fork", "ddp_notebook"})) return f(std::type_identity<Fork>{});
  if (is_one_of({"popen", "ddp", "ddp_find_unused_parameters_true", "spawn", "ddp_spawn"}))
    return f(std::type_identity<Popen>{});
  if (is_one_of({"environment"})) return f(std::type_identity<Environment>{});
  if (is_one_of({"forkserver", "ddp_forkserver"}))
    fail<ConfigurationError>("weft: \"", name,
                             "\" forks ranks from a process that imported modules beforehand, which a compiled program "
                             "has no use for; write the launcher \"popen\", "
                             "whose ranks are new runs of the program, or \"fork\"");
  fail<ConfigurationError>(
      "weft: there is no launcher \"", name,
      "\": write fork, popen or environment, or one of Fabric's names: ddp, spawn, ddp_spawn, ddp_fork, ddp_notebook");
}

}  // namespace weft
