// launch/environment.hpp -- joins ranks that somebody else started.
// In: torchrun's variables. Out: where this process stands, and the store where all meet.
#pragma once

#include <charconv>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>

#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <weft/comm/session.hpp>
#include <weft/core/error.hpp>
#include <weft/launch/options.hpp>

namespace weft::launch {

inline int environment_number(char const* name) {
  char const* const text = std::getenv(name);
  if (!text) fail<LaunchError>("weft: Environment: the variable ", name, " is not set; start the program with torchrun, or choose the launcher Fork");
  int value = 0;
  auto const [end, error] = std::from_chars(text, text + std::strlen(text), value);
  if (error != std::errc() || *end != '\0' || value < 0) fail<LaunchError>("weft: Environment: ", name, " = \"", text, "\" is not a number of at least 0");
  return value;
}

/// The ranks as torchrun numbers them, checked against what the program asked for.
inline comm::RankInfo ranks_from_environment(LaunchOptions const& options) {
  comm::RankInfo ranks;
  ranks.global_rank = environment_number("RANK");
  ranks.world_size = environment_number("WORLD_SIZE");
  ranks.local_rank = environment_number("LOCAL_RANK");
  ranks.local_world_size = environment_number("LOCAL_WORLD_SIZE");
  ranks.node_rank = std::getenv("GROUP_RANK") ? environment_number("GROUP_RANK") : 0;
  ranks.num_nodes = ranks.local_world_size > 0 ? ranks.world_size / ranks.local_world_size : 1;
  if (ranks.global_rank >= ranks.world_size)
    fail<LaunchError>("weft: Environment: RANK = ", ranks.global_rank, " but WORLD_SIZE = ", ranks.world_size, "; ranks count from 0");
  if (!options.devices.is_auto() && options.devices.text() != "-1" && options.devices.count(1 << 20) != ranks.local_world_size)
    fail<LaunchError>("weft: Environment: the program asks for devices = ", options.devices.text(), ", the environment has LOCAL_WORLD_SIZE = ",
                      ranks.local_world_size, "; make them equal, or leave devices out");
  if (options.num_nodes != 1 && options.num_nodes != ranks.num_nodes)
    fail<LaunchError>("weft: Environment: the program asks for num_nodes = ", options.num_nodes, ", the environment has ", ranks.num_nodes,
                      " (WORLD_SIZE / LOCAL_WORLD_SIZE); make them equal, or leave num_nodes out");
  return ranks;
}

/// torchrun's agent serves the store; without an agent rank 0 does.
inline c10::intrusive_ptr<c10d::Store> store_from_environment(comm::RankInfo const& ranks, std::chrono::milliseconds timeout) {
  char const* const host = std::getenv("MASTER_ADDR");
  if (!host) fail<LaunchError>("weft: Environment: the variable MASTER_ADDR is not set; start the program with torchrun, or choose the launcher Fork");
  char const* const agent = std::getenv("TORCHELASTIC_USE_AGENT_STORE");
  c10d::TCPStoreOptions options;
  options.port = static_cast<std::uint16_t>(environment_number("MASTER_PORT"));
  options.isServer = ranks.global_rank == 0 && !(agent && std::string(agent) == "True");
  options.waitWorkers = false;
  options.timeout = timeout;
  return c10::make_intrusive<c10d::TCPStore>(host, options);
}

}  // namespace weft::launch
