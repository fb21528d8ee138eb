// comm/session.hpp -- what one rank knows of the running job.
// In: the launcher's answer (ranks, device, store). Out: shared by the facade, its models and its optimizers.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <c10/core/Device.h>

#include <weft/comm/communicator.hpp>
#include <weft/comm/trace.hpp>

namespace weft::comm {

/// Where this process stands in the job.
struct RankInfo {
  int global_rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int local_world_size = 1;
  int node_rank = 0;
  int num_nodes = 1;
};

/// Shared ownership: wrapped models and optimizers may outlive the facade that made them.
struct Session {
  RankInfo ranks;
  at::Device device = at::kCPU;
  std::shared_ptr<Recorder> recorder = std::make_shared<Recorder>();
  std::shared_ptr<Communicator> world;  // null where the strategy has one process
  /// A communicator over these global ranks, in this order; all of them call it.
  std::function<std::shared_ptr<Communicator>(std::string axis, std::vector<int> const& members)> connect_group;
  std::uint64_t seed = 0;               // what seed_everything was given; samplers start from it
};

}  // namespace weft::comm
