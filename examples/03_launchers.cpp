// 03_launchers.cpp -- one job under every launcher, and every way for it to end badly.
//
//   03_launchers fork 4                                          this program forks 4 ranks
//   03_launchers popen 4                                         it runs itself again, 4 times
//   torchrun --nproc-per-node 4 --no-python 03_launchers environment    torchrun, mpirun and srun start the ranks
//   mpirun -n 4 03_launchers environment
//   srun -n 4 --kill-on-bad-exit 03_launchers environment
//   03_launchers popen 4 --straight                              the program itself goes on after launch()
//   03_launchers ddp_spawn 4                                     Lightning's names are known as well
//   ... --fail kill --rank 2                                     how rank 2 ends: throw, exit, kill, segv, term, stuck,
//   absent, late
//   ... --fail throw --everywhere                                all ranks make one mistake: one sentence
//   ... --save-when-asked                                        SIGUSR1 or SIGTERM to the launcher: all ranks save
//   ... --restarts 1                                             and all start again; the second attempt goes well
//
// run: fork 3
// expect: 3 ranks, sum of ranks 3, attempt 0
// run: popen 3
// expect: 3 ranks, sum of ranks 3, attempt 0
// run: popen 2 --straight
// expect: 2 ranks, sum of ranks 1, attempt 0
// run: ddp_fork 2
// expect: 2 ranks, sum of ranks 1, attempt 0
// run: forkserver 2
// expect: write the launcher "popen"
// expect-exit: 2
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <iostream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>

#include <CLI/CLI.hpp>

#include <weft/weft.hpp>

namespace {

struct Options {
  std::string launcher = "fork", fail = "never";
  int world = 2, rank = 1, rounds = 1, restarts = 0, limit = 60;
  bool straight = false, twice = false, always = false, everywhere = false, save_when_asked = false;
};

/// A scheduler wants the node: set by a handler that main installs, so that all ranks of Fork and Popen have it.
volatile std::sig_atomic_t asked_to_leave = 0;

void end_badly(std::string_view how) {
  if (how != "never") std::cerr << "now: " << how << std::endl;
  if (how == "throw") throw std::runtime_error("out of coffee");
  if (how == "exit") std::_Exit(3);
  if (how == "kill") std::raise(SIGKILL);
  if (how == "segv") std::raise(SIGSEGV);
  if (how == "term") std::raise(SIGTERM);
  if (how == "stuck")
    for (auto const start = std::chrono::steady_clock::now();
         std::chrono::steady_clock::now() > start - std::chrono::hours(1);) {
    }
  if (how == "absent" || how == "late")
    for (;;) std::this_thread::sleep_for(std::chrono::hours(1));
}

/// Before launch() only the launcher's variables tell a rank which one it is.
bool is_rank(int rank) {
  for (auto const* name : {"RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID", "WEFT_POPEN_RANK"})
    if (auto const* value = std::getenv(name)) return std::atoi(value) == rank;
  return false;
}

template <class Run>
int job(Run& fabric, Options const& options) {
  int const sum = fabric.all_reduce(fabric.global_rank(), weft::ReduceOp::sum);
  bool const first_try = fabric.attempt() == 0 || options.always;
  if (first_try && (options.everywhere || fabric.global_rank() == options.rank)) end_badly(options.fail);
  if (options.save_when_asked) {
    if (fabric.is_global_zero()) std::cerr << "working" << std::endl;
    while (!fabric.any_of(asked_to_leave != 0)) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    fabric.print("saved");
  }
  for (int round = 0; round < options.rounds; ++round) fabric.barrier();
  fabric.print(fabric.world_size(), " ranks, sum of ranks ", sum, ", attempt ", fabric.attempt());
  return 42;
}

template <class Launcher>
int run(Options const& options) {
  using Run = weft::Fabric<weft::DDP<>, Launcher, weft::On<weft::Cpu>>;
  weft::LaunchOptions launch{.collective_timeout = std::chrono::seconds(options.limit),
                             .rendezvous_timeout = std::chrono::seconds(options.limit),
                             .max_restarts = options.restarts};
  if constexpr (!Run::joins_environment) launch.devices = options.world;
  if (options.save_when_asked) launch.forward_signals = {SIGUSR1, SIGTERM};
  if (options.fail == "late" && is_rank(options.rank)) end_badly("late");
  if constexpr (Run::joins_environment || Run::reruns_program)
    if (options.straight) {
      Run fabric(launch);
      fabric.launch();
      job(fabric, options);
      fabric.teardown();
      return 0;
    }
  auto outcome = Run::launch(launch, [&](Run& fabric) { return job(fabric, options); });
  if (outcome) std::cout << "value " << *outcome << std::endl;
  if (!options.twice || !outcome) return outcome.exit_code();
  if constexpr (!Run::joins_environment) launch.devices = options.world + 1;
  return Run::launch(launch, [&](Run& fabric) { return job(fabric, options); }).exit_code();
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("One job under every launcher");
  app.add_option("launcher", options.launcher, "who starts the ranks: fork, popen, environment");
  app.add_option("world", options.world, "how many, where this program starts them");
  app.add_flag("--straight", options.straight, "straight-line form: the program goes on after launch()");
  app.add_option("--fail", options.fail, "how one rank ends")
      ->check(CLI::IsMember({"never", "throw", "exit", "kill", "segv", "term", "stuck", "absent", "late"}));
  app.add_option("--rank", options.rank, "which one");
  app.add_option("--rounds", options.rounds, "how often all ranks wait for each other");
  app.add_flag("--always", options.always, "and so in each attempt");
  app.add_flag("--everywhere", options.everywhere, "all ranks end so");
  app.add_flag("--save-when-asked", options.save_when_asked, "work until SIGUSR1 or SIGTERM, then save and leave");
  app.add_flag("--twice", options.twice, "launch a second time, with one rank more");
  app.add_option("--limit", options.limit, "seconds that ranks wait for one that does not come");
  app.add_option("--restarts", options.restarts, "start all ranks again after a failure, at most so often");
  CLI11_PARSE(app, argc, argv);
  if (options.save_when_asked)
    for (int const signal : {SIGUSR1, SIGTERM}) std::signal(signal, [](int) { asked_to_leave = 1; });
  try {
    return weft::with_launcher(options.launcher,
                               [&]<class Launcher>(std::type_identity<Launcher>) { return run<Launcher>(options); });
  } catch (weft::ConfigurationError const& error) {  // there is no launcher of this name
    std::cerr << error.what() << std::endl;
    return 2;
  }
}
