// fabric/seeds.ipp -- definitions of fabric/seeds.hpp.
#pragma once

#include <weft/fabric/seeds.hpp>

#include <cstdlib>

#include <c10/util/Exception.h>
#include <torch/utils.h>

#include <weft/core/build.hpp>
#include <weft/core/seeds.hpp>

namespace weft::inline v0::fabric {

WEFT_INLINE std::uint64_t seed_session(comm::Session& session, int data_rank, std::optional<std::int64_t> seed,
                                       SeedOptions const& options) {
  char const* const said = std::getenv("PL_GLOBAL_SEED");
  if (!seed && !said && session.ranks.global_rank == 0)
    TORCH_WARN("weft: seed_everything: no seed is given and PL_GLOBAL_SEED is not set; the seed is 0");
  auto const chosen = core::checked_seed(seed ? *seed : said ? core::number_in("PL_GLOBAL_SEED", said) : 0);
  session.seed = chosen;
  torch::manual_seed(options.per_rank ? core::rank_seed(chosen, static_cast<std::uint64_t>(data_rank)) : chosen);
  return chosen;
}

}  // namespace weft::fabric
