#include <weft/core/seeds.hpp>

#include <array>
#include <cstdint>
#include <set>
#include <string>

#include <catch2/catch_all.hpp>

using Catch::Matchers::ContainsSubstring;
using weft::core::rank_seed;
using weft::core::worker_seeds;

TEST_CASE("workers' seeds are Lightning's", "[core]") {
  struct Case {
    std::uint64_t base, worker, rank;
    std::array<std::uint64_t, 4> seeds;
  };
  // lightning.fabric.utilities.seed._generate_seed_sequence(base, worker, rank, count=4) of lightning 2.6.6
  constexpr Case cases[] = {
      {0u, 0, 0, {1u, 6364136223846793006u, 13885033948157127959u, 14678909342070756876u}},
      {42u, 0, 1, {8908122467884995918u, 4625518674293911735u, 4141695628600580396u, 15723908157795319997u}},
      {42u, 1, 1, {16366713251575205823u, 6216816001666844052u, 9007677580687861509u, 14853703376138704610u}},
      {1u, 2, 3, {12926348068055368906u, 2205480275932171651u, 2944613188940700936u, 4697769420924359273u}},
      {4294967295u, 7, 65535, {7584796511896978610u, 6079059358099562827u, 2439741742831357744u, 2527983783923694449u}},
      {1311768467463790320u,
       3,
       2,
       {10752330759815380238u, 5147695413373152631u, 6673350419298027244u, 11819377020521991037u}},
      {18446744073709551615u,
       15,
       4095,
       {12872094863346015270u, 7223094724565290159u, 2580425479214418884u, 1975076604863614325u}},
  };
  static_assert(worker_seeds(42, 1, 1) == cases[2].seeds);
  for (auto const& [base, worker, rank, seeds] : cases) CHECK(worker_seeds(base, worker, rank) == seeds);
}

// The first outputs of splitmix64 from the states 0 and 1234567, as its author's code (prng.di.unimi.it/splitmix64.c)
// gives them.
TEST_CASE("scattered numbers are splitmix64's", "[core]") {
  static_assert(weft::core::scattered(0) == 0xe220a8397b1dcdaf);
  static_assert(weft::core::scattered(1234567) == 6457827717110365317u);
  CHECK(weft::core::scattered(0x9e3779b97f4a7c15u) == 0x6e789e6aa1b965f4);
}

TEST_CASE("ranks' seeds differ, and rank 0 keeps the seed", "[core]") {
  static_assert(rank_seed(7, 0) == 7);
  std::set<std::uint64_t> seen;
  for (std::uint64_t seed : {0, 1, 7})
    for (std::uint64_t rank = 0; rank < 64; ++rank) seen.insert(rank_seed(seed, rank));
  CHECK(seen.size() == 3 * 64);
}

TEST_CASE("a seed has 32 bits, and a variable holds a whole number", "[core]") {
  CHECK(weft::core::checked_seed(0) == 0);
  CHECK(weft::core::checked_seed(4294967295) == 4294967295);
  CHECK_THROWS_WITH(weft::core::checked_seed(-1),
                    "weft: seed_everything: seed -1 is out of range; write 0 to 4294967295");
  CHECK_THROWS_AS(weft::core::checked_seed(4294967296), weft::ConfigurationError);
  CHECK(weft::core::number_in("PL_GLOBAL_SEED", "-12") == -12);
  for (auto const* wrong : {"", "x", "1x", " 1", "1.5", "99999999999999999999"})
    CHECK_THROWS_WITH(weft::core::number_in("PL_GLOBAL_SEED", wrong),
                      ContainsSubstring("PL_GLOBAL_SEED = \"" + std::string(wrong) + "\" is not a whole number"));
}
