// data/text.hpp -- a text file as language-model batches.
// In: a file's bytes. Out: windows of bytes as int64, and the same windows one byte later as targets.
#pragma once

#include <array>
#include <cerrno>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fcntl.h>
#include <memory>
#include <optional>
#include <string>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/data/datasets/base.h>
#include <torch/data/example.h>

#include <weft/core/error.hpp>

namespace weft::data {

// A stretch of a file's bytes. Copies share them.
class Text {
 public:
  static Text read(std::string const& path) {
    int const file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (file < 0) fail<ConfigurationError>("weft: text file ", path, ": ", std::strerror(errno));
    struct Closer {
      int file;
      ~Closer() { ::close(file); }
    } closer{file};
    struct stat about {};
    if (::fstat(file, &about) != 0) fail<ConfigurationError>("weft: text file ", path, ": ", std::strerror(errno));
    if (S_ISDIR(about.st_mode)) fail<ConfigurationError>("weft: text file ", path, ": is a directory: give one file");
    auto bytes = std::make_shared<std::vector<std::uint8_t>>();
    // Read until the end says so: a pipe has no size, and a file may grow.
    std::size_t filled = 0;
    bytes->resize(about.st_size > 0 ? static_cast<std::size_t>(about.st_size) + 1 : std::size_t{1} << 16);
    while (true) {
      ssize_t const got = ::read(file, bytes->data() + filled, bytes->size() - filled);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) fail<ConfigurationError>("weft: text file ", path, ": ", std::strerror(errno));
      if (got == 0) break;
      filled += static_cast<std::size_t>(got);
      if (filled == bytes->size()) bytes->resize(bytes->size() * 2);
    }
    if (filled == 0) fail<ConfigurationError>("weft: text file ", path, ": is empty");
    bytes->resize(filled);
    return Text(path, std::move(bytes), 0, filled);
  }

  static Text of(std::string_view text, std::string name = "(text in memory)") {
    if (text.empty()) fail<ConfigurationError>("weft: text ", name, ": is empty");
    auto bytes = std::make_shared<std::vector<std::uint8_t>>(text.begin(), text.end());
    return Text(std::move(name), std::move(bytes), 0, text.size());
  }

  // The text without its end, and the end: {train, validation} = text.split(0.05).
  std::pair<Text, Text> split(double fraction_at_end) const {
    auto const at_end = static_cast<std::size_t>(std::llround(static_cast<double>(size()) * fraction_at_end));
    if (!(fraction_at_end > 0 && fraction_at_end < 1) || at_end == 0 || at_end >= size())
      fail<ConfigurationError>("weft: text file ", name_, ": ", size(), " bytes cannot be split with a fraction of ", fraction_at_end, " at the end: both parts need bytes");
    std::size_t const cut = end_ - at_end;
    return {Text(name_, bytes_, begin_, cut), Text(name_, bytes_, cut, end_)};
  }

  std::string const& name() const { return name_; }
  std::size_t size() const { return end_ - begin_; }
  std::uint8_t const* data() const { return bytes_->data() + begin_; }

  // In nats per byte: what a model that knows only how often each byte occurs would lose.
  double unigram_entropy() const {
    std::array<std::size_t, 256> counts{};
    for (std::size_t i = 0; i < size(); ++i) ++counts[data()[i]];
    double entropy = 0;
    for (std::size_t const count : counts) {
      if (count == 0) continue;
      double const share = static_cast<double>(count) / static_cast<double>(size());
      entropy -= share * std::log(share);
    }
    return entropy;
  }

 private:
  Text(std::string name, std::shared_ptr<std::vector<std::uint8_t> const> bytes, std::size_t begin, std::size_t end)
      : name_(std::move(name)), bytes_(std::move(bytes)), begin_(begin), end_(end) {}

  std::string name_;
  std::shared_ptr<std::vector<std::uint8_t> const> bytes_;
  std::size_t begin_;
  std::size_t end_;
};

// A permutation of [0, count) that needs no table: a Feistel network over the next power of four, walked until it lands inside.
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
  std::uint64_t round_trip(std::uint64_t index) const {
    std::uint64_t const mask = (std::uint64_t{1} << half_bits_) - 1;
    std::uint64_t left = index >> half_bits_, right = index & mask;
    for (std::uint64_t round = 0; round < 4; ++round) {
      std::uint64_t const mixed = left ^ (mix(right + seed_ + round * 0x9e3779b97f4a7c15u) & mask);
      left = right;
      right = mixed;
    }
    return (left << half_bits_) | right;
  }
  static std::uint64_t mix(std::uint64_t x) {  // splitmix64
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
  }

  std::uint64_t count_;
  std::uint64_t seed_;
  unsigned half_bits_ = 1;
};

// Where windows start. strided: at multiples of the stride, in order. random: at every byte once per epoch, in scattered
// order (the loader need not shuffle, and no table of all offsets is made).
enum class Windows { strided, random };

struct ByteTextOptions {
  std::int64_t length = 128;  // bytes that the model sees; the target is one later, so a window covers length + 1
  Windows windows = Windows::strided;
  std::int64_t stride = 0;  // 0: as the length, so that windows lie side by side
  std::uint64_t seed = 0;   // of the random order
};

class ByteText : public torch::data::datasets::BatchDataset<ByteText, torch::data::Example<>> {
 public:
  explicit ByteText(Text text, ByteTextOptions options = {})
      : text_(std::move(text)), options_(checked(options, text_)), num_windows_(count()), scattered_(num_windows_, options_.seed) {}

  std::optional<std::size_t> size() const override { return num_windows_; }

  torch::data::Example<> get_batch(torch::ArrayRef<std::size_t> indices) override {
    auto const num_windows = static_cast<std::int64_t>(indices.size());
    at::Tensor data = at::empty({num_windows, options_.length}, at::kLong);
    at::Tensor target = at::empty({num_windows, options_.length}, at::kLong);
    auto* to_data = data.mutable_data_ptr<std::int64_t>();
    auto* to_target = target.mutable_data_ptr<std::int64_t>();
    for (std::size_t const index : indices) {
      std::uint8_t const* from = text_.data() + offset(index);
      for (std::int64_t i = 0; i < options_.length; ++i) to_data[i] = from[i];
      for (std::int64_t i = 0; i < options_.length; ++i) to_target[i] = from[i + 1];
      to_data += options_.length;
      to_target += options_.length;
    }
    return {std::move(data), std::move(target)};
  }

  // The byte at which window index begins.
  std::size_t offset(std::size_t index) const {
    if (index >= num_windows_) fail<Error>("weft: text file ", text_.name(), ": window ", index, " of ", num_windows_);
    return options_.windows == Windows::random ? scattered_(index) : index * static_cast<std::size_t>(options_.stride);
  }
  Text const& text() const { return text_; }
  double unigram_entropy() const { return text_.unigram_entropy(); }

 private:
  static ByteTextOptions checked(ByteTextOptions options, Text const& text) {
    if (options.length < 1) fail<ConfigurationError>("weft: ByteText: .length = ", options.length, ": give a number of bytes, at least 1");
    if (options.stride < 0) fail<ConfigurationError>("weft: ByteText: .stride = ", options.stride, ": give a number of bytes, or 0 for the length");
    if (options.stride == 0) options.stride = options.length;
    if (text.size() < static_cast<std::size_t>(options.length) + 1)
      fail<ConfigurationError>("weft: text file ", text.name(), ": ", text.size(), " bytes are shorter than one window of ", options.length, " + 1 bytes: use a longer text or a smaller .length");
    return options;
  }
  std::size_t count() const {
    std::size_t const offsets = text_.size() - static_cast<std::size_t>(options_.length);
    return options_.windows == Windows::random ? offsets : (offsets - 1) / static_cast<std::size_t>(options_.stride) + 1;
  }

  Text text_;
  ByteTextOptions options_;
  std::size_t num_windows_;
  ScatteredOrder scattered_;
};

}  // namespace weft::data
