#include "models.hpp"

#include <weft/launch/simulated.hpp>
#include <weft/report/allocator.hpp>
#include <weft/shard/buffer_pool.hpp>

using namespace test;
using weft::core::MemoryTag;
using weft::shard::BufferPool;
using weft::shard::ResizableStorage;

namespace {

/// Counts allocations of one size; hands everything on.
class Fresh final : public c10::Allocator {
 public:
  explicit Fresh(std::size_t bytes) : bytes_(bytes), base_(c10::GetCPUAllocator()) {
    c10::SetCPUAllocator(this, priority);
  }
  ~Fresh() override { c10::SetCPUAllocator(base_, priority); }
  c10::DataPtr allocate(std::size_t bytes) override {
    count += bytes == bytes_;
    return base_->allocate(bytes);
  }
  c10::DeleterFnPtr raw_deleter() const override { return base_->raw_deleter(); }
  void copy_data(void* to, void const* from, std::size_t bytes) const override { base_->copy_data(to, from, bytes); }

  int count = 0;

 private:
  static constexpr uint8_t priority = 100;
  std::size_t bytes_;
  c10::Allocator* base_;
};

at::Tensor piece(int64_t numel, BufferPool& pool) {
  return weft::shard::empty(numel, at::kFloat, MemoryTag::reduce, &pool);
}

}  // namespace

TEST_CASE("pieces pass on between keep and let_go, where sizes agree", "[shard]") {
  BufferPool pool;
  auto a = piece(100, pool);
  weft::shard::recycle(std::move(a), MemoryTag::reduce, pool);  // not kept: freed
  pool.open();
  CHECK_FALSE(pool.acquire(400, MemoryTag::reduce));

  auto b = piece(100, pool), c = piece(7, pool);
  auto const* const at_b = b.data_ptr();
  auto const* const at_c = c.data_ptr();
  weft::shard::recycle(std::move(b), MemoryTag::reduce, pool);
  weft::shard::recycle(std::move(c), MemoryTag::gathered, pool);
  auto const again = piece(100, pool);
  CHECK(again.data_ptr() == at_b);
  CHECK(again.sizes() == at::IntArrayRef{100});
  CHECK(piece(7, pool).data_ptr() == at_c);  // given back for another purpose

  weft::shard::recycle(piece(100, pool), MemoryTag::reduce, pool);
  pool.close();
  CHECK_FALSE(pool.acquire(400, MemoryTag::reduce));
}

TEST_CASE("a piece that somebody else views stays theirs", "[shard]") {
  BufferPool pool;
  pool.open();
  auto a = piece(10, pool);
  a.fill_(3);
  auto const view = a.narrow(0, 2, 4);
  weft::shard::recycle(std::move(a), MemoryTag::reduce, pool);
  CHECK_FALSE(pool.acquire(40, MemoryTag::reduce));
  CHECK(view.sum().item<float>() == 12);
}

TEST_CASE("a pool piece counts for what it was, then for what it is; a new one comes in its place", "[shard]") {
  weft::report::MemoryCount const memory;
  auto const held = [&](MemoryTag tag) { return memory.of(tag).bytes; };
  BufferPool pool;
  pool.open();
  weft::shard::recycle(piece(100, pool), MemoryTag::reduce, pool);
  CHECK(held(MemoryTag::reduce) == 400);
  {
    auto const gathered = weft::shard::empty(100, at::kFloat, MemoryTag::gathered, &pool);
    CHECK(held(MemoryTag::reduce) == 0);
    CHECK(held(MemoryTag::gathered) == 400);
  }
  weft::shard::recycle(piece(100, pool), MemoryTag::reduce, pool);
  auto const larger = piece(101, pool);
  CHECK(held(MemoryTag::reduce) == 404);
  CHECK(memory.of(MemoryTag::reduce).peak_bytes == 404);
}

TEST_CASE("a released storage's memory passes to the next that is gathered", "[shard]") {
  BufferPool pool;
  ResizableStorage first(at::ones({50}), "first", pool), second(at::ones({50}), "second", pool);
  auto const* const memory = first.tensor().data_ptr();
  pool.open();
  second.release();
  second.allocate();
  pool.close();
  second.release();
  pool.open();
  first.release();
  second.allocate();
  CHECK(second.tensor().data_ptr() == memory);
  first.allocate();
  CHECK(first.tensor().data_ptr() != memory);
}

TEST_CASE("what a step allocates for whole units does not grow with their number", "[shard]") {
  using Program =
      weft::Fabric<weft::FSDP<weft::WrapPolicy<Block>, weft::Bucket<1>>, weft::On<weft::Cpu>, weft::Simulated<2>>;
  auto const fresh_pieces = [](int64_t blocks) {
    auto outcome = Program::launch([&](Program& fabric) {
      auto [model, optimizer] = fabric.setup(Stack(blocks), weft::SGD{.lr = 0.1});
      auto const step = [&, &model = model, &optimizer = optimizer] {
        fabric.backward(model(at::ones({2, 5})).sum());
        optimizer.step();
        optimizer.zero_grad();
      };
      step();
      step();
      std::size_t numel = 0;
      for (auto const& parameter : Block()->parameters()) numel += static_cast<std::size_t>(parameter.numel());
      Fresh fresh(numel * sizeof(float));
      step();
      return fresh.count;
    });
    if (!outcome) FAIL(outcome.failures().front().message);
    return *outcome;
  };
  auto const few = fresh_pieces(6);
  CHECK(few > 0);  // else nothing of this size was counted at all
  CHECK(fresh_pieces(12) == few);
}
