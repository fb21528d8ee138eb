// core/seeds.hpp -- numbers that random generators start from.
// In: what the user, or the environment, says. Out: a checked seed, and well mixed ones for ranks and for a loader's
// workers; no torch.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include <weft/core/error.hpp>

namespace weft::inline v0::core {

/// splitmix64's last step: each bit of x has a say in each bit of the result.
constexpr std::uint64_t mixed(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}
/// splitmix64: neighboring numbers become unlike ones.
constexpr std::uint64_t scattered(std::uint64_t x) { return mixed(x + 0x9e3779b97f4a7c15u); }

/// Four numbers for worker `worker` of rank `rank`, as Lightning has them: Murmur3's finalizer over all that tells
/// workers apart, then a linear congruential generator. The first seeds LibTorch, the next two another generator.
/// `base` is what all workers of a process share.
constexpr std::array<std::uint64_t, 4> worker_seeds(std::uint64_t base, std::uint64_t worker, std::uint64_t rank) {
  // base * 2^32 has up to 96 bits; those above 64 come back by the first shift alone.
  std::uint64_t x = (base << 32) | (worker << 16) | rank;
  x ^= (x >> 33) | ((base >> 32) << 31);
  x *= 0xFF51AFD7ED558CCD;
  x ^= x >> 33;
  x *= 0xC4CEB9FE1A85EC53;
  x ^= x >> 33;
  std::array<std::uint64_t, 4> seeds{};
  for (auto& seed : seeds) seed = x = x * 6364136223846793005 + 1;
  return seeds;
}

/// What rank `rank` starts from where ranks are to differ. Rank 0 keeps the seed, so that a model starts as it does in
/// one process.
constexpr std::uint64_t rank_seed(std::uint64_t seed, std::uint64_t rank) {
  return rank == 0 ? seed : worker_seeds(seed, 0, rank)[0];
}

/// Seeds have 32 bits, so that they mean the same to Lightning and to numpy.
inline std::uint64_t checked_seed(std::int64_t seed) {
  if (seed < 0 || seed > 0xFFFFFFFF)
    fail<ConfigurationError>("weft: seed_everything: seed ", seed, " is out of range; write 0 to 4294967295");
  return static_cast<std::uint64_t>(seed);
}

/// The whole number that an environment variable holds.
std::int64_t number_in(std::string_view variable, std::string_view text);

}  // namespace weft::core

#ifndef WEFT_SEPARATE_COMPILATION
#include <weft/core/seeds.ipp>
#endif
