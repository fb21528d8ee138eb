#include "test.hpp"

#include <map>
#include <thread>

#include <sys/wait.h>

#include <weft/launch/arrivals.hpp>
#include <weft/launch/environment.hpp>
#include <weft/launch/rendezvous.hpp>
#include <weft/launch/watchdog.hpp>

using Catch::Matchers::ContainsSubstring;
using weft::launch::Cluster;

namespace {

using Set = std::map<std::string, std::string>;

weft::launch::Variables variables(Set const& set) {
  return [set](std::string const& name) -> std::optional<std::string> {
    auto const found = set.find(name);
    if (found == set.end()) return std::nullopt;
    return found->second;
  };
}
/// The verdict, or the refusal.
std::string verdict(Set const& set, weft::LaunchOptions const& options = {}) {
  try {
    auto const cluster = weft::launch::environment_cluster(variables(set));
    weft::launch::compare(options, cluster);
    auto const& r = cluster.ranks;
    auto const number = [](int n) { return std::to_string(n); };
    auto text = cluster.name + " " + number(r.global_rank) + "/" + number(r.world_size) + " local " +
                number(r.local_rank) + "/" + number(r.local_world_size) + " node " + number(r.node_rank) + "/" +
                number(r.num_nodes);
    if (!cluster.host.empty()) text += " at " + cluster.host + ":" + number(cluster.port);
    return text;
  } catch (std::exception const& error) {
    return error.what();
  }
}
Set with(Set set, Set const& more) {
  for (auto const& [name, value] : more) set[name] = value;
  return set;
}
Set without(Set set, std::string const& name) {
  set.erase(name);
  return set;
}

Set const torchrun = {{"RANK", "5"},       {"WORLD_SIZE", "8"},      {"LOCAL_RANK", "1"},     {"LOCAL_WORLD_SIZE", "4"},
                      {"GROUP_RANK", "1"}, {"MASTER_ADDR", "node0"}, {"MASTER_PORT", "29500"}};
Set const slurm = {{"SLURM_PROCID", "5"},      {"SLURM_NTASKS", "8"},  {"SLURM_LOCALID", "1"},
                   {"SLURM_NODEID", "1"},      {"SLURM_NNODES", "2"},  {"SLURM_TASKS_PER_NODE", "4(x2)"},
                   {"SLURM_JOB_ID", "123456"}, {"SLURM_STEP_ID", "0"}, {"SLURM_JOB_NODELIST", "gpu[07-08]"},
                   {"SLURM_JOB_NAME", "train"}};
Set const open_mpi = {{"OMPI_COMM_WORLD_RANK", "2"},
                      {"OMPI_COMM_WORLD_SIZE", "3"},
                      {"OMPI_COMM_WORLD_LOCAL_RANK", "2"},
                      {"OMPI_COMM_WORLD_LOCAL_SIZE", "3"},
                      {"PMIX_NAMESPACE", "77"}};
Set const mpich = {{"PMI_RANK", "2"},        {"PMI_SIZE", "4"},        {"MPI_LOCALRANKID", "0"},
                   {"MPI_LOCALNRANKS", "2"}, {"MASTER_ADDR", "node0"}, {"MASTER_PORT", "4000"}};
Set const lsf = {{"JSM_NAMESPACE_RANK", "1"},
                 {"JSM_NAMESPACE_SIZE", "2"},
                 {"JSM_NAMESPACE_LOCAL_RANK", "1"},
                 {"JSM_NAMESPACE_LOCAL_SIZE", "2"},
                 {"LSB_JOBID", "42"}};

}  // namespace

TEST_CASE("each launcher's variables are understood", "[launch]") {
  CHECK(verdict(torchrun) == "torchrun 5/8 local 1/4 node 1/2 at node0:29500");
  CHECK(verdict(slurm) == "SLURM 5/8 local 1/4 node 1/2 at gpu07:18456");
  CHECK(verdict(open_mpi) == "Open MPI 2/3 local 2/3 node 0/1");
  CHECK(verdict(mpich) == "MPICH 2/4 local 0/2 node 1/2 at node0:4000");
  CHECK(verdict(lsf) == "LSF 1/2 local 1/2 node 0/1");
  CHECK(weft::launch::environment_cluster(
            variables(with(torchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "True"}, {"TORCHELASTIC_RESTART_COUNT", "2"}})))
            .attempt == 2);
  CHECK(verdict(with(slurm, {{"MASTER_ADDR", "10.0.0.1"}, {"MASTER_PORT", "1234"}})) ==
        "SLURM 5/8 local 1/4 node 1/2 at 10.0.0.1:1234");
  CHECK_THAT(verdict({}),
             ContainsSubstring("no launcher's variables are set") && ContainsSubstring("srun: SLURM_PROCID"));
}

TEST_CASE("LCH-08: the local rank is the environment's, never guessed from the global one", "[launch][known]") {
  // 2 nodes of 4 processes each.
  CHECK(weft::launch::environment_cluster(variables(torchrun)).ranks.local_rank == 1);
  CHECK(weft::launch::environment_cluster(variables(slurm)).ranks.local_rank == 1);
  // Nodes of 3 and 2 tasks: global rank 3 is the first of the second node.
  auto const uneven = with(
      slurm, {{"SLURM_PROCID", "3"}, {"SLURM_NTASKS", "5"}, {"SLURM_LOCALID", "0"}, {"SLURM_TASKS_PER_NODE", "3,2"}});
  CHECK(verdict(uneven) == "SLURM 3/5 local 0/2 node 1/2 at gpu07:18456");
}

TEST_CASE("LCH-05: variables and options that contradict each other are named with both values before anybody waits",
          "[launch][known]") {
  CHECK_THAT(verdict(with(without(slurm, "SLURM_TASKS_PER_NODE"), {{"SLURM_PROCID", "0"},
                                                                   {"SLURM_LOCALID", "0"},
                                                                   {"SLURM_NODEID", "0"},
                                                                   {"SLURM_NTASKS", "1"},
                                                                   {"SLURM_NTASKS_PER_NODE", "2"},
                                                                   {"SLURM_NNODES", "1"}})),
             ContainsSubstring("SLURM_NTASKS = 1 but SLURM_NTASKS_PER_NODE = 2"));
  CHECK_THAT(verdict(slurm, {.devices = 2}),
             ContainsSubstring("devices = 2, the environment has 4 ranks on this node"));
  CHECK_THAT(verdict(torchrun, {.devices = 2}),
             ContainsSubstring("devices = 2, the environment has 4 ranks on this node"));
  CHECK_THAT(verdict(torchrun, {.num_nodes = 3}), ContainsSubstring("num_nodes = 3, the environment has 2"));
  CHECK_THAT(verdict(with(torchrun, {{"WORLD_SIZE", "3"}, {"RANK", "1"}, {"LOCAL_WORLD_SIZE", "2"}})),
             ContainsSubstring("WORLD_SIZE = 3 but LOCAL_WORLD_SIZE = 2"));
  CHECK_THAT(verdict(with(torchrun, {{"RANK", "8"}})),
             ContainsSubstring("RANK = 8 but WORLD_SIZE = 8: ranks count from 0"));
  CHECK_THAT(verdict(with(torchrun, {{"RANK", "x"}})), ContainsSubstring("RANK = \"x\" is not a number"));
  CHECK_THAT(verdict(with(torchrun, {{"MASTER_PORT", "0"}})), ContainsSubstring("MASTER_PORT = 0 is not a port"));
  CHECK_THAT(verdict(with(torchrun, {{"RANK", "1"}, {"LOCAL_RANK", "3"}})),
             ContainsSubstring("RANK = 1 but GROUP_RANK = 1"));
  CHECK_THAT(verdict(with(without(torchrun, "GROUP_RANK"), {{"RANK", "1"}, {"LOCAL_RANK", "3"}})),
             ContainsSubstring("rank 1 is local rank 3 of its node"));
  CHECK_THAT(verdict(with(torchrun, {{"LOCAL_RANK", "4"}})),
             ContainsSubstring("LOCAL_RANK = 4 but LOCAL_WORLD_SIZE = 4"));
  CHECK_THAT(verdict(with(torchrun, {{"RANK", "1"}})),
             ContainsSubstring("RANK = 1 but GROUP_RANK = 1"));  // a node's ranks as if it were the first
  CHECK_THAT(verdict(with(slurm, {{"SLURM_NODEID", "2"}})),
             ContainsSubstring("SLURM_NODEID = 2 but SLURM_NNODES = 2: nodes count from 0"));
  CHECK_THAT(verdict(with(slurm, {{"SLURM_PROCID", "8"}})), ContainsSubstring("SLURM_PROCID = 8 but SLURM_NTASKS = 8"));
  CHECK_THAT(verdict(with(slurm, {{"SLURM_STEP_TASKS_PER_NODE", "4,2"}})),
             ContainsSubstring("SLURM_NTASKS = 8 but SLURM_STEP_TASKS_PER_NODE = 4,2"));
  CHECK_THAT(verdict(slurm, {.devices = 4, .num_nodes = 3}), ContainsSubstring("num_nodes = 3, the environment has 2"));
  CHECK_THAT(verdict(open_mpi, {.devices = 2}),
             ContainsSubstring("devices = 2, the environment has 3 ranks on this node"));
  CHECK_THAT(verdict(lsf, {.num_nodes = 2}), ContainsSubstring("num_nodes = 2, the environment has 1"));
  CHECK_THAT(verdict(without(torchrun, "WORLD_SIZE")),
             ContainsSubstring("torchrun: the variable WORLD_SIZE is not set"));
  // Two nodes of Open MPI, and nobody said where to meet.
  auto const apart = weft::launch::environment_cluster(
      variables(with(open_mpi, {{"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}, {"OMPI_COMM_WORLD_LOCAL_RANK", "0"}})));
  CHECK_THROWS_WITH(weft::launch::meet(apart, std::chrono::seconds(1)),
                    ContainsSubstring("set MASTER_ADDR (rank 0's host) and MASTER_PORT"));
}

TEST_CASE("a rank that is there twice, or not at all, is named", "[launch]") {
  auto const store = c10::make_intrusive<c10d::HashStore>();
  // Two ranks, of which the other says that it has come, or doesn't.
  auto const arrive = [&](int rank) {
    weft::comm::Session session;
    weft::launch::arrive(session, {store, rank, 3, std::chrono::seconds(1), "127.0.0.1", false},
                         [](auto const&, auto, auto, auto) -> std::shared_ptr<weft::comm::Communicator> {
                           throw std::runtime_error("timed out");
                         });
  };
  CHECK_THROWS_WITH(arrive(2), ContainsSubstring("timed out; still elsewhere: ranks 0, 1; did all ranks start"));
  CHECK_THROWS_WITH(arrive(0), ContainsSubstring("timed out; still elsewhere: rank 1; did all ranks start"));
  CHECK_THROWS_WITH(arrive(2), ContainsSubstring("two processes say that they are rank 2 of 3"));
  CHECK_THROWS_WITH(arrive(1), Catch::Matchers::Equals("timed out"));  // all are here
}

TEST_CASE("a rank that loses a peer is told which one fell silent; silence without a loss is given more time",
          "[launch]") {
  auto const store = c10::make_intrusive<c10d::HashStore>();
  store->add("weft/alive/1", 1);  // and then never again
  store->add("weft/alive/2", 1);
  // The watchdog ends its process, so it lives in one of its own; that says how long it took.
  auto const seconds = [&](std::chrono::milliseconds silence, bool loses) {
    auto const start = std::chrono::steady_clock::now();
    auto const child = ::fork();
    if (child == 0) {
      weft::launch::Watchdog watchdog(store, {0, 3, 0, 3, 0, 1}, silence, false);
      std::thread speaking([&] {  // rank 2 is alive
        for (;; std::this_thread::sleep_for(std::chrono::milliseconds(50))) store->add("weft/alive/2", 1);
      });
      if (loses) watchdog.failed("weft: rank 0 failed: a peer is gone", true);
      std::this_thread::sleep_for(std::chrono::seconds(20));
      ::_exit(0);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    CHECK(WIFEXITED(status));
    CHECK(WEXITSTATUS(status) == 1);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  CHECK(seconds(std::chrono::seconds(15), true) < 5);
  auto const quiet = seconds(std::chrono::milliseconds(1500), false);
  CHECK(quiet > 1.5);
  CHECK(quiet < 4);
}

TEST_CASE("LCH-06: nested launchers: the nearest one is asked; an allocation or a shell is no launch",
          "[launch][known]") {
  std::vector<std::pair<std::string, Set>> const order = {
      {"torchrun", torchrun}, {"Open MPI", open_mpi}, {"MPICH", mpich}, {"LSF", lsf}, {"SLURM", slurm}};
  for (std::size_t i = 0; i < order.size(); ++i)
    for (std::size_t j = i + 1; j < order.size(); ++j) {
      INFO(order[i].first << " inside of " << order[j].first);
      CHECK_THAT(verdict(with(order[j].second, order[i].second)), Catch::Matchers::StartsWith(order[i].first + " "));
    }
  for (auto const* name : {"bash", "interactive"})
    CHECK_THAT(verdict(with(slurm, {{"SLURM_JOB_NAME", name}})), ContainsSubstring("no launcher's variables"));
  CHECK_THAT(verdict(without(slurm, "SLURM_PROCID")), ContainsSubstring("no launcher's variables"));
}

TEST_CASE("SLURM's short forms", "[launch]") {
  using weft::launch::first_slurm_host, weft::launch::slurm_tasks_per_node;
  CHECK(first_slurm_host("host") == "host");
  CHECK(first_slurm_host("a,b") == "a");
  CHECK(first_slurm_host("host[5-9]") == "host5");
  CHECK(first_slurm_host("gpu[07-09,12],login1") == "gpu07");
  CHECK(first_slurm_host("gpu[3],login1") == "gpu3");
  CHECK(first_slurm_host("login1,gpu[3-4]") == "login1");
  CHECK(first_slurm_host("rack[1-2]-node,x") == "rack1-node");
  CHECK(slurm_tasks_per_node("4(x2)") == std::vector{4, 4});
  CHECK(slurm_tasks_per_node("2(x3),1") == std::vector{2, 2, 2, 1});
  CHECK(slurm_tasks_per_node("3") == std::vector{3});
  CHECK(slurm_tasks_per_node("").empty());
  CHECK(slurm_tasks_per_node("3(x").empty());
  CHECK(slurm_tasks_per_node("three").empty());
}

TEST_CASE("LCH-02: a port that is taken fails at once, with host and port", "[launch][known]") {
  weft::launch::ListeningSocket taken;
  Cluster const cluster{.name = "test", .ranks = {0, 2, 0, 2, 0, 1}, .host = "127.0.0.1", .port = taken.port()};
  auto const start = std::chrono::steady_clock::now();
  CHECK_THROWS_WITH(weft::launch::meet(cluster, std::chrono::seconds(30)),
                    ContainsSubstring("rank 0 can't serve the store on 127.0.0.1:" + std::to_string(taken.port())));
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(5));
}

TEST_CASE("a store that is not there is an error that says who looks for it where", "[launch]") {
  std::uint16_t free = 0;
  {
    weft::launch::ListeningSocket const socket;
    free = socket.port();
  }
  Cluster const cluster{.name = "test", .ranks = {1, 2, 1, 2, 0, 1}, .host = "127.0.0.1", .port = free};
  CHECK_THROWS_WITH(
      weft::launch::meet(cluster, std::chrono::milliseconds(300)),
      ContainsSubstring("test: rank 1 of 2 doesn't reach the store on 127.0.0.1:" + std::to_string(free)) &&
          ContainsSubstring("did rank 0 start there?"));
}

TEST_CASE("ranks of one machine meet by a file, and pass over one that a dead job left", "[launch]") {
  auto const meeting = "test " + std::to_string(::getpid());
  {
    weft::launch::RendezvousPoint stale(meeting);
    auto const child = ::fork();
    if (child == 0) {
      stale.tell(1);
      ::_exit(0);  // without taking the file away
    }
    ::waitpid(child, nullptr, 0);
    CHECK_THROWS_WITH(weft::launch::RendezvousPoint(meeting).find(std::chrono::milliseconds(50)),
                      ContainsSubstring("rank 0 does not come"));
    weft::launch::RendezvousPoint fresh(meeting);
    fresh.tell(4711);
    CHECK(weft::launch::RendezvousPoint(meeting).find(std::chrono::milliseconds(50)) == 4711);
  }
  CHECK_THROWS(weft::launch::RendezvousPoint(meeting).find(std::chrono::milliseconds(1)));  // gone with its job
}
