// strategy/machine.hpp -- where ranks run, how they talk, and who starts them.
// In: nothing. Out: the policies for device, backend and launcher, with what stands for "not said".
#pragma once

#include <type_traits>

#include <weft/plan/policy.hpp>

namespace weft::inline v0 {

struct Cpu {
  static constexpr std::string_view name = "Cpu";
};
struct Cuda {
  static constexpr std::string_view name = "Cuda";
};

template <class Device>
struct On {
  using category = weft::category::device;
  using device = Device;
  static constexpr std::string_view name = Device::name;
};

// CUDA if the machine has it, else the CPU: known when the program runs.
struct AnyDevice {
  using category = weft::category::device;
  static constexpr std::string_view name = "AnyDevice";
};

struct Gloo {
  using category = weft::category::backend;
  static constexpr std::string_view name = "Gloo";
};

struct Nccl {
  using category = weft::category::backend;
  static constexpr std::string_view name = "Nccl";
};

// NCCL without c10d in between.
struct NcclDirect {
  using category = weft::category::backend;
  static constexpr std::string_view name = "NcclDirect";
};
template <class Backend>
inline constexpr bool uses_nccl_v = std::is_same_v<Backend, Nccl> || std::is_same_v<Backend, NcclDirect>;

// NCCL on CUDA, Gloo on the CPU.
struct ByDevice {
  using category = weft::category::backend;
  static constexpr std::string_view name = "ByDevice";
};
template <class Backend, class Device>
inline constexpr bool talks_by_nccl_v = uses_nccl_v<Backend> ||
                                        (std::is_same_v<Backend, ByDevice> && std::is_same_v<Device, On<Cuda>>);

// What a simulated transfer costs; zero bytes per second stands for no limit.
template <std::size_t BytesPerSecond, std::size_t LatencyNs>
struct Link {
  static constexpr std::string_view name = "Link";
  static constexpr std::size_t bytes_per_second = BytesPerSecond;
  static constexpr std::size_t latency_ns = LatencyNs;
};

// One process stands for one of World ranks: calls, bytes and time are counted, nothing is sent.
template <std::size_t World, class LinkModel>
struct Simulated {
  using category = weft::category::backend;
  using link = LinkModel;
  static constexpr std::string_view name = "Simulated";
  static constexpr std::size_t world = World;
};

template <class Backend>
inline constexpr std::size_t simulated_world_v = 0;
template <std::size_t World, class LinkModel>
inline constexpr std::size_t simulated_world_v<Simulated<World, LinkModel>> = World;

struct Fork {
  using category = weft::category::launcher;
  static constexpr std::string_view name = "Fork";
};

// Starts this program again, once for each rank.
struct Popen {
  using category = weft::category::launcher;
  static constexpr std::string_view name = "Popen";
};

// Joins the ranks that torchrun, SLURM, MPI or LSF started.
struct Environment {
  using category = weft::category::launcher;
  static constexpr std::string_view name = "Environment";
};

}  // namespace weft
