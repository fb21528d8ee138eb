// data/text.ipp -- definitions of data/text.hpp.
#pragma once

#include <weft/data/text.hpp>

#include <cerrno>
#include <cstring>

#include <weft/core/build.hpp>

namespace weft::inline v0::data {

WEFT_INLINE Text Text::read(std::string const& path) {
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

WEFT_INLINE Text Text::map(std::string const& path) {
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

WEFT_INLINE Text Text::of(std::string_view text, std::string name) {
  if (text.empty()) fail<ConfigurationError>("weft: text ", name, ": is empty");
  auto bytes = std::make_shared<std::vector<std::uint8_t>>(text.begin(), text.end());
  return Text(std::move(name), share(std::move(bytes)), 0, text.size());
}

WEFT_INLINE std::pair<Text, Text> Text::split(double fraction_at_end) const {
  std::size_t const cut = end_ - detail::tokens_at_end(fraction_at_end, size(), name_, unit);
  return {Text(name_, bytes_, begin_, cut), Text(name_, bytes_, cut, end_)};
}

WEFT_INLINE double Text::unigram_entropy() const {
  std::vector<std::size_t> counts(256);
  for (std::size_t i = 0; i < size(); ++i) ++counts[data()[i]];
  return detail::entropy_of(counts);
}

WEFT_INLINE Text::File::File(std::string const& path) : number(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
  struct stat about{};
  if (number < 0 || ::fstat(number, &about) != 0) refuse(path, std::strerror(errno));
  if (S_ISDIR(about.st_mode)) refuse(path, "is a directory: give one file");
  size = about.st_size > 0 ? static_cast<std::size_t>(about.st_size) : 0;
}

}  // namespace weft::data
