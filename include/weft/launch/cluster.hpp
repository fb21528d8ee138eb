// launch/cluster.hpp -- what a launcher's environment says about this process.
// In: variables. Out: the rank's place and where ranks meet, or an error that names the variables that contradict each
// other; no torch.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <unistd.h>

#include <weft/comm/rank_info.hpp>

namespace weft::inline v0::launch {

/// What a cluster environment tells. A type of one's own takes part as a launcher policy:
///
///   struct Ours {
///     using category = weft::category::launcher;
///     static constexpr std::string_view name = "Ours";
///     static weft::launch::Cluster cluster(weft::launch::Variables const& variables);
///   };
struct Cluster {
  std::string name;  // "torchrun", for messages
  comm::RankInfo ranks{};
  std::string
      host{};  // where rank 0 (or an agent) serves the store; empty: ranks share this machine and meet by `rendezvous`
  std::uint16_t port = 0;
  std::string rendezvous{};  // a name that all ranks of this job have in common and no other job has
  bool agent_serves = false;
  int attempt = 0;                  // how often the job was started again
  bool parent_is_launcher = false;  // this process ends with its parent, which nobody else would end it for
};

/// The environment as a function, so that tests can say what it holds.
using Variables = std::function<std::optional<std::string>(std::string const&)>;

Variables process_variables();

/// Reads one environment's variables; its errors say whose they are.
class ClusterReader {
 public:
  ClusterReader(Variables variables, std::string name) : variables_(std::move(variables)), name_(std::move(name)) {}

  bool has(std::string const& variable) const { return variables_(variable).has_value(); }
  std::string text(std::string const& variable) const;
  int number(std::string const& variable) const;
  int number_or(std::string const& variable, int otherwise) const {
    return has(variable) ? number(variable) : otherwise;
  }
  std::uint16_t port(std::string const& variable) const;
  void require(bool holds, std::string const& a, std::string const& b, char const* expected) const;
  std::string const& name() const { return name_; }

 private:
  Variables variables_;
  std::string name_;
};

/// "2(x3),1" of SLURM: tasks on each node.
std::vector<int> slurm_tasks_per_node(std::string_view text);

/// The first host of SLURM's list: "gpu[07-09,12],login1" is gpu07.
std::string first_slurm_host(std::string_view list);

namespace detail {

/// Where the variables MASTER_ADDR and MASTER_PORT say; by `rendezvous` on one node where they are silent.
void place(Cluster& cluster, ClusterReader const& in, std::string rendezvous);
void check_place(Cluster const& cluster);

}  // namespace detail

Cluster torchrun_cluster(Variables const& variables);

Cluster slurm_cluster(Variables const& variables);

namespace detail {

/// Launchers that say the same four things, each in its own words, and number ranks node after node.
struct FourVariables {
  char const *rank, *size, *local_rank, *local_size;
};
Cluster cluster_of(ClusterReader const& in, FourVariables const& variables, std::string rendezvous);

}  // namespace detail

/// mpirun of Open MPI.
Cluster open_mpi_cluster(Variables const& variables);

/// mpirun and mpiexec of MPICH and its kin (Hydra). Ranks of one node are children of one proxy; nothing else names the
/// job.
inline Cluster mpich_cluster(Variables const& variables) {
  return detail::cluster_of({variables, "MPICH"}, {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
                            "hydra-" + std::to_string(::getppid()));
}

/// jsrun of LSF.
Cluster lsf_cluster(Variables const& variables);

/// [Note: the nearest launcher is asked] Launchers nest: mpirun inside a SLURM allocation, torchrun started by srun.
/// Each sets variables for its own processes, and the innermost one's are the finest, so the order is torchrun, the
/// MPIs, LSF's jsrun, srun. An allocation alone (salloc, an interactive shell) starts no ranks and is not taken for a
/// launch. Fabric asks SLURM before MPI, and then waits for ranks that are somebody else's.
Cluster environment_cluster(Variables const& variables);

}  // namespace weft::launch

#ifndef WEFT_SEPARATE_COMPILATION
#include <weft/launch/cluster.ipp>
#endif
