#include "test.hpp"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iomanip>
#include <iterator>
#include <map>
#include <memory>
#include <random>
#include <regex>
#include <sstream>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <weft/launch/rendezvous.hpp>

using Catch::Matchers::ContainsSubstring;
using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;
namespace fs = std::filesystem;

namespace {

std::string const program = std::string(WEFT_BUILD_DIR) + "/examples/03_launchers ";
double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

std::string contents(fs::path const& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// A folder that goes with its owner.
class Folder {
 public:
  Folder() {
    auto name = (fs::temp_directory_path() / "weft-test-XXXXXX").string();
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    path_ = name;
  }
  ~Folder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  Folder(Folder const&) = delete;
  Folder& operator=(Folder const&) = delete;
  fs::path const& path() const { return path_; }

 private:
  fs::path path_;
};

/// A command whose processes are known by a variable that all of them inherit, whoever their parents become.
class Job {
 public:
  explicit Job(std::string const& command)
      : mark_("WEFT_TEST_JOB=" + std::to_string(::getpid()) + "." + std::to_string(count_++)) {
    INFO(command);
    int ends[2];
    REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
    pid_ = ::fork();
    REQUIRE(pid_ >= 0);
    if (pid_ == 0) {
      ::setpgid(0, 0);
      ::dup2(ends[1], 1);
      ::dup2(ends[1], 2);
      ::putenv(mark_.data());
      ::setenv("TMPDIR", folder_.path().c_str(), 1);
      ::execl("/bin/sh", "sh", "-c", ("exec " + command).c_str(), nullptr);
      ::_exit(127);
    }
    ::close(ends[1]);
    pipe_ = ends[0];
  }
  ~Job() {
    if (pipe_ >= 0) end(0s);
  }
  Job(Job const&) = delete;
  Job& operator=(Job const&) = delete;

  /// Reads until the output has this text; false at its end, or after `limit`.
  bool says(std::string const& text, std::chrono::milliseconds limit = 30s) {
    return read([&] { return out_.find(text) != out_.npos; }, limit);
  }
  void signal(int number) const { ::kill(pid_, number); }

  /// Until the command has ended and nobody writes any more; kills what is left after `limit`. Returns how many
  /// processes that were.
  int end(std::chrono::milliseconds limit = 30s) {
    auto const until = Clock::now() + limit;
    read([] { return false; }, limit);
    int status = 0;
    while (::waitpid(pid_, &status, WNOHANG) == 0) {
      if (Clock::now() > until) ::kill(pid_, SIGKILL);
      std::this_thread::sleep_for(1ms);
    }
    exit_code_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    auto left = processes();
    for (int wait = 0; wait < 20 && !left.empty(); ++wait, left = processes()) std::this_thread::sleep_for(100ms);
    for (auto const process : left) ::kill(process, SIGKILL);
    ::close(std::exchange(pipe_, -1));
    return static_cast<int>(left.size());
  }

  std::string const& out() const { return out_; }
  int exit_code() const { return exit_code_; }

  /// Its processes that run; one that has ended, and that nobody has asked after, has no variables any more.
  std::vector<pid_t> processes() const {
    std::vector<pid_t> result;
    std::error_code ignored;
    for (fs::directory_iterator it("/proc", ignored), end; it != end; it.increment(ignored))
      if (auto const name = it->path().filename().string(); std::all_of(name.begin(), name.end(), ::isdigit))
        if (contents(it->path() / "environ").find(mark_ + '\0') != std::string::npos) result.push_back(std::stoi(name));
    return result;
  }
  /// The process that is this rank by its variables, or, where ranks are forked and have none, the program's so manieth
  /// child; 0: not there yet.
  pid_t rank(int rank, bool forked) const {
    std::vector<pid_t> children;
    for (auto const process : processes()) {
      auto const folder = fs::path("/proc") / std::to_string(process);
      std::string number, name, state;
      pid_t parent = 0;
      std::ifstream(folder / "stat") >> number >> name >> state >> parent;
      if (name != "(03_launchers)") continue;
      if (parent == pid_) children.push_back(process);
      std::istringstream variables(contents(folder / "environ"));
      for (std::string line; std::getline(variables, line, '\0');)
        for (std::string const variable : {"RANK=", "OMPI_COMM_WORLD_RANK=", "SLURM_PROCID=", "WEFT_POPEN_RANK="})
          if (line.starts_with(variable) && std::atoi(line.c_str() + variable.size()) == rank) return process;
    }
    if (!forked) return 0;  // children of popen have no variables yet, and while one gets them it is not seen at all
    std::sort(children.begin(), children.end());
    return children.size() > static_cast<std::size_t>(rank) ? children[static_cast<std::size_t>(rank)] : 0;
  }
  /// Where ranks of one machine meet is a file, until all have.
  bool left_a_meeting_point() const {
    return std::any_of(fs::directory_iterator(folder_.path()), fs::directory_iterator(),
                       [](auto const& entry) { return entry.path().filename().string().starts_with("weft-"); });
  }

 private:
  bool read(std::function<bool()> const& enough, std::chrono::milliseconds limit) {
    for (auto const until = Clock::now() + limit; !enough();) {
      auto const rest = std::chrono::duration_cast<std::chrono::milliseconds>(until - Clock::now()).count();
      pollfd polled{pipe_, POLLIN, 0};
      if (rest <= 0 || ::poll(&polled, 1, static_cast<int>(rest)) <= 0) return false;
      char buffer[4096];
      auto const count = ::read(pipe_, buffer, sizeof buffer);
      if (count <= 0) return false;
      out_.append(buffer, static_cast<std::size_t>(count));
    }
    return true;
  }

  static inline int count_ = 0;
  std::string mark_;
  Folder folder_;
  pid_t pid_ = -1;
  int pipe_ = -1;
  std::string out_;
  int exit_code_ = -1;
};

bool is_there(std::string const& name) { return std::system(("command -v " + name + " >/dev/null 2>&1").c_str()) == 0; }

/// A SLURM of one node, from its first use to the end of this program.
class Slurm {
 public:
  static Slurm const& instance() {
    static Slurm const slurm;
    return slurm;
  }
  /// Why there is none; empty: srun can be used.
  std::string const& missing() const { return missing_; }
  std::string srun() const {
    return "env SLURM_CONF=" + (folder_.path() / "slurm.conf").string() +
           " srun --quit-on-interrupt --kill-on-bad-exit ";
  }

 private:
  Slurm() {
    for (auto const* needed : {"srun", "slurmctld", "slurmd", "munged"})
      if (!is_there(needed)) missing_ = std::string("srun: there is no ") + needed + " on this machine";
    if (missing_.empty() && ::geteuid() != 0) missing_ = "srun: a SLURM for the test needs root";
    if (!missing_.empty()) return;
    int in[2], out[2];
    REQUIRE(::pipe2(in, O_CLOEXEC) == 0);
    REQUIRE(::pipe2(out, O_CLOEXEC) == 0);
    pid_ = ::fork();
    if (pid_ == 0) {
      ::dup2(in[0], 0);
      ::dup2(out[1], 1);
      ::execlp("python3", "python3", WEFT_SOURCE_DIR "/tests/programs/slurm.py", folder_.path().c_str(), nullptr);
      ::_exit(127);
    }
    ::close(in[0]);
    ::close(out[1]);
    stop_ = in[1];
    std::string said;
    char buffer[4096];
    for (ssize_t count; said.find('\n') == said.npos && (count = ::read(out[0], buffer, sizeof buffer)) > 0;)
      said.append(buffer, static_cast<std::size_t>(count));
    ::close(out[0]);
    if (!said.starts_with("ready")) missing_ = "srun: SLURM does not start here: " + said;
  }
  ~Slurm() {
    if (pid_ <= 0) return;
    ::close(stop_);
    ::waitpid(pid_, nullptr, 0);
  }

  Folder folder_;
  std::string missing_;
  pid_t pid_ = -1;
  int stop_ = -1;
};

/// torchrun without ranks, or nothing: it needs a Python with torch, tests/programs/torchrun.py says which.
std::string torchrun() {
  static std::string const found = [] {
    char const* const chosen = std::getenv("WEFT_PEER_PYTHON");
    for (std::string const python : {chosen ? chosen : "", WEFT_SOURCE_DIR "/.venv/bin/python", "python3"})
      if (!python.empty() &&
          std::system((python + " -c 'import importlib.util as u, sys; sys.exit(not (u.find_spec(\"torch\") and "
                                "u.find_spec(\"typing_extensions\")))' >/dev/null 2>&1")
                          .c_str()) == 0)
        return python + " -W ignore " WEFT_SOURCE_DIR "/tests/programs/torchrun.py " WEFT_BUILD_DIR "/torchrun ";
    return std::string();
  }();
  return found;
}

/// How to start `ranks` ranks of the program with a launcher that this machine has; else the test is skipped.
std::string starter(std::string const& launcher, int ranks) {
  auto const n = std::to_string(ranks);
  if (launcher == "fork" || launcher == "popen") return program + launcher + " " + n;
  if (launcher == "popen --straight") return program + "popen " + n + " --straight";
  if (launcher == "torchrun") {
    if (torchrun().empty()) SKIP("torchrun: no Python with torch and typing_extensions here");
    return torchrun() + "--nproc-per-node " + n + " --no-python " + program + "environment";
  }
  if (launcher == "mpirun") {
    if (!is_there("mpirun")) SKIP("mpirun: it is not on this machine");
    return "mpirun --allow-run-as-root --oversubscribe -n " + n + " " + program + "environment";
  }
  if (!Slurm::instance().missing().empty()) SKIP(Slurm::instance().missing());
  return Slurm::instance().srun() + "-n " + n + " " + program + "environment";
}
auto every_launcher() {
  return GENERATE(as<std::string>{}, "fork", "popen", "popen --straight", "torchrun", "mpirun", "srun");
}

/// Whether the launcher's own words, or ours where we are the launcher, name the rank that ended without a word.
bool launcher_names(std::string const& launcher, int rank, std::string const& out) {
  auto const r = std::to_string(rank);
  if (launcher == "torchrun") {
    std::smatch first;
    auto const cause = out.substr(std::min(out.find("Root Cause"), out.size()));
    return std::regex_search(cause, first, std::regex(" rank +: (\\d+)")) && first[1] == r;
  }
  if (launcher == "mpirun")
    return std::regex_search(out, std::regex("process rank " + r + " with|Process name: \\[.*," + r + "\\]"));
  if (launcher == "srun") return std::regex_search(out, std::regex("srun: error: .*: task " + r + ": "));
  return std::regex_search(out, std::regex("weft: rank " + r + " of \\d+ (was ended by signal|exited with code)"));
}

struct Kind {
  char const* name;
  char const* fail;   // what the program is told
  char const* words;  // what weft says of it, after the rank; null: a rank that ends without a word
  int signal = 0;     // to the launcher, once a rank is absent
};
constexpr Kind kinds[] = {
    {"exception", "throw", "weft: rank 2( of 4)? failed: out of coffee"},
    {"exit code", "exit", nullptr},
    {"SIGKILL", "kill", nullptr},
    {"SIGSEGV", "segv", nullptr},
    {"SIGTERM", "term", nullptr},
    {"never arrives", "late", "weft: .*still elsewhere: rank 2"},
    {"stuck in compute", "stuck", "weft: .*still elsewhere: rank 2"},
    {"SIGINT to the launcher", "absent", nullptr, SIGINT},
    {"SIGTERM to the launcher", "absent", nullptr, SIGTERM},
    {"launcher killed", "absent", nullptr, SIGKILL},
};

/// Returns a column of the README's table.
std::string failures_under(
    std::string const& launcher, std::function<bool(Kind const&)> const& wanted = [](auto const&) { return true; }) {
  auto const start = starter(launcher, 4);
  std::ostringstream column;
  for (auto const& kind : kinds) {
    if (!wanted(kind)) continue;
    INFO(launcher << ", " << kind.name);
    Job job(start + " --fail " + kind.fail + " --rank 2 --limit 2");
    auto const began = job.says(std::string("now: ") + kind.fail);
    auto const now = Clock::now();
    if (kind.signal != 0) job.signal(kind.signal);
    auto const left = job.end();
    auto const seconds = seconds_since(now);
    INFO(job.out());
    CHECK(began);
    CHECK(job.exit_code() != 0);
    CHECK(seconds < 10);
    CHECK(left == 0);  // and with the processes their sockets are gone
    if (kind.signal == 0 && std::string(kind.fail) != "late") CHECK_FALSE(job.left_a_meeting_point());
    bool const by_launcher = launcher_names(launcher, 2, job.out()),
               by_weft = kind.words && std::regex_search(job.out(), std::regex(kind.words));
    bool const ours = launcher == "fork" || launcher.starts_with("popen");
    if (kind.words) CHECK(by_weft);
    if (!kind.words && kind.signal == 0) CHECK(by_launcher);
    if (ours && (kind.signal == SIGINT || kind.signal == SIGTERM))
      CHECK_THAT(job.out(), ContainsSubstring("interrupted by signal " + std::to_string(kind.signal)));
    column << kind.name << " | "
           << (kind.signal != 0                   ? "ended"
               : by_weft || (by_launcher && ours) ? "weft"
               : by_launcher                      ? launcher
                                                  : "nobody")
           << ", " << std::fixed << std::setprecision(1) << seconds << " s\n";
  }
  return column.str();
}
/// For tests/driver.py, which compares.
void write_column(std::string const& launcher) {
  auto const column = failures_under(launcher);
  fs::create_directories(WEFT_BUILD_DIR "/failures");
  std::ofstream(WEFT_BUILD_DIR "/failures/" + launcher) << column;
}

/// Ranks that wait for each other all the time, one of which is killed at any moment from its start on.
void random_kills(std::string const& launcher, int times) {
  std::mt19937 random(7);
  constexpr int ranks = 3;
  auto const start = starter(launcher, ranks) + " --rounds 100000000";
  for (int i = 0; i < times; ++i) {
    auto const rank = static_cast<int>(random() % ranks);
    auto const delay = std::chrono::microseconds(random() % 250'000);
    INFO(launcher << ", kill " << i << ": rank " << rank << ", " << delay.count() << " us after its start");
    Job job(start);
    pid_t process = 0;
    for (auto const until = Clock::now() + 20s; process == 0 && Clock::now() < until;
         process = job.rank(rank, launcher == "fork"))
      std::this_thread::sleep_for(1ms);
    REQUIRE(process != 0);
    std::this_thread::sleep_for(delay);
    auto const now = Clock::now();
    REQUIRE(::kill(process, SIGKILL) == 0);
    auto const left = job.end();
    INFO(job.out());
    REQUIRE(seconds_since(now) < 10);
    REQUIRE(job.exit_code() != 0);
    REQUIRE(left == 0);
    REQUIRE(launcher_names(launcher, rank, job.out()));
  }
}

std::uint16_t free_port() { return weft::launch::ListeningSocket().port(); }

}  // namespace

TEST_CASE("one job under each launcher", "[launch][launchers]") {
  auto const launcher = every_launcher();
  for (int ranks : {1, 4}) {
    Job job(starter(launcher, ranks));
    auto const left = job.end();
    INFO(job.out());
    CHECK(job.exit_code() == 0);
    CHECK_THAT(job.out(), ContainsSubstring(std::to_string(ranks) + " ranks, sum of ranks " +
                                            std::to_string(ranks * (ranks - 1) / 2) + ", attempt 0"));
    CHECK(left == 0);
    CHECK_FALSE(job.left_a_meeting_point());
  }
}

TEST_CASE("LCH-01: failures under fork end all ranks, name the one that failed, and leave no process",
          "[launch][launchers][known]") {
  write_column("fork");
}
TEST_CASE("LCH-01: failures under popen end all ranks, name the one that failed, and leave no process",
          "[launch][launchers][known]") {
  write_column("popen");
}
TEST_CASE("LCH-01: failures under popen, straight-line, end all ranks, name the one that failed, and leave no process",
          "[launch][launchers][known]") {
  // Only how a rank tells its end is another one here.
  failures_under("popen --straight", [](Kind const& kind) {
    return std::string("exception, exit code, SIGKILL, stuck in compute").find(kind.name) != std::string::npos;
  });
}
TEST_CASE("LCH-01: failures under torchrun end all ranks, name the one that failed, and leave no process",
          "[launch][launchers][known]") {
  write_column("torchrun");
}
TEST_CASE("LCH-01: failures under mpirun end all ranks, name the one that failed, and leave no process",
          "[launch][launchers][known]") {
  write_column("mpirun");
}
TEST_CASE("LCH-01: failures under srun end all ranks, name the one that failed, and leave no process",
          "[launch][launchers][known]") {
  write_column("srun");
}

TEST_CASE("NEW-24: a mistake that all ranks make is one sentence under each launcher", "[launch][launchers][known]") {
  auto const launcher = every_launcher();
  Job job(starter(launcher, 4) + " --fail throw --everywhere");
  CHECK(job.end() == 0);
  INFO(job.out());
  CHECK(job.exit_code() != 0);
  auto const& out = job.out();
  std::smatch found;
  REQUIRE(std::regex_search(out, found, std::regex("weft: ranks ([0-9, -]+) of 4 failed: out of coffee")));
  CHECK(found[1] == "0-3");
  CHECK(out.find("out of coffee") == out.rfind("out of coffee"));
}

TEST_CASE("NEW-07: signals to the launcher that the program asks for reach its ranks' handlers, and all save and leave",
          "[launch][launchers][known]") {
  auto const launcher = GENERATE(as<std::string>{}, "fork", "popen", "popen --straight");
  int const signal = GENERATE(SIGTERM, SIGUSR1);
  INFO(launcher << ", signal " << signal);
  Job job(starter(launcher, 3) + " --save-when-asked");
  REQUIRE(job.says("working"));
  job.signal(signal);
  CHECK(job.end() == 0);
  INFO(job.out());
  CHECK(job.exit_code() == 0);
  CHECK_THAT(job.out(), ContainsSubstring("saved"));
}

TEST_CASE("NEW-07: a signal that comes before a new run of the program has its handlers waits for them",
          "[launch][launchers][known]") {
  Job job(starter("popen", 3) + " --save-when-asked");
  pid_t rank = 0;
  for (auto const until = Clock::now() + 20s; rank == 0 && Clock::now() < until; rank = job.rank(2, false))
    std::this_thread::sleep_for(1ms);
  REQUIRE(rank != 0);
  job.signal(SIGUSR1);
  CHECK(job.end() == 0);
  INFO(job.out());
  CHECK(job.exit_code() == 0);
  CHECK_THAT(job.out(), ContainsSubstring("saved"));
}

TEST_CASE("NEW-08: ranks of one node start at once where no name server answers", "[launch][launchers][known]") {
  if (::geteuid() != 0 || std::system("unshare -m true >/dev/null 2>&1") != 0)
    SKIP("unshare: a name server of the test's own needs root and a mount namespace");
  auto const launcher = GENERATE(as<std::string>{}, "fork", "popen", "environment 127.0.0.1", "environment localhost");
  INFO(launcher);
  Folder folder;
  // Port 53 of an address that takes questions and gives no answers.
  int const server = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(53);
  ::inet_pton(AF_INET, "127.0.0.99", &address.sin_addr);
  REQUIRE(::bind(server, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
  std::ofstream(folder.path() / "resolv.conf") << "nameserver 127.0.0.99\n";
  auto const silent = "unshare -m sh -c 'mount --bind " + (folder.path() / "resolv.conf").string() +
                      " /etc/resolv.conf && exec \"$@\"' _ ";
  auto const start = Clock::now();
  std::vector<std::unique_ptr<Job>> jobs;
  if (launcher == "fork" || launcher == "popen") {
    jobs.push_back(std::make_unique<Job>(silent + program + launcher + " 2 --limit 3"));
  } else {
    auto const port = std::to_string(free_port());
    for (std::string const rank : {"0", "1"})
      jobs.push_back(std::make_unique<Job>(
          silent + "env RANK=" + rank + " WORLD_SIZE=2 LOCAL_RANK=" + rank + " LOCAL_WORLD_SIZE=2 MASTER_ADDR=" +
          launcher.substr(launcher.find(' ') + 1) + " MASTER_PORT=" + port + " " + program + "environment --limit 3"));
  }
  for (auto const& job : jobs) {
    CHECK(job->end() == 0);
    INFO(job->out());
    CHECK(job->exit_code() == 0);
    CHECK_THAT(job->out(), !ContainsSubstring("hostname"));  // c10d's warning
  }
  ::close(server);
  CHECK_THAT(jobs.front()->out(), ContainsSubstring("2 ranks, sum of ranks 1, attempt 0"));
  CHECK(seconds_since(start) < 8);  // mostly LibTorch's start; the resolver alone would take 10 s
}

TEST_CASE("50 random kills in a row under fork", "[launch][launchers]") { random_kills("fork", 50); }
TEST_CASE("50 random kills in a row under popen", "[launch][launchers]") { random_kills("popen", 50); }
TEST_CASE("random kills under torchrun, mpirun and srun", "[launch][launchers]") {
  auto const launcher = GENERATE(as<std::string>{}, "torchrun", "mpirun", "srun");
  random_kills(launcher, launcher == "torchrun" ? 5 : 10);
}

TEST_CASE("two nodes of two ranks under torchrun: a rank that is killed ends both, and both name it",
          "[launch][launchers]") {
  if (torchrun().empty()) SKIP("torchrun: no Python with torch and typing_extensions here");
  auto const port = std::to_string(free_port());
  auto const node = [&](int rank) {
    return std::make_unique<Job>(torchrun() + "--nnodes 2 --node-rank " + std::to_string(rank) +
                                 " --nproc-per-node 2 --master-addr 127.0.0.1 --master-port " + port + " --no-python " +
                                 program + "environment --fail kill --rank 3");
  };
  auto const zero = node(0), one = node(1);
  REQUIRE(one->says("now: kill"));
  auto const now = Clock::now();
  CHECK(one->end() == 0);
  CHECK(zero->end() == 0);
  INFO("node 0: " << zero->out() << "\nnode 1: " << one->out());
  CHECK(seconds_since(now) < 10);
  CHECK(zero->exit_code() != 0);
  CHECK(one->exit_code() != 0);
  // torchrun ends rank 2 as soon as rank 3 is gone.
  CHECK(std::regex_search(zero->out(), std::regex("weft: ranks? (2, )?3 of 4 ha(s|ve) given no sign of life")));
  CHECK(launcher_names("torchrun", 3, one->out()));
}

TEST_CASE("two nodes of two ranks by SLURM's variables: a rank that is killed ends all others, and they name it",
          "[launch][launchers]") {
  int const victim = GENERATE(0, 3);
  auto const job_id =
      std::to_string(10'000'000 + free_port() % 10'000);  // rank 0's port is 15000 and the last four digits
  std::vector<std::unique_ptr<Job>> ranks;
  for (int rank = 0; rank < 4; ++rank) {
    auto const r = std::to_string(rank), local = std::to_string(rank % 2), node = std::to_string(rank / 2);
    ranks.push_back(std::make_unique<Job>(
        "env SLURM_PROCID=" + r + " SLURM_NTASKS=4 SLURM_LOCALID=" + local + " SLURM_NODEID=" + node +
        " SLURM_NNODES=2 SLURM_STEP_NUM_NODES=2 SLURM_TASKS_PER_NODE='2(x2)' "
        "SLURM_STEP_TASKS_PER_NODE='2(x2)' SLURM_JOB_NODELIST=localhost,other SLURM_JOB_ID=" +
        job_id + " SLURM_STEP_ID=0 SLURM_JOB_NAME=train " + program + "environment --fail kill --rank " +
        std::to_string(victim)));
  }
  REQUIRE(ranks[static_cast<std::size_t>(victim)]->says("now: kill"));
  auto const now = Clock::now();
  bool named = false;
  for (auto const& job : ranks) {
    CHECK(job->end() == 0);
    INFO(job->out());
    CHECK(job->exit_code() != 0);
    // The store went with rank 0.
    named |= job->out().find(victim == 0 ? "and with it rank 0" : "weft: rank 3 of 4 has given no sign of life") !=
             std::string::npos;
  }
  CHECK(named);
  CHECK(seconds_since(now) < 10);
}

TEST_CASE("LCH-02: two jobs at once do not meet each other", "[launch][launchers][known]") {
  auto const launcher = GENERATE(as<std::string>{}, "fork", "popen", "mpirun", "srun");  // torchrun's store is its own
  auto const two = starter(launcher, 2), three = starter(launcher, 3);
  Job first(two), second(three);
  CHECK(first.end() == 0);
  CHECK(second.end() == 0);
  INFO(first.out() << second.out());
  CHECK(first.exit_code() == 0);
  CHECK(second.exit_code() == 0);
  CHECK_THAT(first.out(), ContainsSubstring("2 ranks, sum of ranks 1, attempt 0"));
  CHECK_THAT(second.out(), ContainsSubstring("3 ranks, sum of ranks 3, attempt 0"));
}

TEST_CASE("LCH-07: a program launches twice, with as many ranks as it says each time; under Popen that is refused",
          "[launch][launchers][known]") {
  auto const launcher = GENERATE(as<std::string>{}, "fork", "popen", "mpirun", "srun");
  Job job(starter(launcher, 2) + " --twice");
  CHECK(job.end() == 0);
  INFO(job.out());
  CHECK((job.exit_code() == 0) == (launcher != "popen"));
  CHECK_THAT(job.out(), ContainsSubstring("2 ranks, sum of ranks 1, attempt 0"));
  if (launcher == "fork") CHECK_THAT(job.out(), ContainsSubstring("3 ranks, sum of ranks 3, attempt 0"));
  if (launcher == "popen")
    CHECK_THAT(job.out(),
               ContainsSubstring("this program has launched already") && ContainsSubstring("write the launcher Fork"));
}

TEST_CASE("a job is started again as often as it may, and told which attempt it is", "[launch][launchers]") {
  auto const launcher = GENERATE(as<std::string>{}, "fork", "popen", "popen --straight", "torchrun");
  auto start = starter(launcher, 3);
  if (launcher == "torchrun") start.replace(start.find("--no-python"), 11, "--max-restarts 1 --no-python");
  Job job(start + " --fail kill --rank 1 --restarts 2");
  CHECK(job.end() == 0);
  INFO(job.out());
  CHECK(job.exit_code() == 0);
  CHECK_THAT(job.out(), ContainsSubstring("3 ranks, sum of ranks 3, attempt 1"));
  if (launcher != "torchrun") CHECK_THAT(job.out(), ContainsSubstring("starting all ranks again (restart 1 of 2)"));
}

TEST_CASE("a job that fails again and again ends with its last failure", "[launch][launchers]") {
  // Restarts are the parent's; a rank that was told of none fails each time.
  auto const launcher = GENERATE(as<std::string>{}, "fork", "popen");
  Job job(starter(launcher, 2) + " --fail exit --always --rank 1 --restarts 1");
  CHECK(job.end() == 0);
  INFO(job.out());
  CHECK(job.exit_code() == 3);
  CHECK_THAT(job.out(), ContainsSubstring("(restart 1 of 1)") && !ContainsSubstring("(restart 2"));
}
