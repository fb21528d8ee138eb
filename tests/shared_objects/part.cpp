// part.cpp -- a library with weft inside, by its saved-tensor hooks and what it keeps for the whole process; the
// program loads it twice, under two names.
#include <string>

#include <weft/activation/recompute.hpp>
#include <weft/core/atomic_file.hpp>
#include <weft/model/parameter_table.hpp>

/// x -> exp(sin(sin(inside(exp(x))))), where this library's hooks count what is saved and the sines are recomputed.
extern "C" [[gnu::visibility("default")]] void run_part(at::Tensor const& x, void (*inside)(at::Tensor&),
                                                        at::Tensor& result, int& packed) {
  auto const counting = weft::saved_tensors([&packed](at::Tensor const& t) { return ++packed, t; },
                                            [](at::Tensor const& t) { return t; });
  auto y = x.exp();
  inside(y);
  result = weft::checkpoint([](at::Tensor const& t) { return t.sin().sin(); }, y).exp();
}

/// Whether a parameter is known to be cut, after this library has cut it or not.
extern "C" [[gnu::visibility("default")]] bool is_cut(at::Tensor const& parameter, bool cut) {
  if (cut) weft::model::ShardedParameters::add(parameter);
  return weft::model::ShardedParameters::contains(parameter);
}

/// Writes a file; somebody else may write it meanwhile.
extern "C" [[gnu::visibility("default")]] void write_file(char const* path, void (*meanwhile)(char const*)) {
  weft::core::AtomicFile file(path);
  std::string const text = "whole";
  file.write(text.data(), text.size());
  meanwhile(path);
  file.commit();
}
