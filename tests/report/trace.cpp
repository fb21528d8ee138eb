#include "ranks.hpp"

#include <filesystem>
#include <fstream>
#include <limits>
#include <set>
#include <thread>

#include <nlohmann/json.hpp>

#include <unistd.h>

#include <weft/launch/simulated.hpp>
#include <weft/report/chrome_trace.hpp>
#include <weft/report/step_timer.hpp>

using namespace test;
using namespace std::chrono_literals;
using Catch::Matchers::ContainsSubstring;
using Json = nlohmann::json;
using weft::report::StepTimer;

namespace {

Json parsed(std::filesystem::path const& path) {
  std::ifstream file(path);
  REQUIRE(file.good());
  return Json::parse(file);
}
std::filesystem::path scratch(std::string const& name) {
  return std::filesystem::temp_directory_path() / ("weft-trace-" + std::to_string(::getpid()) + "-" + name + ".json");
}

/// Bars of one row lie beside each other: pairs (process, row).
void check_rows(Json const& trace) {
  std::map<std::pair<int, int>, std::vector<std::pair<double, double>>> rows;
  for (auto const& event : trace.at("traceEvents")) {
    CHECK(event.at("pid").is_number());
    if (event.at("ph") == "M") continue;
    CHECK(event.at("ts").get<double>() >= 0);
    if (event.at("ph") == "X")
      rows[{event.at("pid"), event.at("tid")}].emplace_back(
          event.at("ts"), event.at("ts").get<double>() + event.at("dur").get<double>());
  }
  for (auto& [row, bars] : rows) {
    std::sort(bars.begin(), bars.end());
    for (std::size_t i = 1; i < bars.size(); ++i)
      CHECK(bars[i].first >= bars[i - 1].second - 2e-3);  // both are rounded to nanoseconds
  }
}

}  // namespace

TEST_CASE("a trace: bars in rows that do not overlap, marks, names, and text that is JSON", "[report]") {
  using weft::comm::Event;
  using weft::comm::Kind;
  auto const at = [](double us) {
    return std::chrono::steady_clock::time_point(std::chrono::nanoseconds(static_cast<int64_t>(us * 1e3)));
  };
  std::vector<Event> const collectives{{"backward", Kind::all_gather, 4, 1024, 10, 30},
                                       {"backward", Kind::reduce_scatter, 4, 2048, 20, 50},
                                       {"a \"phase\"", Kind::send, 2, 8, 30, -1},
                                       {"step", Kind::barrier, 4, 0, 50, 60}};
  auto const text = weft::report::trace_file(
      {weft::report::trace_events(3, "node 1", collectives, 1000,
                                  {{"step 1", at(1040), at(1070)}, {"step 0", at(1000), at(1040)}}, -990)},
      {{"clocks", "\"one\""}});
  auto const trace = Json::parse(text);
  check_rows(trace);
  CHECK(trace.at("otherData") == Json{{"clocks", "one"}});
  std::vector<Json> events;
  std::map<int, std::string> rows;
  for (auto const& event : trace.at("traceEvents")) {
    CHECK(event.at("pid") == 3);
    if (event.at("ph") != "M") events.push_back(event);
    if (event.at("name") == "thread_name") rows[event.at("tid")] = event.at("args").at("name");
    if (event.at("name") == "process_name") CHECK(event.at("args").at("name") == "rank 3, node 1");
  }
  CHECK(rows == std::map<int, std::string>{{0, "steps"}, {1, "collectives"}, {2, "collectives (2)"}});
  REQUIRE(events.size() == 6);
  CHECK(events[0] ==
        Json{{"pid", 3}, {"ph", "X"}, {"tid", 0}, {"name", "step 0"}, {"cat", "span"}, {"ts", 10}, {"dur", 40}});
  CHECK(events[2] == Json{{"pid", 3},
                          {"ph", "X"},
                          {"tid", 1},
                          {"name", "all_gather"},
                          {"cat", "backward"},
                          {"ts", 20},
                          {"dur", 20},
                          {"args", {{"phase", "backward"}, {"bytes", 1024}, {"group_size", 4}, {"axis", "world"}}}});
  CHECK(events[3].at("tid") == 2);  // while the gather is under way
  CHECK(events[4] == Json{{"pid", 3},
                          {"ph", "i"},
                          {"s", "t"},
                          {"tid", 1},
                          {"name", "send"},
                          {"cat", "a \"phase\""},
                          {"ts", 40},
                          {"args", {{"phase", "a \"phase\""}, {"bytes", 8}, {"group_size", 2}, {"axis", "world"}}}});
  CHECK(events[5].at("tid") == 1);
}

TEST_CASE("save_trace: one file with a process for each rank, on one clock", "[report]") {
  for (int const world : {1, 2, 3}) {
    auto const path = scratch(std::to_string(world));
    CHECK(on_ranks(world, [&](Run<>& fabric) {
      StepTimer timer;
      fabric.recorder().start();
      for (int step = 0; step < 2 + fabric.global_rank(); ++step) {
        auto const timed = timer.step();
        if (step < 2) {
          auto const phase = fabric.phase("mine");
          fabric.all_reduce(at::ones({256}));
        }
      }
      weft::report::save_trace(path, fabric.session(), fabric.recorder().stop(), timer.spans());
      expect(std::filesystem::exists(path), "the file is there when the call returns");
      return true;
    }));
    auto const trace = parsed(path);
    std::filesystem::remove(path);
    check_rows(trace);
    CHECK(trace.at("otherData").at("clock_offsets").size() == static_cast<std::size_t>(world));
    CHECK(trace.at("otherData").at("clocks") == "of one node: the same for all ranks");
    std::map<int, int> steps;
    std::map<int, std::vector<std::pair<double, double>>> reduces;
    std::set<std::string> names;
    for (auto const& event : trace.at("traceEvents")) {
      int const rank = event.at("pid");
      if (event.at("name") == "process_name") names.insert(event.at("args").at("name").get<std::string>());
      if (event.at("ph") == "M") continue;
      if (event.at("cat") == "span") ++steps[rank];
      if (event.at("name") == "all_reduce") {
        CHECK(event.at("args") == Json{{"phase", "mine"}, {"bytes", 1024}, {"group_size", world}, {"axis", "world"}});
        if (event.at("ph") == "X")
          reduces[rank].emplace_back(event.at("ts"), event.at("ts").get<double>() + event.at("dur").get<double>());
      }
    }
    CHECK(names.size() == static_cast<std::size_t>(world));
    for (int rank = 0; rank < world; ++rank) {
      CHECK(names.count("rank " + std::to_string(rank)) == 1);
      CHECK(steps[rank] == 2 + rank);
      // No rank is done before all have begun: clocks agree.
      for (std::size_t i = 0; i < reduces[rank].size(); ++i)
        for (auto const& [other, theirs] : reduces)
          if (theirs.size() == reduces[rank].size()) CHECK(reduces[rank][i].second >= theirs[i].first - 2e-3);
    }
  }
}

TEST_CASE("save_trace: a place that cannot be written is an error on every rank; nothing recorded is a file, too",
          "[report]") {
  auto const path = scratch("empty");
  CHECK(on_ranks(2, [&](Run<>& fabric) {
    auto const folder = std::filesystem::temp_directory_path();
    expect(contains(message_of([&] { weft::report::save_trace(folder, fabric.session(), {}); }), "it is a directory"),
           "an error");
    weft::report::save_trace(path, fabric.session(), {});
    return true;
  }));
  CHECK(parsed(path).at("traceEvents").size() == 4);
  std::filesystem::remove(path);
}

TEST_CASE("clocks of ranks are compared by messages to what one machine has: one clock", "[report]") {
  auto const offsets = on_ranks(3, [](Run<>& fabric) {
    auto const offset = weft::report::clock_offset(*fabric.world());
    return fabric.all_gather(at::tensor({offset.offset_us, offset.error_us}, at::kDouble));
  });
  CHECK(offsets[0][0].item<double>() == 0);
  CHECK(offsets[0][1].item<double>() == 0);
  for (int rank : {1, 2}) {
    CHECK(offsets[rank][1].item<double>() > 0);
    CHECK(std::abs(offsets[rank][0].item<double>()) <= offsets[rank][1].item<double>());
  }
}

TEST_CASE("save_trace: a simulated rank writes what it did", "[report]") {
  auto const path = scratch("simulated");
  using Simulated = weft::Fabric<weft::DDP<>, weft::On<weft::Cpu>, weft::Simulated<8>>;
  CHECK(Simulated::launch({.devices = 8, .simulated_rank = 5}, [&](Simulated& fabric) {
          fabric.recorder().start();
          fabric.all_reduce(at::ones({4}));
          weft::report::save_trace(path, fabric.session(), fabric.recorder().stop());
        }).exit_code() == 0);
  auto const trace = parsed(path);
  std::filesystem::remove(path);
  for (auto const& event : trace.at("traceEvents")) CHECK(event.at("pid") == 5);
}

TEST_CASE("StepTimer: mean, median, 95th percentile, tokens a second, of all steps and of the last", "[report]") {
  StepTimer timer;
  CHECK(timer.times().steps == 0);
  CHECK(timer.times().tokens_per_s() == 0);
  auto const begin = StepTimer::Clock::now();
  for (int ms = 40; ms >= 1; --ms) timer.add(begin, begin + std::chrono::milliseconds(ms), 10);
  auto const all = timer.times();
  CHECK(all.steps == 40);
  CHECK(all.total_s == Catch::Approx(0.820));
  CHECK(all.mean_s == Catch::Approx(0.0205));
  CHECK(all.median_s == Catch::Approx(0.0205));
  CHECK(all.p95_s == Catch::Approx(0.038));
  CHECK(all.min_s == Catch::Approx(0.001));
  CHECK(all.max_s == Catch::Approx(0.040));
  CHECK(all.tokens_per_s() == Catch::Approx(400 / 0.820));
  CHECK(all.text() == "40 steps, ms: mean 20.50, median 20.50, p95 38.00, 1.00 to 40.00; 488 tokens/s");
  auto const last = timer.times(3);
  CHECK(last.steps == 3);
  CHECK(last.median_s == Catch::Approx(0.002));
  CHECK(last.p95_s == Catch::Approx(0.003));
  CHECK(last.steps_per_s() == Catch::Approx(500));
  CHECK(timer.spans("s").size() == 40);
  CHECK(timer.spans("s")[39].name == "s 39");
  CHECK_THAT(message_of([&] { timer.add(begin, begin - 1ms); }), ContainsSubstring("ends before it begins"));
}

TEST_CASE("StepTimer: scopes, first steps left out, a step that throws left out, a device waited for", "[report]") {
  StepTimer timer({.warm_up = 2, .synchronize = at::kCPU});
  for (int step = 0; step < 5; ++step) {
    auto const timed = timer.step(3);
    if (step == 4) std::this_thread::sleep_for(5ms);
  }
  CHECK_THROWS_AS(
      [&] {
        auto const timed = timer.step();
        throw std::runtime_error("in a step");
      }(),
      std::runtime_error);
  auto const times = timer.times();
  CHECK(times.steps == 3);
  CHECK(times.tokens == 9);
  CHECK(times.max_s >= 0.005);
  CHECK(times.min_s < times.max_s);
}
