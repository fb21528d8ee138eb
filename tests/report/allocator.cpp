#include "test.hpp"

#include <thread>
#include <vector>

#include <weft/core/memory_tag.hpp>
#include <weft/report/allocator.hpp>

using weft::report::Held;
using weft::report::MemoryCount;
using weft::report::MemoryTag;
using weft::report::Tagged;

TEST_CASE("memory is counted by tag, and the peak stays", "[report]") {
  MemoryCount const memory;
  auto const plain = at::empty({100});
  {
    Tagged const tag(MemoryTag::gathered);
    auto const a = at::empty({30});
    {
      Tagged const inner(MemoryTag::reduce);
      auto const b = at::empty({7}, at::kDouble);
      CHECK(memory.of(MemoryTag::reduce) == Held{56, 1, 56, 1});
    }
    auto const c = at::empty({5});
    CHECK(memory.of(MemoryTag::gathered) == Held{140, 2, 140, 2});
    CHECK(memory.all() == Held{540, 3, 576, 3});
  }
  CHECK(memory.of(MemoryTag::gathered) == Held{0, 0, 140, 2});
  CHECK(memory.of(MemoryTag::rest) == Held{400, 1, 400, 1});
  CHECK(memory.all() == Held{400, 1, 576, 3});
  memory.reset_peaks();
  CHECK(memory.all() == Held{400, 1, 400, 1});
  CHECK(weft::core::memory_tag() == MemoryTag::rest);
}

TEST_CASE("a block has the tag with which it was made, whoever frees it", "[report]") {
  MemoryCount const memory;
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    Tagged const tag(MemoryTag::parameters);
    auto tensor = at::empty({1000});
    threads.emplace_back([moved = std::move(tensor)]() mutable {
      moved.reset();
      for (int j = 0; j < 1000; ++j) at::empty({j + 1});
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(memory.of(MemoryTag::parameters).bytes == 0);
  CHECK(memory.of(MemoryTag::rest).bytes == 0);
  CHECK(memory.of(MemoryTag::rest).peak_bytes >= 4000);
  CHECK(memory.of(MemoryTag::rest).peak_bytes <= 8 * 4000);
}

TEST_CASE("nothing that outlives or precedes the scope is a trap", "[report]") {
  auto* const before = c10::GetCPUAllocator();
  auto older = at::ones({10});
  at::Tensor younger, resized;
  {
    MemoryCount const memory;
    CHECK(c10::GetCPUAllocator() != before);
    older.reset();
    younger = at::ones({10});
    resized = at::ones({10});
    CHECK(memory.all() == Held{80, 2, 80, 2});
  }
  CHECK(c10::GetCPUAllocator() == before);
  resized.resize_({1000});  // by the allocator that its storage remembers
  {
    MemoryCount const memory;
    younger.reset();
    resized.resize_({2000});
    CHECK(memory.all().bytes == 8000);
    CHECK(memory.all().blocks == 1);
    resized.reset();
    CHECK(memory.all().bytes == 0);
  }
  CHECK(c10::GetCPUAllocator() == before);
}

TEST_CASE("copies on write, empty tensors and raw pointers work while memory is counted", "[report]") {
  MemoryCount const memory;
  auto const original = at::ones({16});
  {
    auto copy = at::_lazy_clone(original);
    CHECK(memory.all().bytes == 64);
    copy.add_(1);
    CHECK(memory.all().bytes == 128);
    CHECK(original.sum().item<float>() == 16);
  }
  auto const none = at::empty({0});
  CHECK(memory.all().blocks == 1);
  void* const raw = c10::GetCPUAllocator()->raw_allocate(24);
  CHECK(memory.all().bytes == 88);
  c10::GetCPUAllocator()->raw_deallocate(raw);
  CHECK(memory.all().bytes == 64);
}

TEST_CASE("memory is counted once at a time", "[report]") {
  MemoryCount const memory;
  CHECK_THROWS_AS(MemoryCount(), weft::ConfigurationError);
}
