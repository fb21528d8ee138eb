// launch/launch_options.hpp -- how many processes, on which devices.
// In: what the user writes as `devices`. Out: a count or a list of device indices, or a refusal that quotes it.
#pragma once

#include <chrono>
#include <initializer_list>
#include <string>
#include <string_view>
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
  Devices(std::vector<int> indices);
  Devices(char const* text) : Devices(std::string_view(text)) {}  // NOLINT: devices = "0,2"
  Devices(std::string_view text);

  std::string const& text() const { return text_; }
  bool is_auto() const { return count_ == 0 && !listed_; }

  /// Processes on this node, given how many accelerators it has; 0 means that ranks run on the CPU.
  int count(int accelerators) const;

  /// Index of the device of one local rank.
  int index(int local_rank) const { return listed_ ? indices_[static_cast<std::size_t>(local_rank)] : local_rank; }

 private:
  int number(std::string_view part) const;
  void check() const;
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
  std::chrono::milliseconds rendezvous_timeout = std::chrono::minutes(10);  // until all ranks have come
  std::chrono::milliseconds shutdown_timeout =
      std::chrono::seconds(5);  // from the first failure until the last rank is killed
  std::chrono::milliseconds silence_timeout =
      std::chrono::seconds(6);  // Environment: without a sign of life for so long, a rank counts as killed
  // Where Gloo listens: an interface ("eth0"), or this node's name or address. Empty: $GLOO_SOCKET_IFNAME, else the
  // loopback on one node and what the host's name stands for on several.
  std::string interface{};
  bool check_collectives = core::checking_grade();  // compare ranks' calls before each: an error instead of a hang, at
                                                    // the price of the store's round trips
  int max_restarts = 0;  // Fork, Popen: after a failed rank all are started again, so often, with a fresh rendezvous;
                         // fabric.attempt() tells
  // Fork, Popen: signals to the launcher that go on to each rank, which handles them or ends, instead of ending the
  // job: {SIGUSR1, SIGUSR2, SIGTERM} are those of schedulers before they take the node away.
  std::vector<int> forward_signals{};
  int simulated_rank = 0;  // which rank this process is under Simulated<World>
};

namespace launch {

void check_times(LaunchOptions const& options);
void check_signals(LaunchOptions const& options);

}  // namespace launch
}  // namespace weft

#ifndef WEFT_SEPARATE_COMPILATION
#include <weft/launch/launch_options.ipp>
#endif
