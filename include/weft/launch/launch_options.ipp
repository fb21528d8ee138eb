// launch/launch_options.ipp -- definitions of launch/launch_options.hpp.
#pragma once

#include <weft/launch/launch_options.hpp>

#include <charconv>
#include <csignal>
#include <utility>

#include <weft/core/build.hpp>

namespace weft::inline v0 {

WEFT_INLINE Devices::Devices(std::vector<int> indices)
    : indices_(std::move(indices)), listed_(true) {  // NOLINT: devices = list
  for (int index : indices_) text_ += (text_.empty() ? "" : ",") + std::to_string(index);
  check();
}

WEFT_INLINE Devices::Devices(std::string_view text) : text_(text) {  // NOLINT
  if (text == "auto") return;
  if (text.ends_with(',')) refuse();
  listed_ = text.find(',') != text.npos;
  for (std::string_view rest = text; !rest.empty();) {
    auto const comma = rest.find(',');
    indices_.push_back(number(rest.substr(0, comma)));
    rest = comma == rest.npos ? std::string_view() : rest.substr(comma + 1);
  }
  if (!listed_ && !indices_.empty()) count_ = std::exchange(indices_, {}).front();
  check();
}

WEFT_INLINE int Devices::count(int accelerators) const {
  if (listed_) {
    if (accelerators == 0)
      fail<ConfigurationError>("weft: devices = \"", text_,
                               "\" lists device indices, but ranks run on the CPU; write a number of processes");
    for (int index : indices_)
      if (index >= accelerators)
        fail<ConfigurationError>("weft: devices = \"", text_, "\" names device ", index, ", but this node has ",
                                 accelerators, "; write 0 to ", accelerators - 1);
    return static_cast<int>(indices_.size());
  }
  if (is_auto()) return accelerators > 0 ? accelerators : 1;
  if (count_ == -1) {
    if (accelerators == 0)
      fail<ConfigurationError>(
          "weft: devices = -1 asks for all accelerators, but ranks run on the CPU; write a number of processes");
    return accelerators;
  }
  if (accelerators > 0 && count_ > accelerators)
    fail<ConfigurationError>("weft: devices = ", count_, ", but this node has ", accelerators, "; write at most ",
                             accelerators);
  return count_;
}

WEFT_INLINE int Devices::number(std::string_view part) const {
  int value = 0;
  auto const [end, error] = std::from_chars(part.data(), part.data() + part.size(), value);
  if (error != std::errc() || end != part.data() + part.size()) refuse();
  return value;
}

WEFT_INLINE void Devices::check() const {
  if (listed_ ? indices_.empty() : (count_ == 0 || count_ < -1)) refuse();
  for (std::size_t i = 0; i < indices_.size(); ++i) {
    if (indices_[i] < 0) refuse();
    for (std::size_t j = 0; j < i; ++j)
      if (indices_[i] == indices_[j]) refuse();
  }
}

}  // namespace weft

namespace weft::inline v0::launch {

WEFT_INLINE void check_times(LaunchOptions const& options) {
  auto const check = [](char const* name, std::chrono::milliseconds time) {
    if (time.count() <= 0) fail<LaunchError>("weft: launch: ", name, " = ", time.count(), " ms; write more than 0");
  };
  check("collective_timeout", options.collective_timeout);
  check("rendezvous_timeout", options.rendezvous_timeout);
  check("silence_timeout", options.silence_timeout);
}

WEFT_INLINE void check_signals(LaunchOptions const& options) {
  for (int const signal : options.forward_signals)
    if (signal != SIGUSR1 && signal != SIGUSR2 && signal != SIGTERM && signal != SIGINT && signal != SIGHUP)
      fail<LaunchError>("weft: launch: forward_signals has ", signal,
                        ", which is not passed on; write SIGUSR1, SIGUSR2, SIGTERM, SIGINT or SIGHUP");
}

}  // namespace weft::launch
