// launch/launch_options.hpp -- how many processes, on which devices.
// In: what the user writes as `devices`. Out: a count or a list of device indices, or a refusal that quotes it.
#pragma once

#include <charconv>
#include <chrono>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <weft/core/checking.hpp>
#include <weft/core/error.hpp>

namespace weft::inline v0 {

/// Devices of one node: a count (2), all (-1), "auto" (all accelerators; one process on CPU), a list ({0, 2} or "0,2").
/// A string that holds one number, "3", is a count.
class Devices {
 public:
  Devices() = default;
  Devices(int count) : count_(count), text_(std::to_string(count)) { check(); }  // NOLINT: devices = 2
  Devices(std::initializer_list<int> indices) : Devices(std::vector<int>(indices)) {}
  Devices(std::vector<int> indices) : indices_(std::move(indices)), listed_(true) {  // NOLINT: devices = list
    for (int index : indices_) text_ += (text_.empty() ? "" : ",") + std::to_string(index);
    check();
  }
  Devices(char const* text) : Devices(std::string_view(text)) {}  // NOLINT: devices = "0,2"
  Devices(std::string_view text) : text_(text) {                  // NOLINT
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

  std::string const& text() const { return text_; }
  bool is_auto() const { return count_ == 0 && !listed_; }

  /// Processes on this node, given how many accelerators it has; 0 means that ranks run on the CPU.
  int count(int accelerators) const {
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

  /// Index of the device of one local rank.
  int index(int local_rank) const { return listed_ ? indices_[static_cast<std::size_t>(local_rank)] : local_rank; }

 private:
  int number(std::string_view part) const {
    int value = 0;
    auto const [end, error] = std::from_chars(part.data(), part.data() + part.size(), value);
    if (error != std::errc() || end != part.data() + part.size()) refuse();
    return value;
  }
  void check() const {
    if (listed_ ? indices_.empty() : (count_ == 0 || count_ < -1)) refuse();
    for (std::size_t i = 0; i < indices_.size(); ++i) {
      if (indices_[i] < 0) refuse();
      for (std::size_t j = 0; j < i; ++j)
        if (indices_[i] == indices_[j]) refuse();
    }
  }
  [[noreturn]] void refuse() const {
    fail<ConfigurationError>(
        "weft: devices = \"", text_,
        "\": write \"auto\", -1 (all), a count of at least 1, or a list of different indices such as \"0,2\"");
  }

  int count_ = 0;  // 0: auto
  std::vector<int> indices_;
  bool listed_ = false;
  std::string text_ = "auto";
};

/// What `launch` may be told. Times are upper bounds, not delays.
struct LaunchOptions {
  Devices devices{};
  int num_nodes = 1;
  std::chrono::milliseconds collective_timeout = std::chrono::minutes(30);
  std::chrono::milliseconds shutdown_timeout =
      std::chrono::seconds(5);  // from the first failure until the last rank is killed
  std::chrono::milliseconds silence_timeout =
      std::chrono::seconds(6);  // Environment: without a sign of life for so long, a rank counts as killed
  // Where Gloo listens: an interface ("eth0"), or this node's name or address. Empty: $GLOO_SOCKET_IFNAME, else the
  // loopback on one node and what the host's name stands for on several.
  std::string interface{};
  bool check_collectives = core::checking_grade;  // compare ranks' calls before each: an error instead of a hang, at
                                                  // the price of the store's round trips
  int max_restarts = 0;    // Fork, Popen: after a failed rank all are started again, so often, with a fresh rendezvous;
                           // fabric.attempt() tells
  int simulated_rank = 0;  // which rank this process is under Simulated<World>
};

namespace launch {

inline void check_times(LaunchOptions const& options) {
  auto const check = [](char const* name, std::chrono::milliseconds time) {
    if (time.count() <= 0) fail<LaunchError>("weft: launch: ", name, " = ", time.count(), " ms; write more than 0");
  };
  check("collective_timeout", options.collective_timeout);
  check("silence_timeout", options.silence_timeout);
}

}  // namespace launch
}  // namespace weft
