#include "test.hpp"

#include "expect.hpp"

#include <sstream>

#include <weft/report/memory_phases.hpp>
#include <weft/report/memory_summary.hpp>

using Catch::Matchers::ContainsSubstring;
using weft::report::MemoryCount;
using weft::report::MemoryTag;
using weft::report::Tagged;

namespace {

/// An accelerator's caching allocator that says what the test wants.
struct Accelerator final : c10::DeviceAllocator {
  bool in_use = false;
  c10::CachingDeviceAllocator::DeviceStats statistics;
  std::vector<c10::DeviceIndex> resets;

  bool initialized() override { return in_use; }
  void emptyCache(c10::MempoolId_t) override {}
  void recordStream(c10::DataPtr const&, c10::Stream) override {}
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex) override { return statistics; }
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex device) override { resets.push_back(device); }
  c10::DataPtr allocate(std::size_t) override { return {}; }
  void copy_data(void*, void const*, std::size_t) const override {}
};

}  // namespace

TEST_CASE("memory_summary: bytes by tag while they are counted, as numbers and as a table", "[report]") {
  CHECK_FALSE(weft::report::memory_summary().counted);
  CHECK_THAT(test::message_of([] { weft::report::peak_bytes(); }),
             ContainsSubstring("make a weft::report::MemoryCount"));
  CHECK_THAT(weft::report::memory_summary().table(),
             !ContainsSubstring("gathered") && ContainsSubstring("process: resident"));

  MemoryCount const memory;
  auto const rest = at::empty({3 << 18});  // 3 MiB
  at::Tensor optimizer;
  {
    Tagged const tag(MemoryTag::gathered);
    at::empty({1 << 19});
  }
  {
    Tagged const tag(MemoryTag::optimizer);
    optimizer = at::empty({1 << 18});
  }
  auto const summary = weft::report::memory_summary(at::kCPU);
  CHECK_FALSE(summary.device);
  CHECK(summary.of(MemoryTag::gathered) == weft::report::Held{0, 0, 2 << 20, 1});
  CHECK(summary.of(MemoryTag::optimizer).bytes == 1 << 20);
  CHECK(summary.counted.value().bytes == 4 << 20);
  CHECK(weft::report::peak_bytes() == 5 << 20);
  CHECK(summary.resident_bytes > 4 << 20);
  CHECK(summary.peak_resident_bytes >= summary.resident_bytes);
  auto const table = summary.table();
  for (std::string const line : {"host: parameters                0.00        0.00         0\n",
                                 "host: gathered                  0.00        2.00         0\n",
                                 "host: optimizer                 1.00        1.00         1\n",
                                 "host: rest                      3.00        3.00         1\n",
                                 "host: counted in all            4.00        5.00         2\n"})
    CHECK_THAT(table, ContainsSubstring(line));
  CHECK_THAT(table, ContainsSubstring("gradients") && ContainsSubstring("reduce") && !ContainsSubstring("device"));
  std::istringstream lines(table);
  for (std::string line; std::getline(lines, line);) CHECK(line.size() == 58);
  weft::report::reset_peaks();
  CHECK(weft::report::peak_bytes() == 4 << 20);
  CHECK(weft::report::memory_summary().of(MemoryTag::gathered).peak_bytes == 0);
}

TEST_CASE("memory by phase: the most that each held, with what was there before and what inner ones held", "[report]") {
  weft::report::MemoryPhases phases;
  CHECK_THAT(test::message_of([&] { static_cast<void>(phases.enter("uncounted")); }),
             ContainsSubstring("make a weft::report::MemoryCount"));
  MemoryCount const memory;
  auto const kept = at::empty({1 << 18});  // 1 MiB
  for (int step = 0; step < 2; ++step) {
    {
      auto const phase = phases.enter("forward");
      at::empty({1 << 18});
      {
        auto const inner = phases.enter("block");
        at::empty({(2 + step) << 18});
      }
    }
    at::empty({9 << 18});  // between phases
    auto const phase = phases.enter("backward");
    at::empty({1 << 17});
  }
  REQUIRE(phases.peaks().size() == 3);
  auto const is = [&](std::size_t i, std::string const& name, std::size_t bytes) {
    CHECK(phases.peaks()[i].name == name);
    CHECK(phases.peaks()[i].bytes == bytes);
    CHECK(phases.peaks()[i].times == 2);
  };
  is(0, "forward", 4 << 20);
  is(1, "block", 4 << 20);
  is(2, "backward", 3 << 19);
  CHECK_THAT(phases.table(), ContainsSubstring("backward                        1.50 MiB at most, entered 2 times\n"));
}

TEST_CASE("memory_summary: an accelerator's statistics, retries among them", "[report]") {
  auto const device = at::Device(at::kMTIA, 2);
  CHECK_THAT(test::message_of([&] { weft::report::memory_summary(device); }),
             ContainsSubstring("memory of mtia:2: nothing in this program allocates there"));
  static Accelerator accelerator;  // the registry keeps its address
  c10::SetAllocator(at::kMTIA, &accelerator);
  CHECK(weft::report::peak_bytes(device) == 0);  // not in use yet
  weft::report::reset_peaks(device);
  CHECK(accelerator.resets.empty());

  accelerator.in_use = true;
  auto const set = [](auto& of_pools, int64_t now, int64_t peak) {
    of_pools[0].current = now;
    of_pools[0].peak = peak;
    of_pools[1].current = of_pools[1].peak = 7;  // of the pool of small blocks: not what is asked for
  };
  set(accelerator.statistics.allocated_bytes, 1 << 20, 3 << 20);
  set(accelerator.statistics.active_bytes, 2 << 20, 4 << 20);
  set(accelerator.statistics.reserved_bytes, 5 << 20, 6 << 20);
  set(accelerator.statistics.allocation, 11, 12);
  set(accelerator.statistics.inactive_split_bytes, 1 << 19, 1 << 19);
  accelerator.statistics.num_alloc_retries = 4;
  accelerator.statistics.num_ooms = 1;
  auto const summary = weft::report::memory_summary(device);
  CHECK(summary.device.value().allocated_bytes.now == 1 << 20);
  CHECK(summary.device->allocations.peak == 12);
  CHECK(summary.device->retries == 4);
  CHECK(weft::report::peak_bytes(device) == 3 << 20);
  CHECK_THAT(summary.table(), ContainsSubstring("device: allocated               1.00        3.00        11\n") &&
                                  ContainsSubstring("device: reserved                5.00        6.00          \n") &&
                                  ContainsSubstring("device: fragments               0.50") &&
                                  ContainsSubstring("device: retries                    4") &&
                                  ContainsSubstring("device: out of memory              1"));
  weft::report::reset_peaks(device);
  weft::report::reset_peaks(at::Device(at::kMTIA));
  CHECK(accelerator.resets == std::vector<c10::DeviceIndex>{2, 0});
}
