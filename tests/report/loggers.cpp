#include "ranks.hpp"

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <thread>

#include <nlohmann/json.hpp>

#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <weft/report/csv_logger.hpp>
#include <weft/report/tensorboard_logger.hpp>

using namespace test;
using Catch::Matchers::ContainsSubstring;
using weft::report::CsvLogger;
using weft::report::TensorBoardLogger;
namespace filesystem = std::filesystem;

namespace {

using Single = weft::SingleDevice;
constexpr double no_number = std::numeric_limits<double>::quiet_NaN(),
                 infinity = std::numeric_limits<double>::infinity();

/// A folder that goes with the test.
struct Folder {
  filesystem::path path = filesystem::temp_directory_path() /
                          ("weft-logs-" + std::to_string(::getpid()) + "-" + std::to_string(count++));
  Folder() { filesystem::remove_all(path); }
  ~Folder() { filesystem::remove_all(path); }
  static inline int count = 0;
};

std::string text_of(filesystem::path const& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}
void write(filesystem::path const& path, std::string const& text) {
  filesystem::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << text;
}
std::size_t num_files(filesystem::path const& folder) {
  return static_cast<std::size_t>(
      std::distance(filesystem::directory_iterator(folder), filesystem::directory_iterator()));
}
filesystem::path only_file(filesystem::path const& folder) {
  REQUIRE(num_files(folder) == 1);
  return filesystem::directory_iterator(folder)->path();
}

/// The result of a call for which no file can grow beyond so many bytes, as on a full disk.
template <class Function>
std::string when_files_end_at(rlim_t bytes, Function function) {
  auto const handler = ::signal(SIGXFSZ, SIG_IGN);
  ::rlimit before{};
  ::getrlimit(RLIMIT_FSIZE, &before);
  ::rlimit const now{bytes, before.rlim_max};
  ::setrlimit(RLIMIT_FSIZE, &now);
  auto const result = function();
  ::setrlimit(RLIMIT_FSIZE, &before);
  ::signal(SIGXFSZ, handler);
  return result;
}

/// What a logger was told.
struct Told final : weft::report::Logger {
  std::vector<std::string> calls;
  filesystem::path open() override {
    calls.push_back("open");
    return "somewhere";
  }
  void log(weft::report::Metrics const& metrics, std::optional<int64_t> step) override {
    for (auto const& [name, value] : metrics)
      calls.push_back(name + "=" + std::to_string(value) + "@" + (step ? std::to_string(*step) : "next"));
  }
  void flush() override { calls.push_back("flush"); }
};

}  // namespace

TEST_CASE("CSV: a row a call, sorted columns, a wider header when a name is new", "[report]") {
  Folder const folder;
  CsvLogger csv({.root = folder.path, .name = "lm"});
  auto const file = csv.open() / "metrics.csv";
  CHECK(file == folder.path / "lm" / "version_0" / "metrics.csv");
  csv.log({{"loss", 0.1}}, 10);
  CHECK(text_of(file) == "loss,step\n0.1,10\n");
  csv.log({{"loss", 1e-30}}, {});
  csv.log({{"acc", no_number}, {"z, \"quoted\"", -infinity}}, -1);
  csv.log({{"loss", 3}, {"acc", infinity}}, {});
  CHECK(text_of(file) == "acc,loss,step,\"z, \"\"quoted\"\"\"\n,0.1,10,\n,1e-30,1,\nnan,,-1,-inf\ninf,3,3,\n");
  CHECK(num_files(file.parent_path()) == 1);  // no temporary one is left
}

TEST_CASE("CSV: the default step is the row's number, whatever was flushed", "[report]") {
  Folder const folder;
  CsvLogger csv({.directory = folder.path, .flush_every = 2});
  csv.open();
  for (int i = 0; i < 5; ++i) csv.log({{"x", i}}, {});
  CHECK(text_of(folder.path / "metrics.csv") == "step,x\n0,0\n1,1\n2,2\n3,3\n");
  csv.flush();
  CHECK(text_of(folder.path / "metrics.csv") == "step,x\n0,0\n1,1\n2,2\n3,3\n4,4\n");
  csv.log({{"x", 5}}, {});
  csv.log({{"y", 6}}, {});  // makes the file anew, with the row that waited
  CHECK_THAT(text_of(folder.path / "metrics.csv"), ContainsSubstring("\n5,5,\n"));
}

TEST_CASE("CSV: a run that goes on with a version keeps what is there", "[report]") {
  Folder const folder;
  {
    CsvLogger csv({.root = folder.path, .version = 7, .flush_every = 100});
    csv.open();
    csv.log({{"loss", 1}}, {});
    csv.log({{"loss", 2}}, {});
  }
  auto const file = folder.path / "weft_logs" / "version_7" / "metrics.csv";
  CHECK(text_of(file) == "loss,step\n1,0\n2,1\n");
  write(file, "loss,step\r\n1,0\r\n2,1\r\n\"3\",");  // by another program, cut off by the end of a machine
  CsvLogger csv({.root = folder.path, .version = 7});
  csv.open();
  CHECK(csv.num_rows() == 2);
  csv.log({{"acc", 0.5}}, {});
  CHECK(text_of(file) == "acc,loss,step\n,1,0\n,2,1\n0.5,,2\n");
  CsvLogger next({.root = folder.path});
  CHECK(next.open() == folder.path / "weft_logs" / "version_8");
}

TEST_CASE("CSV: a file that is no table of metrics is refused, and stays", "[report]") {
  Folder const folder;
  for (std::string const text : {"a,b\n1,2\n", "a,step\n1,2,3\n"}) {
    write(folder.path / "metrics.csv", text);
    CHECK_THAT(message_of([&] { CsvLogger({.directory = folder.path}).open(); }),
               ContainsSubstring("cannot go on with") && ContainsSubstring("choose another version"));
    CHECK(text_of(folder.path / "metrics.csv") == text);
  }
}

TEST_CASE("CSV: a table that could not be made wider goes on as it was", "[report]") {
  Folder const folder;
  CsvLogger csv({.directory = folder.path});
  csv.open();
  csv.log({{"loss", 1}}, {});
  auto const file = folder.path / "metrics.csv";
  CHECK_THAT(when_files_end_at(16, [&] { return message_of([&] { csv.log({{"acc", 0.5}}, {}); }); }),
             ContainsSubstring("File too large"));
  CHECK(num_files(folder.path) == 1);
  csv.log({{"loss", 2}}, {});
  CHECK(text_of(file) == "loss,step\n1,0\n2,1\n");
  csv.log({{"acc", 0.5}}, {});
  CHECK(text_of(file) == "acc,loss,step\n,1,0\n,2,1\n0.5,,2\n");
}

TEST_CASE("CSV: a logger whose file another one has replaced says so", "[report]") {
  Folder const folder;
  CsvLogger one({.directory = folder.path}), other({.directory = folder.path});
  one.open();
  other.open();
  one.log({{"x", 1}}, 0);
  one.flush();
  other.log({{"y", 2}}, 0);  // makes the table wider, in a new file
  other.flush();
  CHECK_THROWS_WITH((one.log({{"x", 3}}, 1), one.flush()),
                    ContainsSubstring("was replaced or removed since it was opened"));
}

TEST_CASE("CSV: settings become JSON", "[report]") {
  Folder const folder;
  CsvLogger csv({.directory = folder.path});
  csv.open();
  csv.log_hyperparameters({{"lr", 3e-4}, {"layers", 12u}, {"name", "a \"b\"\n"}, {"shuffle", true}});
  csv.log_hyperparameters({{"lr", infinity}, {"more", std::string("x")}});
  auto const json = nlohmann::json::parse(text_of(folder.path / "hparams.json"));
  CHECK(json == nlohmann::json{{"lr", "inf"}, {"layers", 12}, {"name", "a \"b\"\n"}, {"shuffle", true}, {"more", "x"}});
}

TEST_CASE("of jobs that start at once each has a version of its own", "[report]") {
  Folder const folder;
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) threads.emplace_back([&] { TensorBoardLogger({.root = folder.path}).open(); });
  for (auto& thread : threads) thread.join();
  CHECK(num_files(folder.path / "weft_logs") == 8);
  for (int i = 0; i < 8; ++i) CHECK(num_files(folder.path / "weft_logs" / ("version_" + std::to_string(i))) == 1);
}

TEST_CASE("fabric: every rank may log, rank 0 writes, all know the directory", "[report][fabric]") {
  for (int const world : {1, 2, 3}) {
    Folder const folder;
    auto const directories = on_ranks(world, [&](Run<>& fabric) {
      auto csv = fabric.add_logger(CsvLogger({.root = folder.path}));
      auto board = fabric.add_logger(TensorBoardLogger({.directory = csv->directory()}));
      auto told = fabric.add_logger(Told());
      expect(fabric.loggers().size() == 3 && &fabric.logger() == csv.get(), "loggers in the order in which they came");
      expect(told->directory() == "somewhere", "the directory that rank 0 opened");
      for (int step = 0; step < 3; ++step) {
        fabric.log("loss", at::full({1, 1}, step + 0.5 * fabric.global_rank(), at::kHalf).requires_grad_(), step);
        fabric.log_dict({{"lr", 3}, {"flag", true}, {"big", at::tensor(int64_t{1} << 40)}}, step);
      }
      fabric.log_dict(std::map<std::string, at::Tensor>{{"loss", at::tensor(9.0)}});
      board->log_text("note", "text");
      fabric.log_hyperparameters({{"lr", 0.1}});
      bool const zero = fabric.is_global_zero();
      expect(told->calls.size() == (zero ? 14u : 0u), "calls on rank 0 alone");
      if (zero)
        expect(told->calls[1] == "loss=0.000000@0" && told->calls[13] == "loss=9.000000@next", "values of rank 0");
      return fabric.all_gather(
          at::tensor(static_cast<int>(csv->directory() == folder.path / "weft_logs" / "version_0")));
    });
    CHECK(directories.sum().item<int>() == world);
    auto const version = folder.path / "weft_logs" / "version_0";
    CHECK(text_of(version / "metrics.csv") ==
          "big,flag,loss,lr,step\n,,0,,0\n1099511627776,1,,3,0\n,,1,,1\n1099511627776,1,,3,1\n,,2,,2\n1099511627776,1,,"
          "3,2\n,,9,,6\n");
    CHECK(num_files(folder.path / "weft_logs") == 1);
    CHECK(num_files(version) == 3);  // the table, hparams.json, one event file
  }
}

TEST_CASE("fabric: what is no number is refused on every rank, also without a logger", "[report][fabric]") {
  CHECK(on_ranks(2, [](Run<>& fabric) {
    expect(contains(message_of([&] { fabric.log("loss", at::ones({2})); }),
                    "loss is a tensor of shape [2] and dtype Float; log one real number"),
           "two elements");
    expect(contains(message_of([&] { fabric.log("loss", at::ones({0})); }), "shape [0]"), "none");
    expect(contains(message_of([&] { fabric.log("loss", at::ones({}, at::kComplexFloat)); }), "ComplexFloat"),
           "a complex number");
    expect(contains(message_of([&] { fabric.log("loss", at::Tensor()); }), "loss is an undefined tensor"), "no tensor");
    expect(contains(message_of([&] { fabric.log("step", 1); }), "other than that of the step"), "the name of the step");
    expect(contains(message_of([&] { fabric.log("", 1); }), "give it a name"), "no name");
    expect(contains(message_of([&] { fabric.logger(); }), "this fabric has none"), "no logger");
    expect(contains(message_of([&] { fabric.add_logger(std::shared_ptr<CsvLogger>()); }), "the logger is null"),
           "a null pointer");
    return true;
  }));
}

TEST_CASE("fabric: a place that cannot be written is an error on every rank", "[report][fabric]") {
  Folder const folder;
  write(folder.path / "file", "in the way");
  CHECK(on_ranks(3, [&](Run<>& fabric) {
    expect(contains(message_of([&] { fabric.add_logger(CsvLogger({.root = folder.path / "file"})); }),
                    "cannot make the directory"),
           "rank 0's error");
    expect(fabric.loggers().empty(), "a logger that did not open is none");
    return true;
  }));
}

TEST_CASE(
    "fabric: loggers are flushed when it ends: by its function's end, teardown, an exception of this or another rank",
    "[report][fabric]") {
  Folder const folder;
  auto const job = [&](int name, std::size_t flush_every, std::function<void(Run<>&)> const& end) {
    auto const outcome = Run<>::launch(
        {.devices = 2}, std::function<void(Run<>&)>([&](Run<>& fabric) {
          fabric.add_logger(CsvLogger({.directory = folder.path / std::to_string(name), .flush_every = flush_every}));
          for (int i = 0; i < 3; ++i) fabric.log("x", i);
          fabric.barrier();
          end(fabric);
        }));
    CHECK(text_of(folder.path / std::to_string(name) / "metrics.csv") == "step,x\n0,0\n1,1\n2,2\n");
    return outcome.exit_code();
  };
  CHECK(job(0, 1000, [](Run<>&) {}) == 0);
  CHECK(job(1, 1000, [](Run<>& fabric) { fabric.teardown(); }) == 0);
  CHECK(job(2, 1000, [](Run<>& fabric) {
          if (fabric.is_global_zero())
            throw std::runtime_error("rank 0");
          else
            fabric.barrier();
        }) != 0);
  // Rank 0 is killed while it waits: what was handed to the kernel with each row is there.
  CHECK(job(3, 1, [](Run<>& fabric) {
          if (!fabric.is_global_zero())
            throw std::runtime_error("rank 1");
          else
            fabric.barrier();
        }) != 0);
  CHECK(job(4, 1, [](Run<>& fabric) {
          if (fabric.is_global_zero())
            ::kill(::getpid(), SIGKILL);
          else
            fabric.barrier();
        }) != 0);
}

TEST_CASE("fabric: the straight-line form flushes, too", "[report][fabric]") {
  Folder const folder;
  {
    Run<Single> fabric;
    fabric.launch();
    fabric.add_logger(CsvLogger({.directory = folder.path, .flush_every = 1000}));
    fabric.log("x", 1);
  }
  CHECK(text_of(folder.path / "metrics.csv") == "step,x\n0,1\n");
}

TEST_CASE("fabric: print and progress are rank 0's", "[report][fabric]") {
  CHECK(on_ranks(2, [](Run<>& fabric) {
    std::ostringstream out;
    auto* const before = std::cout.rdbuf(out.rdbuf());
    fabric.print("rank ", fabric.global_rank(), " says ", 1.5);
    std::cout.rdbuf(before);
    expect(out.str() == (fabric.is_global_zero() ? "rank 0 says 1.5\n" : ""), "rank 0 prints");
    auto loader = fabric.setup_dataloader(torch::data::datasets::TensorDataset(at::arange(8)), {.batch_size = 2});
    auto loop = fabric.progress(loader, "epoch");
    std::size_t batches = 0;
    for (auto& batch : loop) batches += static_cast<std::size_t>(batch.data.size(0)) / 2;
    expect(batches == 2 && loop.bar().state().total == 2u, "the loop is the loader's, and its length is known");
    expect(loop.bar().is_due(2) == false, "nothing is left to say");
    return true;
  }));
}

TEST_CASE("TensorBoard's own reader finds scalars, steps, texts and settings", "[report]") {
  std::string python;
  char const* const chosen = std::getenv("WEFT_TENSORBOARD_PYTHON");
  for (std::string const candidate : {chosen ? chosen : "", WEFT_SOURCE_DIR "/.venv/bin/python", "python3"})
    if (python.empty() && !candidate.empty() &&
        std::system(
            (candidate + " " WEFT_SOURCE_DIR "/tests/programs/tensorboard_events.py check 2>/dev/null").c_str()) == 0)
      python = candidate;
  if (python.empty()) SKIP("no Python here has TensorBoard's reader (packages tensorboard, protobuf, numpy, absl-py)");
  Folder const folder;
  CHECK(Run<Single>::launch([&](Run<Single>& fabric) {
          auto const board = fabric.add_logger(TensorBoardLogger({.directory = folder.path}));
          for (int64_t step : {int64_t{0}, int64_t{1}, int64_t{200}, int64_t{1'000'000'000'000}})
            fabric.log_dict({{"loss", 0.25 * static_cast<double>(step)},
                             {"acc", step == 1     ? no_number
                                     : step == 200 ? -infinity
                                                   : 1.0}},
                            step);
          fabric.log("counted", 1);
          fabric.log("a/b c,\u00fc", -0.5, 3);
          board->log_text("note", "**bold** \u00fc", 5);
          fabric.log_hyperparameters({{"lr", 0.5}, {"layers", 3}, {"name", "abc"}, {"shuffle", false}});
        }).exit_code() == 0);
  only_file(folder.path);
  auto const json_file = folder.path.string() + ".json";
  REQUIRE(std::system((python + " " WEFT_SOURCE_DIR "/tests/programs/tensorboard_events.py read " +
                       folder.path.string() + " > " + json_file)
                          .c_str()) == 0);
  auto const found = nlohmann::json::parse(text_of(json_file));
  filesystem::remove(json_file);
  CHECK(found.at("scalars") ==
        nlohmann::json::parse(R"({"loss": [[0, "0.0"], [1, "0.25"], [200, "50.0"], [1000000000000, "249999998976.0"]],
    "acc": [[0, "1.0"], [1, "nan"], [200, "-inf"], [1000000000000, "1.0"]], "counted": [[4, "1.0"]], "a/b c,ü": [[3, "-0.5"]]})"));
  CHECK(found.at("texts") == nlohmann::json{{"note", {{5, "**bold** \u00fc"}}}});
  CHECK(found.at("hparams") == nlohmann::json{{"lr", 0.5}, {"layers", 3.0}, {"name", "abc"}, {"shuffle", false}});
}
