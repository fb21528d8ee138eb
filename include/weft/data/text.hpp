// data/text.hpp -- a text file, and its bytes as language-model batches.
// In: a file's bytes, read or mapped. Out: windows of bytes as int64, and the same windows one byte later as targets.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
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

  static Text read(std::string const& path) {
    File const file(path);
    auto bytes = std::make_shared<std::vector<std::uint8_t>>();
    // Read until the end says so: a pipe has no size, and a file may grow.
    std::size_t filled = 0;
    bytes->resize(file.size > 0 ? file.size + 1 : std::size_t{1} << 16);
    while (true) {
      ssize_t const got = ::read(file.number, bytes->data() + filled, bytes->size() - filled);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) fail<ConfigurationError>("weft: text file ", path, ": ", std::strerror(errno));
      if (got == 0) break;
      filled += static_cast<std::size_t>(got);
      if (filled == bytes->size()) bytes->resize(bytes->size() * 2);
    }
    if (filled == 0) fail<ConfigurationError>("weft: text file ", path, ": is empty");
    return Text(path, share(std::move(bytes)), 0, filled);
  }

  // The same without reading it: pages come from the disk when they are looked at, and all processes of a machine share
  // them. The file must stay as it is: reading behind the end of one that was cut ends the process.
  static Text map(std::string const& path) {
    File const file(path);
    if (file.size == 0)
      fail<ConfigurationError>("weft: text file ", path,
                               ": is empty, or no file that has a size: only such can be mapped; write Text::read");
    void* const bytes = ::mmap(nullptr, file.size, PROT_READ, MAP_PRIVATE, file.number, 0);
    if (bytes == MAP_FAILED)
      fail<ConfigurationError>("weft: text file ", path, ": cannot be mapped: ", std::strerror(errno));
    return Text(path,
                {static_cast<std::uint8_t const*>(bytes),
                 [size = file.size](std::uint8_t const* it) { ::munmap(const_cast<std::uint8_t*>(it), size); }},
                0, file.size);
  }

  static Text of(std::string_view text, std::string name = "(text in memory)") {
    if (text.empty()) fail<ConfigurationError>("weft: text ", name, ": is empty");
    auto bytes = std::make_shared<std::vector<std::uint8_t>>(text.begin(), text.end());
    return Text(std::move(name), share(std::move(bytes)), 0, text.size());
  }

  // The text without its end, and the end: {train, validation} = text.split(0.05).
  std::pair<Text, Text> split(double fraction_at_end) const {
    std::size_t const cut = end_ - detail::tokens_at_end(fraction_at_end, size(), name_, unit);
    return {Text(name_, bytes_, begin_, cut), Text(name_, bytes_, cut, end_)};
  }

  std::string const& name() const { return name_; }
  std::size_t size() const { return end_ - begin_; }
  std::uint8_t const* data() const { return bytes_.get() + begin_; }

  // In nats per byte: what a model that knows only how often each byte occurs would lose.
  double unigram_entropy() const {
    std::vector<std::size_t> counts(256);
    for (std::size_t i = 0; i < size(); ++i) ++counts[data()[i]];
    return detail::entropy_of(counts);
  }

 private:
  struct File {
    explicit File(std::string const& path) : number(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
      struct stat about{};
      if (number < 0 || ::fstat(number, &about) != 0) refuse(path, std::strerror(errno));
      if (S_ISDIR(about.st_mode)) refuse(path, "is a directory: give one file");
      size = about.st_size > 0 ? static_cast<std::size_t>(about.st_size) : 0;
    }
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
