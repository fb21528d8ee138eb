// launch/cluster.ipp -- definitions of launch/cluster.hpp.
#pragma once

#include <weft/launch/cluster.hpp>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <numeric>

#include <weft/core/build.hpp>
#include <weft/core/error.hpp>

namespace weft::inline v0::launch {

WEFT_INLINE Variables process_variables() {
  return [](std::string const& name) -> std::optional<std::string> {
    if (char const* const value = std::getenv(name.c_str())) return value;
    return std::nullopt;
  };
}

WEFT_INLINE std::string ClusterReader::text(std::string const& variable) const {
  auto value = variables_(variable);
  if (!value)
    fail<LaunchError>("weft: ", name_, ": the variable ", variable,
                      " is not set; start the program with a launcher that sets it, or choose the launcher Fork");
  return *std::move(value);
}

WEFT_INLINE int ClusterReader::number(std::string const& variable) const {
  auto const value = text(variable);
  int result = 0;
  auto const [end, error] = std::from_chars(value.data(), value.data() + value.size(), result);
  if (error != std::errc() || end != value.data() + value.size() || result < 0)
    fail<LaunchError>("weft: ", name_, ": ", variable, " = \"", value, "\" is not a number of at least 0");
  return result;
}

WEFT_INLINE std::uint16_t ClusterReader::port(std::string const& variable) const {
  int const value = number(variable);
  if (value == 0 || value > 65535)
    fail<LaunchError>("weft: ", name_, ": ", variable, " = ", value, " is not a port; write 1 to 65535");
  return static_cast<std::uint16_t>(value);
}

WEFT_INLINE void ClusterReader::require(bool holds, std::string const& a, std::string const& b,
                                        char const* expected) const {
  if (!holds)
    fail<LaunchError>("weft: ", name_, ": ", a, " = ", variables_(a).value_or("(not set)"), " but ", b, " = ",
                      variables_(b).value_or("(not set)"), ": ", expected);
}

WEFT_INLINE std::vector<int> slurm_tasks_per_node(std::string_view text) {
  std::vector<int> result;
  while (!text.empty()) {
    int tasks = 0, nodes = 1;
    auto const [end, error] = std::from_chars(text.data(), text.data() + text.size(), tasks);
    if (error != std::errc()) return {};
    text.remove_prefix(static_cast<std::size_t>(end - text.data()));
    if (text.starts_with("(x")) {
      auto const [close, wrong] = std::from_chars(text.data() + 2, text.data() + text.size(), nodes);
      if (wrong != std::errc() || close == text.data() + text.size() || *close != ')') return {};
      text.remove_prefix(static_cast<std::size_t>(close + 1 - text.data()));
    }
    result.insert(result.end(), static_cast<std::size_t>(nodes), tasks);
    if (!text.empty() && text.front() != ',') return {};
    if (!text.empty()) text.remove_prefix(1);
  }
  return result;
}

WEFT_INLINE std::string first_slurm_host(std::string_view list) {
  auto const bracket = list.find('['), comma = list.find(',');
  if (bracket == list.npos || comma < bracket) return std::string(list.substr(0, comma));
  auto const inside = list.substr(bracket + 1);
  auto host = std::string(list.substr(0, bracket)) + std::string(inside.substr(0, inside.find_first_of("-,]")));
  auto const closing = list.find(']');  // "rack[1-2]-node": what follows belongs to each name
  if (closing != list.npos) host += list.substr(closing + 1, list.find_first_of(",[", closing) - closing - 1);
  return host;
}

}  // namespace weft::launch

namespace weft::inline v0::launch::detail {

WEFT_INLINE void place(Cluster& cluster, ClusterReader const& in, std::string rendezvous) {
  cluster.rendezvous = std::move(rendezvous);
  cluster.parent_is_launcher = true;
  if (in.has("MASTER_ADDR") || in.has("MASTER_PORT")) {
    if (!in.has("MASTER_ADDR") && cluster.ranks.num_nodes > 1) in.text("MASTER_ADDR");
    cluster.host = in.has("MASTER_ADDR") ? in.text("MASTER_ADDR") : "127.0.0.1";
    cluster.port = in.port("MASTER_PORT");
  }
}

WEFT_INLINE void check_place(Cluster const& cluster) {
  auto const& r = cluster.ranks;
  if (r.world_size < 1 || r.global_rank >= r.world_size)
    fail<LaunchError>("weft: ", cluster.name, ": rank ", r.global_rank, " of ", r.world_size, "; ranks count from 0");
  if (r.local_world_size < 1 || r.local_rank >= r.local_world_size || r.local_world_size > r.world_size)
    fail<LaunchError>("weft: ", cluster.name, ": local rank ", r.local_rank, " of ", r.local_world_size,
                      " in a world of ", r.world_size, "; local ranks count from 0 on each node");
  if (r.local_rank > r.global_rank)
    fail<LaunchError>("weft: ", cluster.name, ": rank ", r.global_rank, " is local rank ", r.local_rank,
                      " of its node; a rank is at least its local rank");
  if (r.node_rank < 0 || r.node_rank >= r.num_nodes)
    fail<LaunchError>("weft: ", cluster.name, ": node ", r.node_rank, " of ", r.num_nodes, "; nodes count from 0");
}

}  // namespace weft::launch::detail

namespace weft::inline v0::launch {

WEFT_INLINE Cluster torchrun_cluster(Variables const& variables) {
  ClusterReader const in(variables, "torchrun");
  Cluster cluster{.name = in.name()};
  auto& r = cluster.ranks;
  r = {in.number("RANK"),
       in.number("WORLD_SIZE"),
       in.number("LOCAL_RANK"),
       in.number("LOCAL_WORLD_SIZE"),
       in.number_or("GROUP_RANK", 0),
       1};
  in.require(r.global_rank < r.world_size, "RANK", "WORLD_SIZE", "ranks count from 0");
  in.require(r.local_world_size > 0 && r.local_rank < r.local_world_size, "LOCAL_RANK", "LOCAL_WORLD_SIZE",
             "local ranks count from 0");
  in.require(r.world_size % r.local_world_size == 0, "WORLD_SIZE", "LOCAL_WORLD_SIZE",
             "each node must have equally many ranks");
  r.num_nodes = r.world_size / r.local_world_size;
  if (in.has("GROUP_RANK"))
    in.require(r.global_rank == r.node_rank * r.local_world_size + r.local_rank, "RANK", "GROUP_RANK",
               "with LOCAL_WORLD_SIZE ranks on each node they do not fit together; ranks count node after node");
  cluster.host = in.text("MASTER_ADDR");
  cluster.port = in.port("MASTER_PORT");
  cluster.agent_serves = variables("TORCHELASTIC_USE_AGENT_STORE") == "True";
  cluster.attempt = in.number_or("TORCHELASTIC_RESTART_COUNT", 0);
  cluster.parent_is_launcher =
      in.has("TORCHELASTIC_RUN_ID");  // variables alone may come from a shell, which may leave its ranks
  return cluster;
}

WEFT_INLINE Cluster slurm_cluster(Variables const& variables) {
  ClusterReader const in(variables, "SLURM");
  Cluster cluster{.name = in.name()};
  auto& r = cluster.ranks;
  r.global_rank = in.number("SLURM_PROCID");
  r.world_size = in.number("SLURM_NTASKS");
  r.local_rank = in.number("SLURM_LOCALID");
  r.node_rank = in.number_or("SLURM_NODEID", 0);
  auto const nodes = in.has("SLURM_STEP_NUM_NODES") ? "SLURM_STEP_NUM_NODES" : "SLURM_NNODES";
  r.num_nodes = in.number_or(nodes, 1);
  in.require(r.node_rank < r.num_nodes, "SLURM_NODEID", nodes, "nodes count from 0");
  auto const counts = in.has("SLURM_STEP_TASKS_PER_NODE") ? "SLURM_STEP_TASKS_PER_NODE" : "SLURM_TASKS_PER_NODE";
  auto const tasks = in.has(counts) ? slurm_tasks_per_node(in.text(counts)) : std::vector<int>();
  if (static_cast<std::size_t>(r.node_rank) < tasks.size())
    r.local_world_size = tasks[static_cast<std::size_t>(r.node_rank)];
  else
    r.local_world_size = in.number_or("SLURM_NTASKS_PER_NODE", r.num_nodes == 1 ? r.world_size : 1);
  in.require(r.global_rank < r.world_size, "SLURM_PROCID", "SLURM_NTASKS", "ranks count from 0");
  if (in.has("SLURM_STEP_TASKS_PER_NODE"))  // the job's own list may have more than a step uses
    in.require(std::accumulate(tasks.begin(), tasks.end(), 0) == r.world_size, "SLURM_NTASKS",
               "SLURM_STEP_TASKS_PER_NODE", "the tasks of the nodes do not make the tasks of the step");
  if (in.has("SLURM_NTASKS_PER_NODE"))
    in.require(
        in.number("SLURM_NTASKS_PER_NODE") * r.num_nodes >= r.world_size &&
            in.number("SLURM_NTASKS_PER_NODE") <= r.world_size,
        "SLURM_NTASKS", "SLURM_NTASKS_PER_NODE",
        "the tasks of the nodes do not make the tasks of the job; give srun --ntasks and --ntasks-per-node that fit");
  auto const job = in.text(in.has("SLURM_JOB_ID") ? "SLURM_JOB_ID" : "SLURM_JOBID"),
             step = in.has("SLURM_STEP_ID") ? in.text("SLURM_STEP_ID") : "0";
  cluster.attempt = in.number_or("SLURM_RESTART_COUNT", 0);
  detail::place(cluster, in, "slurm-" + job + "-" + step + "-" + std::to_string(cluster.attempt));
  if (cluster.host.empty() && r.num_nodes > 1) {
    cluster.host = first_slurm_host(in.text(in.has("SLURM_STEP_NODELIST")  ? "SLURM_STEP_NODELIST"
                                            : in.has("SLURM_JOB_NODELIST") ? "SLURM_JOB_NODELIST"
                                                                           : "SLURM_NODELIST"));
    cluster.port = static_cast<std::uint16_t>(
        15000 + std::atoi(job.substr(job.size() - std::min<std::size_t>(4, job.size())).c_str()));  // as Fabric has it
  }
  return cluster;
}

}  // namespace weft::launch

namespace weft::inline v0::launch::detail {

WEFT_INLINE Cluster cluster_of(ClusterReader const& in, FourVariables const& variables, std::string rendezvous) {
  Cluster cluster{.name = in.name()};
  auto& r = cluster.ranks;
  r = {in.number(variables.rank),
       in.number(variables.size),
       in.number(variables.local_rank),
       in.number(variables.local_size),
       0,
       1};
  in.require(r.global_rank < r.world_size, variables.rank, variables.size, "ranks count from 0");
  in.require(r.local_world_size > 0 && r.local_world_size <= r.world_size, variables.local_size, variables.size,
             "a node has ranks of the world");
  r.num_nodes = (r.world_size + r.local_world_size - 1) / r.local_world_size;
  r.node_rank = r.global_rank / r.local_world_size;
  place(cluster, in, std::move(rendezvous));
  return cluster;
}

}  // namespace weft::launch::detail

namespace weft::inline v0::launch {

WEFT_INLINE Cluster open_mpi_cluster(Variables const& variables) {
  ClusterReader const in(variables, "Open MPI");
  auto const space = in.has("PMIX_NAMESPACE") ? "PMIX_NAMESPACE" : "OMPI_MCA_ess_base_jobid";
  return detail::cluster_of(
      in, {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"},
      "openmpi-" + (in.has(space) ? in.text(space) : "job"));
}

WEFT_INLINE Cluster lsf_cluster(Variables const& variables) {
  ClusterReader const in(variables, "LSF");
  return detail::cluster_of(
      in, {"JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_LOCAL_RANK", "JSM_NAMESPACE_LOCAL_SIZE"},
      "lsf-" + std::to_string(in.number("LSB_JOBID")));
}

WEFT_INLINE Cluster environment_cluster(Variables const& variables) {
  auto const has = [&](char const* name) { return variables(name).has_value(); };
  auto const job_name = variables("SLURM_JOB_NAME").value_or("");
  if (has("RANK") || has("TORCHELASTIC_RUN_ID")) return torchrun_cluster(variables);
  if (has("OMPI_COMM_WORLD_RANK")) return open_mpi_cluster(variables);
  if (has("PMI_RANK") && has("MPI_LOCALRANKID")) return mpich_cluster(variables);
  if (has("JSM_NAMESPACE_RANK") && has("LSB_JOBID")) return lsf_cluster(variables);
  if (has("SLURM_PROCID") && has("SLURM_NTASKS") && job_name != "bash" && job_name != "interactive")
    return slurm_cluster(variables);
  fail<LaunchError>(
      "weft: Environment: no launcher's variables are set (torchrun: RANK, Open MPI: OMPI_COMM_WORLD_RANK, MPICH: "
      "PMI_RANK, LSF: JSM_NAMESPACE_RANK, srun: SLURM_PROCID); "
      "start the program with one of them, or choose the launcher Fork");
}

}  // namespace weft::launch
