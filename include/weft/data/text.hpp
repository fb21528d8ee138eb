// data/text.hpp -- a text file, and its bytes as language-model batches.
// In: a file's bytes, read or mapped. Out: windows of bytes as int64, and the same windows one byte later as targets.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <weft/core/error.hpp>
#include <weft/data/windows.hpp>

namespace weft::inline v0::data {

// A stretch of a file's bytes. Copies share them.
class Text {
 public:
  static constexpr char const* unit = "bytes";

  static Text read(std::string const& path);

  // The same without reading it: pages come from the disk when they are looked at, and all processes of a machine share
  // them. The file must stay as it is: reading behind the end of one that was cut ends the process.
  static Text map(std::string const& path);

  static Text of(std::string_view text, std::string name = "(text in memory)");

  // The text without its end, and the end: {train, validation} = text.split(0.05).
  std::pair<Text, Text> split(double fraction_at_end) const;

  std::string const& name() const { return name_; }
  std::size_t size() const { return end_ - begin_; }
  std::uint8_t const* data() const { return bytes_.get() + begin_; }

  // In nats per byte: what a model that knows only how often each byte occurs would lose.
  double unigram_entropy() const;

 private:
  struct File {
    explicit File(std::string const& path);
    ~File() { close(); }
    File(File const&) = delete;
    File& operator=(File const&) = delete;
    [[noreturn]] void refuse(std::string const& path, char const* why) {
      std::string const text = why;
      close();
      fail<ConfigurationError>("weft: text file ", path, ": ", text);
    }
    void close() {
      if (number >= 0) ::close(std::exchange(number, -1));
    }
    int number;
    std::size_t size = 0;
  };
  static std::shared_ptr<std::uint8_t const> share(std::shared_ptr<std::vector<std::uint8_t>> bytes) {
    return {bytes, bytes->data()};
  }

  Text(std::string name, std::shared_ptr<std::uint8_t const> bytes, std::size_t begin, std::size_t end)
      : name_(std::move(name)), bytes_(std::move(bytes)), begin_(begin), end_(end) {}

  std::string name_;
  std::shared_ptr<std::uint8_t const> bytes_;
  std::size_t begin_;
  std::size_t end_;
};

using ByteTextOptions = WindowOptions;
using ByteText = NextToken<Text>;

}  // namespace weft::data

#ifndef WEFT_SEPARATE_COMPILATION
#include <weft/data/text.ipp>
#endif
