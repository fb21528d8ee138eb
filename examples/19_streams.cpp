// 19_streams.cpp -- data that comes one sample after another.
//
// A stream has std::optional<Sample> next(), empty at its end. Each loop begins with a copy. Ranks take samples in
// turn, and workers share the rank's stream: none sees a sample twice. A stream that can cut itself (one file for each
// rank, say) has shard(num_shards, index).
//
// run:
// expect: in turn: rank 0 has lines 0 2 4 6 8 10, rank 1 has lines 1 3 5 7 9 0
// expect: each once: rank 0 has lines 0 2 4 6 8 10, rank 1 has lines 1 3 5 7 9
// expect: own shards: rank 0 has lines 0 1 2 3 4, rank 1 has lines 5 6 7 8 9 10
#include <cstddef>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include <weft/weft.hpp>

// The lines of a log, as a socket or a pipe would give them.
struct Lines {
  std::size_t at = 0, end = 11;
  std::optional<std::string> next() { return at < end ? std::optional(std::to_string(at++)) : std::nullopt; }
};
struct CutLines : Lines {
  void shard(std::size_t num_shards, std::size_t index) {
    std::size_t const all = end;
    at = all * index / num_shards;
    end = all * (index + 1) / num_shards;
  }
};

using Run = weft::Fabric<weft::DDP<>, weft::On<weft::Cpu>>;

template <class Stream>
void show(Run& fabric, char const* what, Stream stream, weft::data::LoaderOptions options) {
  options.batch_size = 2;
  options.workers = 2;
  auto loader = fabric.setup_dataloader(stream, options);
  std::string seen;
  for (std::vector<std::string>& batch : loader)
    for (auto const& line : batch) seen += " " + line;
  auto const other = fabric.broadcast(seen, 1);
  fabric.print(what, ": rank 0 has lines", seen, ", rank 1 has lines", other);
}

int main() {
  return Run::launch({.devices = 2},
                     [](Run& fabric) {
                       show(fabric, "in turn", Lines(),
                            {});  // ranks are equally long: the last round is filled from the start
                       show(fabric, "each once", Lines(), {.uneven = weft::data::Uneven::keep});
                       show(fabric, "own shards", CutLines(), {});
                     })
      .exit_code();
}
