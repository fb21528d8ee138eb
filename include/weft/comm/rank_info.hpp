// comm/rank_info.hpp -- where a process stands in its job.
// In: nothing. Out: numbers; no torch.
#pragma once

namespace weft::inline v0::comm {

/// Where this process stands in the job.
struct RankInfo {
  int global_rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int local_world_size = 1;
  int node_rank = 0;
  int num_nodes = 1;
};

}  // namespace weft::comm
