// data/windows.hpp -- a text's tokens as language-model batches.
// In: tokens that lie side by side. Out: windows of them as int64, and the same windows one token later as targets.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/data/datasets/base.h>
#include <torch/data/example.h>

#include <weft/core/error.hpp>

namespace weft::inline v0::data {

namespace detail {

// How many tokens a fraction at the end is; each part needs some.
std::size_t tokens_at_end(double fraction, std::size_t size, std::string const& name, char const* unit);

// In nats per token: what a model that knows only how often each token occurs would lose.
double entropy_of(std::vector<std::size_t> const& counts);

}  // namespace detail

// A permutation of [0, count) that needs no table: a Feistel network over the next power of four, walked until it lands
// inside.
class ScatteredOrder {
 public:
  ScatteredOrder(std::uint64_t count, std::uint64_t seed) : count_(count), seed_(seed) {
    while (half_bits_ < 32 && (std::uint64_t{1} << (2 * half_bits_)) < count) ++half_bits_;
  }
  std::uint64_t operator()(std::uint64_t index) const {
    do {
      index = round_trip(index);
    } while (index >= count_);
    return index;
  }

 private:
  std::uint64_t round_trip(std::uint64_t index) const;

  std::uint64_t count_;
  std::uint64_t seed_;
  unsigned half_bits_ = 1;
};

// Where windows start. strided: at multiples of the stride, in order. random: at every token once per epoch, in
// scattered order (the loader need not shuffle, and no table of all offsets is made).
enum class Windows { strided, random };

struct WindowOptions {
  std::int64_t length = 128;  // tokens that the model sees; the target is one later, so a window covers length + 1
  Windows windows = Windows::strided;
  std::int64_t stride = 0;  // 0: as the length, so that windows lie side by side
  std::uint64_t seed = 0;   // of the random order
};

// Windows of a text's tokens. Tokens: size(), data() of numbers, name(), and what they are called, as Text and Words
// have it.
template <class Tokens>
class NextToken : public torch::data::datasets::BatchDataset<NextToken<Tokens>, torch::data::Example<>> {
 public:
  explicit NextToken(Tokens text, WindowOptions options = {})
      : text_(std::move(text)),
        options_(checked(options, text_)),
        num_windows_(count()),
        scattered_(num_windows_, options_.seed) {}

  std::optional<std::size_t> size() const override { return num_windows_; }

  torch::data::Example<> get_batch(torch::ArrayRef<std::size_t> indices) override {
    auto const num_windows = static_cast<std::int64_t>(indices.size());
    at::Tensor data = at::empty({num_windows, options_.length}, at::kLong);
    at::Tensor target = at::empty({num_windows, options_.length}, at::kLong);
    auto* to_data = data.mutable_data_ptr<std::int64_t>();
    auto* to_target = target.mutable_data_ptr<std::int64_t>();
    for (std::size_t const index : indices) {
      auto const* from = text_.data() + offset(index);
      for (std::int64_t i = 0; i < options_.length; ++i) to_data[i] = from[i];
      for (std::int64_t i = 0; i < options_.length; ++i) to_target[i] = from[i + 1];
      to_data += options_.length;
      to_target += options_.length;
    }
    return {std::move(data), std::move(target)};
  }

  // Random windows come in another order in each epoch; loaders tell it.
  void set_epoch(std::uint64_t epoch) { scattered_ = ScatteredOrder(num_windows_, options_.seed + epoch); }

  // The token at which window index begins.
  std::size_t offset(std::size_t index) const {
    if (index >= num_windows_) fail<Error>("weft: text file ", text_.name(), ": window ", index, " of ", num_windows_);
    return options_.windows == Windows::random ? scattered_(index) : index * static_cast<std::size_t>(options_.stride);
  }
  Tokens const& text() const { return text_; }
  double unigram_entropy() const { return text_.unigram_entropy(); }

 private:
  static WindowOptions checked(WindowOptions options, Tokens const& text) {
    if (options.length < 1)
      fail<ConfigurationError>("weft: windows of text: .length = ", options.length, ": give a number of ", Tokens::unit,
                               ", at least 1");
    if (options.stride < 0)
      fail<ConfigurationError>("weft: windows of text: .stride = ", options.stride, ": give a number of ", Tokens::unit,
                               ", or 0 for the length");
    if (options.stride == 0) options.stride = options.length;
    if (text.size() < static_cast<std::size_t>(options.length) + 1)
      fail<ConfigurationError>("weft: text file ", text.name(), ": ", text.size(), " ", Tokens::unit,
                               " are shorter than one window of ", options.length, " + 1 ", Tokens::unit,
                               ": use a longer text or a smaller .length");
    return options;
  }
  std::size_t count() const {
    std::size_t const offsets = text_.size() - static_cast<std::size_t>(options_.length);
    return options_.windows == Windows::random ? offsets
                                               : (offsets - 1) / static_cast<std::size_t>(options_.stride) + 1;
  }

  Tokens text_;
  WindowOptions options_;
  std::size_t num_windows_;
  ScatteredOrder scattered_;
};

}  // namespace weft::data

#ifndef WEFT_SEPARATE_COMPILATION
#include <weft/data/windows.ipp>
#endif
