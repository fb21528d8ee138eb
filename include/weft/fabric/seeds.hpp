// fabric/seeds.hpp -- where random numbers start.
// In: a seed, or an environment that names one. Out: LibTorch's generators seeded on every rank, and what loaders start
// from.
#pragma once

#include <cstdint>
#include <optional>

#include <weft/comm/session.hpp>

namespace weft::inline v0 {

struct SeedOptions {
  bool per_rank =
      false;  // LibTorch's generators differ by batch, so that dropout masks do; start weights and samplers don't
};

namespace fabric {

/// The seed as said, as $PL_GLOBAL_SEED says, or 0; kept in the session, which samplers and loaders' workers ask. The
/// workers always follow it, so that PL_SEED_WORKERS has nothing to switch.
///
/// [Note: the environment is read, not written] Lightning leaves seeds in the environment, where the next launch of the
/// same process takes them for the user's. A session ends with its launch.
std::uint64_t seed_session(comm::Session& session, int data_rank, std::optional<std::int64_t> seed,
                           SeedOptions const& options);

/// The part of Fabric that seeds.
template <class Derived>
class Seeds {
 public:
  /// Seeds LibTorch's generators on all devices, alike on every rank unless options say otherwise, and the samplers of
  /// loaders made from now on. Returns the seed: what is given, else $PL_GLOBAL_SEED, else 0 with a warning.
  std::uint64_t seed_everything(std::optional<std::int64_t> seed = std::nullopt, SeedOptions const& options = {}) {
    auto& fabric = static_cast<Derived&>(*this);
    return seed_session(fabric.session(), fabric.mesh().data().coordinate, seed, options);
  }

 private:
  friend Derived;
  Seeds() = default;
};

}  // namespace fabric
}  // namespace weft

#ifndef WEFT_SEPARATE_COMPILATION
#include <weft/fabric/seeds.ipp>
#endif
