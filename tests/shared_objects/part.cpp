// part.cpp -- a library that uses weft's saved-tensor hooks; the program loads it twice, under two names.
#include <weft/unit/recompute.hpp>

/// x -> exp(sin(sin(inside(exp(x))))), where this library's hooks count what is saved and the sines are recomputed.
extern "C" [[gnu::visibility("default")]] void run_part(at::Tensor const& x, void (*inside)(at::Tensor&), at::Tensor& result, int& packed) {
  auto const counting = weft::saved_tensors([&packed](at::Tensor const& t) { return ++packed, t; }, [](at::Tensor const& t) { return t; });
  auto y = x.exp();
  inside(y);
  result = weft::checkpoint([](at::Tensor const& t) { return t.sin().sin(); }, y).exp();
}
